"""The output and the exit codes of failing commands about leases."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final

from ...protocol.leases.leases_json import lease_to_json
from ...protocol.leases.replies import Problem
from ..client.errors import ClientError, LeaseFailedError, NoDaemonError
from .ending import EXIT_FAILED, EXIT_USAGE, complain, say_error
from .status_socket import unreachable

EXIT_NO_DAEMON: Final = 3
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


def fail(error: ClientError, form: str | None = None) -> int:
    """Print why a daemon did not do what was asked, also in JSON if that is the form; return the exit code."""
    why = unreachable(error, late=_LATE) if isinstance(error, NoDaemonError) else str(error)
    complain(why)
    if form == "json":
        holders = error.holders if isinstance(error, LeaseFailedError) else ()
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        say_error(why, **{"holders": [lease_to_json(holder, boottime) for holder in holders]} if holders else {})
    if isinstance(error, NoDaemonError):
        return EXIT_NO_DAEMON
    if not isinstance(error, LeaseFailedError):
        return EXIT_FAILED
    if error.holders:
        # Imported late, since only a failure needs it.
        from .lease_words import holder_lines

        with suppress(OSError):
            sys.stderr.write("".join(f"  {line}\n" for line in holder_lines(error.holders)))
    return _CODES.get(error.problem, EXIT_FAILED)
