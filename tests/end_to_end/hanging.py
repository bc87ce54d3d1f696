"""``plugind run`` with an actor that hangs for as long as a file of its name lies beside the status socket.

``hung_after`` is one second, so that the test need not wait for long.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import attrs
import trio

from plugind.actors.console.run import add_arguments, read_configuration, run_daemon
from plugind.actors.messaging.mailbox import report
from plugind.actors.status import actor as status_actor
from plugind.actors.world import reconciler
from plugind.protocol.messages.status import StatusMessage


def hang_by_file(directory: Path) -> None:
    """Let the reconciler hang as it reports to the status actor, and the status actor as it takes a report."""

    async def wait(actor: str) -> None:
        while (directory / actor).exists():  # noqa: ASYNC110 - the test is another process
            await trio.sleep(0.05)

    async def report_or_hang(status: trio.MemorySendChannel[StatusMessage], message: StatusMessage) -> None:
        await wait("reconciler")
        await report(status, message)

    take = status_actor._Status._take

    async def take_or_hang(self: status_actor._Status, message: StatusMessage) -> None:
        await wait("status")
        await take(self, message)

    vars(reconciler)["report"] = report_or_hang
    setattr(status_actor._Status, "_take", take_or_hang)  # noqa: B010 - mypy allows no assignment


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    hang_by_file(Path(args.status).parent)
    settings = read_configuration(args, os.environ)
    trio.run(run_daemon, attrs.evolve(settings, config=attrs.evolve(settings.config, hung_after=1.0)))


if __name__ == "__main__":
    main()
