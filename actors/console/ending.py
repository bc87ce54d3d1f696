"""The end of a command: its exit code, and at most one line on standard error with the reason.

A command's ``run`` returns its exit code, or raises :class:`CommandError`. It prints with :func:`say`. Whatever is the
same for all commands is in :func:`run_to_end`: an interrupt, a reader of standard output that has gone, a disk that is
full.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
#: No daemon answers: EX_UNAVAILABLE of sysexits.h, as EXIT_CONFIG is its EX_CONFIG.
EXIT_UNREACHABLE = 69
#: The daemon answers that it cannot tell now: EX_TEMPFAIL.
EXIT_BUSY = 75
EXIT_CONFIG = 78
#: The exit code that a shell shows for a process that SIGINT ended.
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command failed. The text is one line with the reason, or with what to do about it."""

    def __init__(self, line: str, code: int = EXIT_FAILED, *, more: Sequence[str] = (), **details: object) -> None:
        super().__init__(line, code)
        self.line = line
        #: What else is wrong, a line each.
        self.more = more
        self.code = code
        #: What a program is told besides the reason (``-o json``).
        self.details = details


class CutOffError(CommandError):
    """What a command prints as it comes has ended early. Each line of it stands by itself, so none is added for it."""


class OutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


#: How a command may end other than by returning. A pipe may also break in a library that prints.
_FORESEEN = (CommandError, OutputError, BrokenPipeError, KeyboardInterrupt)


def complain(line: str) -> None:
    """Print one line about an error. A closed standard error is ignored (fault 95)."""
    with contextlib.suppress(OSError):
        print(f"plugind: {line}", file=sys.stderr, flush=True)  # noqa: T201


def say(text: str, *, now: bool = False) -> None:
    """Write to standard output; ``now`` does not wait until there is more.

    Raises:
      OutputError: if it cannot be written (fault 95). What is written later goes nowhere.
    """
    try:
        sys.stdout.write(text)
        if now:
            sys.stdout.flush()
    except OSError as error:
        _discard_output()
        raise OutputError(error) from error


def run_to_end(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is escaped.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = run(args)
    except _FORESEEN as error:
        code = code_of(error)
        _tell_program(error, args)
    except BaseExceptionGroup as group:
        # A nursery has put a group around it.
        foreseen, others = group.split(_FORESEEN)
        if foreseen is None or others is not None:
            raise
        code = code_of(foreseen)
        _tell_program(foreseen, args)
    return flush(code)


def _tell_program(error: BaseException, args: argparse.Namespace) -> None:
    """Say on standard output why a command has failed, if it was asked for JSON."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CutOffError) or getattr(args, "output", None) != "json":
        return
    if isinstance(error, CommandError):
        say_error(error.line, **error.details)


def say_error(reason: str, **details: object) -> None:
    """Write the object that a program reads when a command has failed. The exit code says so, too."""
    import json

    # The reason is on standard error, so nothing is lost where standard output cannot be written.
    with contextlib.suppress(OutputError):
        say(json.dumps({"error": reason, **details}) + "\n", now=True)


def code_of(error: BaseException) -> int:
    """Return the exit code for an error that is foreseen (:data:`_FORESEEN`), and say what is wrong."""
    match error:
        case BaseExceptionGroup():
            return code_of(error.exceptions[0])
        case CommandError():
            for line in (error.line, *error.more):
                complain(line)
            return error.code
        case OutputError():
            return _give_up_output(error.cause, EXIT_OK)
        case BrokenPipeError():
            return _give_up_output(error, EXIT_OK)
        case _:
            return EXIT_INTERRUPTED


def flush(code: int) -> int:
    """Write what standard output has buffered, and return the exit code."""
    if sys.stdout is None:
        # It was closed when the process started.
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        return _give_up_output(error, code)
    return code


def _discard_output() -> None:
    """Write no more to standard output: what is in its buffer would fail once more at each flush, also at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _give_up_output(error: OSError, code: int) -> int:
    """Write no more to standard output; return the exit code.

    A reader that has gone has seen enough, as ``head`` does (fault 95). Any other error is said.
    """
    _discard_output()
    if isinstance(error, BrokenPipeError):
        return code
    complain(f"standard output cannot be written: {error.strerror}")
    return code or EXIT_FAILED
