"""``plugind describe``: everything about the sockets of one plugin.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
from urllib.parse import quote

import trio

from .arguments import plugin_target
from .client import add_daemon_arguments, daemon, fetch, fetch_about, plugins_in
from .description import described
from .ending import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind describe``."""
    parser.description = (
        "Tell all that is known of a plugin, with the history of its states, reasons and times: of each socket that has"
        " the name."
    )
    parser.epilog = (
        "examples:\n  plugind describe csi.example.com\n"
        "  plugind describe /var/lib/kubelet/plugins_registry/csi.example.com-reg.sock --json\n\n"
        "exit codes: 0 ok, 1 no plugin has that name or path, 2 usage, 69 no daemon answers, 75 it is busy"
    )
    parser.add_argument(
        "target",
        metavar="NAME|SOCKET",
        type=plugin_target,
        help="a plugin's name, or the path of its socket; its file name will do if no other has it",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects, one for each socket")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Describe a plugin; return the exit code."""

    async def asked(target: str) -> bytes:
        quoted = quote(target, safe="", errors="surrogateescape")
        return await fetch(daemon(args), "GET", f"/plugins/{quoted}")

    answer = trio.run(fetch_about, args.target, asked)
    say(answer.decode() if args.json else "\n".join(map(described, plugins_in(answer))))
    return 0
