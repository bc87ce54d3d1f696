"""``plugind retry``: an attempt to register a plugin now.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import json
import sys

import trio

from . import table
from .client import add_status_argument, fetch, status_path, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind retry``."""
    parser.description = "Try to register a plugin now, with a fresh backoff, instead of at its next try."
    parser.epilog = (
        "examples:\n  plugind retry csi.example.com\n  plugind retry /var/lib/kubelet/plugins_registry/a.sock"
    )
    parser.add_argument("target", metavar="NAME|SOCKET", help="a plugin's name, or the path of its socket")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for an attempt now; return the exit code."""
    body = json.dumps({"target": target(args.target)}).encode()
    answer = json.loads(trio.run(fetch, status_path(args), "POST", "/retry", body))
    for socket in answer["sockets"]:
        sys.stdout.write(f"trying {table.text(socket)} now\n")
    return 0
