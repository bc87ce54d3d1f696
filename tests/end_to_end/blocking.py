"""``plugind run`` with a handler that blocks: its validate for a moment, its register of "stuck" for ever.

Its register of "shielded" waits for ever and cannot be cancelled.

The node has a tenth of a second to stop, so that the test need not wait for long.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import attrs
import trio

from plugind import Plugin
from plugind.actors.console import run
from plugind.actors.node import node
from plugind.protocol.settings.config import Timeouts


class BlockingHandler:
    """A handler whose author forgot that its methods run in the loop."""

    async def validate(self, plugin: Plugin) -> None:
        if plugin.name == "shielded":
            return
        time.sleep(2.0)  # noqa: ASYNC251 - that is the fault

    async def register(self, plugin: Plugin) -> None:
        if plugin.name in ("stuck", "shielded"):
            sys.stdout.write(f"{plugin.name}\n")
            sys.stdout.flush()
        if plugin.name == "shielded":
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        if plugin.name == "stuck":
            # A signal that comes just before one long sleep begins would be seen only after it.
            while True:
                time.sleep(1.0)  # noqa: ASYNC251 - that is the fault

    async def deregister(self, plugin: Plugin) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    vars(run)["installed_handlers"] = lambda: {"BlockedPlugin": BlockingHandler()}
    vars(node)["STATUS_GRACE"] = 0.1
    settings = run.read_configuration(args, os.environ)
    config = attrs.evolve(settings.config, timeouts=Timeouts(stop_grace=0.1))
    trio.run(run.run_daemon, attrs.evolve(settings, config=config))


if __name__ == "__main__":
    main()
