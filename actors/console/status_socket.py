"""The options about the daemon that a command asks, for commands that must start quickly."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Protocol

from ..client.paths import default_status_path
from ..client.reaching import ANSWER_TIMEOUT, why_unreachable
from .ending import EXIT_CONFIG, CommandError
from .times import seconds


def add_status_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--status``, which the daemon and all commands that ask it have."""
    parser.add_argument(
        "--status",
        metavar="PATH",
        default=None,
        help="the daemon's status socket (default: $PLUGIND_STATUS, else /run/plugind/status.sock for root and"
        " $XDG_RUNTIME_DIR/plugind/status.sock for others)",
    )


def add_answer_timeout(parser: argparse.ArgumentParser) -> None:
    """Add ``--answer-timeout``."""
    parser.add_argument(
        "--answer-timeout",
        metavar="S",
        type=seconds(0.1, 3600.0),
        default=ANSWER_TIMEOUT,
        help="how long the daemon may be silent, in seconds (default: %(default)g)",
    )


def status_path(args: argparse.Namespace) -> str:
    """Return the path that ``--status`` names, or the default.

    Raises:
      CommandError: if it names an empty path.
    """
    given: str | None = args.status
    if given == "":
        raise CommandError("the path of the status socket is empty: give one with --status", EXIT_CONFIG)
    return default_status_path() if given is None else given


#: What the user of a command can do about a daemon that does not answer.
_ADVICE: Mapping[str, str] = {
    "other": "name the daemon's status socket with --status or PLUGIND_STATUS",
    "none": "start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS",
    "late": "--answer-timeout gives it more time",
}


class Unanswered(Protocol):
    """The error of a client that no daemon has answered."""

    path: str
    reason: str
    #: The errno, None if the answer was not HTTP.
    code: int | None


def unreachable(error: Unanswered, **advice: str) -> str:
    """Return what to do about a daemon that does not answer; ``advice`` takes the place of what is said by default."""
    return why_unreachable(error.path, error.reason, error.code, {**_ADVICE, **advice})
