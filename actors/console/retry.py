"""``plugind retry``: an attempt to register a plugin now."""

from __future__ import annotations

import argparse
import json

from ...protocol.status.json import Json
from .answers import Plugin, add_daemon_arguments, daemon, retries_in
from .arguments import plugin_target
from .client import fetch, fetch_about
from .ending import EXIT_FAILED, EXIT_OK, say
from .output import add_output_argument
from .phrases import text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind retry``."""
    parser.description = (
        "Try to register a plugin now, with a fresh backoff, instead of at its next try. For each of its sockets a line"
        " says what follows. With --facts, ask registered plugins anew for what is known of them."
    )
    parser.epilog = (
        "examples:\n  plugind retry csi.example.com\n  plugind retry /var/lib/kubelet/plugins_registry/a.sock\n"
        "  plugind retry csi.example.com --facts\n\n"
        "exit codes: 0 a socket is tried, 1 none is, 2 usage, 69 no daemon answers, 75 it is busy"
    )
    parser.add_argument(
        "target",
        metavar="NAME|SOCKET",
        type=plugin_target,
        help="a plugin's name, or the path of its socket; its file name will do if no other has it",
    )
    parser.add_argument(
        "--facts",
        action="store_true",
        help="ask a registered plugin anew for what 'plugind describe' shows of it: a CSI driver for its node id",
    )
    add_output_argument(parser, "one object, whose 'answers' say of each socket whether it is tried, and why")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for an attempt now, or for new facts; return the exit code."""
    body: dict[str, Json] = {"facts": True} if args.facts else {}

    def asked(target: str) -> bytes:
        return fetch(daemon(args), "/retry", "POST", json.dumps(body | {"target": target}).encode())

    answers = retries_in(fetch_about(args.target, asked))
    if args.output == "json":
        say(json.dumps({"answers": answers}) + "\n")
    else:
        say("".join(map(_line, answers)))
    return EXIT_OK if any(answer.get("tried") is True for answer in answers) else EXIT_FAILED


def _line(answer: Plugin) -> str:
    return f"{text(answer.get('socket'))}: {text(answer.get('why'))}\n"
