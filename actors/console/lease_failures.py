"""The output and the exit codes of failing commands about leases."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from ...protocol.leases.leases_json import lease_to_json, limit_to_json
from ...protocol.leases.replies import Failure, InLine, Problem
from ...protocol.leases.values import Lease, Request
from ...protocol.text import escaped
from ..client.errors import ClientError, LeaseFailedError, NoDaemonError
from .ending import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandError, complain, say_error
from .status_socket import unreachable

EXIT_REFUSED: Final = 4
#: The exit code of ``timeout``; the next three are those of ``env``: the command was not run, cannot be run, is
#: missing.
EXIT_TIMED_OUT: Final = 124
EXIT_NOT_RUN: Final = 125
EXIT_CANNOT_RUN: Final = 126
EXIT_NOT_FOUND: Final = 127
#: Advice about a daemon that accepts connections and is silent.
_LATE: Final = "it is stopped, or hangs: look at its log, then continue or restart it"
_CODES: Final = {Problem.USAGE: EXIT_USAGE, Problem.REFUSED: EXIT_REFUSED, Problem.TIMEOUT: EXIT_TIMED_OUT}


def fail(error: ClientError, form: str | None = None, more: Iterable[str] = ()) -> int:
    """Print why a daemon did not do what was asked, also in JSON if that is the form; return the exit code.

    ``more`` are lines that follow on standard error.
    """
    why = unreachable(error, late=_LATE) if isinstance(error, NoDaemonError) else str(error)
    complain(why)
    if form == "json":
        holders, limit = (error.holders, error.limit) if isinstance(error, LeaseFailedError) else ((), None)
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        say_error(
            why,
            **{"holders": [lease_to_json(holder, boottime) for holder in holders]} if holders else {},
            **{"limit": limit_to_json(limit)} if limit else {},
        )
    if isinstance(error, NoDaemonError):
        return EXIT_UNREACHABLE
    if not isinstance(error, LeaseFailedError):
        return EXIT_FAILED
    _say_below([*_holders(error.holders), *more])
    return _CODES.get(error.problem, EXIT_FAILED)


def say_place(path: str, request: Request, in_line: InLine) -> None:
    """Print where in line a request is that waits at the daemon at ``path``, for what, and who is before it."""
    wanted = ", ".join(f"{wanted.count} of {escaped(wanted.resource)}" for wanted in request.wanted)
    shortage = in_line.shortage
    complain(f"waiting for {wanted}, number {in_line.place} in line: {escaped(shortage.text)}")
    _say_below([*_holders(shortage.holders), *why_none(path, request, shortage)])


def why_none(path: str, request: Request, failure: Failure) -> list[str]:
    """Return what the daemon at ``path`` says of resources that nobody offers and nobody holds."""
    if failure.holders or failure.limit or failure.problem not in (Problem.UNAVAILABLE, Problem.TIMEOUT):
        return []
    # Imported late, since only a failure needs them.
    from .answers import Daemon, NotAllowedError
    from .client import roots_to_mend
    from .refused_calls import lines, refused_calls

    daemon = Daemon(path)
    try:
        refused = refused_calls(daemon)
        return [*roots_to_mend(daemon), *(line for name in request.resources for line in lines(refused, name))]
    except (CommandError, NotAllowedError):
        return []  # It only explains the failure, which is said.


def _holders(leases: Sequence[Lease]) -> list[str]:
    if not leases:
        return []
    from .lease_words import holder_lines  # As above.

    return [*holder_lines(leases)]


def _say_below(lines: Iterable[str]) -> None:
    with suppress(OSError):
        sys.stderr.write("".join(f"  {line}\n" for line in lines))
        sys.stderr.flush()
