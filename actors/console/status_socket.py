"""The options for the daemon of a command, for commands that must start quickly."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Final, Protocol

from ..client.paths import SERVICE_PATH, default_status_path
from ..client.reaching import ANSWER_TIMEOUT, why_unreachable
from .ending import EXIT_CONFIG, CommandError
from .times import seconds


def add_status_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--status``, an option of the daemon and of all commands that ask it."""
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
    """Return the path of ``--status``, or the default.

    Raises:
      CommandError: if the path is empty.
    """
    given: str | None = args.status
    if given == "":
        raise CommandError("the path of the status socket is empty: give one with --status", EXIT_CONFIG)
    return default_status_path() if given is None else given


#: Where the unit of the service is: the directory of an administrator's units, and those of packages.
UNIT_DIRECTORIES: Final = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
#: Advice about a daemon that does not answer.
_ADVICE: Mapping[str, str] = {
    "other": "name the daemon's status socket with --status or PLUGIND_STATUS",
    "none": "start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS",
    "late": "--answer-timeout gives it more time",
}


class Unanswered(Protocol):
    """The error of a client without an answer from a daemon."""

    path: str
    reason: str
    #: The errno; None if the answer was not HTTP.
    code: int | None


def unreachable(error: Unanswered, **advice: str) -> str:
    """Return a text with advice about a daemon that does not answer; ``advice`` replaces the default advice."""
    known = {}
    if error.path == SERVICE_PATH and any(os.path.exists(f"{place}/plugind.service") for place in UNIT_DIRECTORIES):
        known["none"] = _ADVICE["none"].replace("one with 'plugind run'", "the service with 'systemctl start plugind'")
    return why_unreachable(error.path, error.reason, error.code, {**_ADVICE, **known, **advice})
