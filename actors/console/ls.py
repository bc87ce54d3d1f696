"""``plugind ls``: every plugin socket, one line each.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import sys

import trio

from . import table
from .client import add_status_argument, fetch, plugins_in, status_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind ls``."""
    parser.description = "List every plugin socket with its state, the reason for it and the time of the next try."
    parser.epilog = "examples:\n  plugind ls\n  plugind ls --json | jq '.[] | select(.state != \"registered\")'"
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List the plugins; return the exit code."""
    answer = trio.run(fetch, status_path(args), "GET", "/plugins")
    if args.json:
        sys.stdout.write(answer.decode())
    else:
        table.show(plugins_in(answer))
    return 0
