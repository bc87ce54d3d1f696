"""``plugind watch``: each change of a plugin as it happens.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse

import trio

from ...protocol.text import escaped
from ..io.http_client import UnreachableError
from .client import Daemon, add_daemon_arguments, asked, daemon, has_heartbeats, plugin_in, watch_target
from .description import change
from .ending import EXIT_OK, EXIT_UNREACHABLE, CommandError, complain, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind watch``."""
    parser.description = (
        "Print the present state of every plugin, then each change as it happens, one line each, until the daemon"
        " stops."
    )
    parser.epilog = (
        "examples:\n  plugind watch\n  plugind watch --json | jq -c '[.time, .name, .state, .reason]'\n\n"
        "exit codes: 0 the daemon stopped, 1 changes were lost, 2 usage, 69 no daemon answers, or no longer,"
        " 75 it is busy"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines: the keys of 'ls --json', and 'time'")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Watch the plugins until the daemon stops; return the exit code."""
    return trio.run(_watch, daemon(args), args.json)


async def _watch(daemon: Daemon, as_json: bool) -> int:
    path = escaped(daemon.path)
    async with asked(daemon, "GET", watch_target(daemon)) as reply:
        has_heartbeats(reply)
        try:
            async for line in reply.lines():
                if line:
                    plugin = plugin_in(line)
                    say(line.decode() + "\n" if as_json else change(plugin), now=True)
        except UnreachableError as error:
            raise CommandError(f"the daemon at {path} went away: {error.reason}", EXIT_UNREACHABLE) from error
    complain(f"the daemon at {path} stopped")
    return EXIT_OK
