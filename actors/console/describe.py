"""``plugind describe``: everything about the sockets of one plugin.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import quote

import trio

from . import table
from .client import add_status_argument, fetch, plugins_in, status_path, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind describe``."""
    parser.description = "Tell all that is known of a plugin, with the history of its states, reasons and times."
    parser.epilog = (
        "examples:\n  plugind describe csi.example.com\n"
        "  plugind describe /var/lib/kubelet/plugins_registry/csi.example.com-reg.sock --json"
    )
    parser.add_argument("target", metavar="NAME|SOCKET", help="a plugin's name, or the path of its socket")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects, one for each socket")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Describe a plugin; return the exit code."""
    quoted = quote(os.fsencode(target(args.target)), safe="")
    answer = trio.run(fetch, status_path(args), "GET", f"/plugins/{quoted}")
    if args.json:
        sys.stdout.write(answer.decode())
    else:
        sys.stdout.write("\n".join(map(table.described, plugins_in(answer))))
    return 0
