"""``plugind run`` whose reconciler hangs for as long as a file named ``hang`` lies beside its status socket.

``hung_after`` is one second, so that the test need not wait for long.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import attrs
import trio

from plugind.actors import reconciler
from plugind.actors.console.run import add_arguments, config_from, run_daemon
from plugind.actors.mailbox import report
from plugind.protocol.messages import StatusMessage


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    hang = Path(args.status).with_name("hang")

    async def report_or_hang(status: trio.MemorySendChannel[StatusMessage], message: StatusMessage) -> None:
        while hang.exists():  # noqa: ASYNC110 - the test is another process
            await trio.sleep(0.05)
        await report(status, message)

    vars(reconciler)["report"] = report_or_hang
    trio.run(run_daemon, args, attrs.evolve(config_from(args, os.environ), hung_after=1.0))


if __name__ == "__main__":
    main()
