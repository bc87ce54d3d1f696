"""The options for the daemon of a command, for commands that must start quickly."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
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


#: The unit of the service, and where it is: the directory of an administrator's units, and those of packages.
UNIT: Final = "plugind.service"
UNIT_DIRECTORIES: Final = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_NAME_IT = "or name its socket with --status or PLUGIND_STATUS"
#: Advice about a daemon that does not answer.
_ADVICE: Mapping[str, str] = {
    "other": "name the daemon's status socket with --status or PLUGIND_STATUS",
    "none": f"start one with 'plugind run', {_NAME_IT}",
    "late": "--answer-timeout gives it more time",
}
#: The same where the service has a unit.
_START = {"none": f"start the service with 'systemctl start plugind', {_NAME_IT}"}


class Unanswered(Protocol):
    """The error of a client without an answer from a daemon."""

    path: str
    reason: str
    #: The errno; None if the answer was not HTTP.
    code: int | None


def unreachable(error: Unanswered, **advice: str) -> str:
    """Return a text with advice about a daemon that does not answer; ``advice`` replaces the default advice."""
    start = _START if error.path == SERVICE_PATH and find_unit(UNIT_DIRECTORIES) is not None else {}
    return why_unreachable(error.path, error.reason, error.code, {**_ADVICE, **start, **advice})


def find_unit(directories: Iterable[str]) -> str | None:
    """Return the path of the unit in the first of these directories that has it; None if none has."""
    paths = (os.path.join(directory, UNIT) for directory in directories)
    return next((path for path in paths if os.path.exists(path)), None)
