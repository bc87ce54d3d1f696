"""``plugind watch``: each change of a plugin as it happens.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import sys

import trio

from ...protocol.text import escaped
from ..io.http_client import UnreachableError
from . import table
from .client import add_status_argument, asked, plugin_in, status_path
from .ending import EXIT_OK, CommandError, complain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind watch``."""
    parser.description = "Print the present state of every plugin, then each change as it happens, one line each."
    parser.epilog = "examples:\n  plugind watch\n  plugind watch --json | jq -c '[.time, .name, .state, .reason]'"
    parser.add_argument("--json", action="store_true", help="print JSON lines: the keys of 'ls --json', and 'time'")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Watch the plugins until the daemon stops; return the exit code."""
    return trio.run(_watch, status_path(args), args.json)


async def _watch(path: str, as_json: bool) -> int:
    async with asked(path, "GET", "/watch") as reply:
        try:
            async for line in reply.lines():
                plugin = plugin_in(line)
                sys.stdout.write(line.decode() + "\n" if as_json else table.change(plugin))
                sys.stdout.flush()
        except UnreachableError as error:
            raise CommandError(f"the daemon at {escaped(path)} went away: {error.reason}") from error
    complain(f"the daemon at {escaped(path)} stopped")
    return EXIT_OK
