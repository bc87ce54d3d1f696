"""``plugind run`` whose device server crashes once for each file of its name that is put beside the status socket."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import trio

from plugind.actors.console.run import add_arguments, read_configuration, run_daemon
from plugind.actors.devices.register_calls import RegisterCalls

#: The name of that file.
FILE = "device server"


class CrashError(Exception):
    """The device server crashes as by a bug."""


def crash_by_file(file: Path) -> None:
    """Let the server crash as it looks at its directory."""
    look = RegisterCalls.look

    async def look_or_crash(self: RegisterCalls) -> None:
        try:
            os.unlink(file)
        except FileNotFoundError:
            await look(self)
        else:
            raise CrashError

    setattr(RegisterCalls, "look", look_or_crash)  # noqa: B010 - mypy allows no assignment


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    crash_by_file(Path(args.status).parent / FILE)
    trio.run(run_daemon, read_configuration(args, os.environ))


if __name__ == "__main__":
    main()
