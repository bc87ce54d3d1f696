"""The end of a command: its exit code, and at most one line on standard error with the reason.

A command's ``run`` returns its exit code, or raises :class:`CommandError`. It prints with :func:`say`.
:func:`run_to_end` handles what is the same for all commands: an interrupt, a reader of standard output that has gone, a
full disk.
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
#: No daemon answers: EX_UNAVAILABLE of sysexits.h. EXIT_CONFIG is its EX_CONFIG.
EXIT_UNREACHABLE = 69
#: The daemon answers that it cannot tell now: EX_TEMPFAIL.
EXIT_BUSY = 75
EXIT_CONFIG = 78
#: The exit code in a shell of a process that SIGINT ended.
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command failed. The text is one line with the reason or advice."""

    def __init__(self, line: str, code: int = EXIT_FAILED, *, more: Sequence[str] = (), **details: object) -> None:
        super().__init__(line, code)
        self.line = line
        #: Further problems, a line each.
        self.more = more
        self.code = code
        #: Further fields for programs (``-o json``).
        self.details = details


class CutOffError(CommandError):
    """A stream of output has ended early. Each of its lines is complete, so no JSON error is added."""


class OutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


#: The expected exceptions of a command. A library that prints can raise BrokenPipeError.
_FORESEEN = (CommandError, OutputError, BrokenPipeError, KeyboardInterrupt)


def complain(line: str) -> None:
    """Print one line about an error. A closed standard error is ignored (fault 95)."""
    with contextlib.suppress(OSError):
        print(f"plugind: {line}", file=sys.stderr, flush=True)  # noqa: T201


def say(text: str, *, now: bool = False) -> None:
    """Write to standard output; flush it if ``now``.

    Raises:
      OutputError: if it cannot be written (fault 95). Later output is dropped.
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
        # Characters that the terminal cannot show are escaped.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = run(args)
    except _FORESEEN as error:
        code = code_of(error)
        _tell_program(error, args)
    except BaseExceptionGroup as group:
        # A nursery has wrapped it in a group.
        foreseen, others = group.split(_FORESEEN)
        if foreseen is None or others is not None:
            raise
        code = code_of(foreseen)
        _tell_program(foreseen, args)
    return flush(code)


def _tell_program(error: BaseException, args: argparse.Namespace) -> None:
    """Print the error of a command on standard output, if JSON was requested."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CutOffError) or getattr(args, "output", None) != "json":
        return
    if isinstance(error, CommandError):
        say_error(error.line, **error.details)


def say_error(reason: str, **details: object) -> None:
    """Write the JSON object for a failed command, in addition to the exit code."""
    import json

    # The reason is on standard error, too.
    with contextlib.suppress(OutputError):
        say(json.dumps({"error": reason, **details}) + "\n", now=True)


def code_of(error: BaseException) -> int:
    """Return the exit code for an expected error (:data:`_FORESEEN`), and print the error."""
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
    """Flush standard output, and return the exit code."""
    if sys.stdout is None:
        # It was closed when the process started.
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        return _give_up_output(error, code)
    return code


def _discard_output() -> None:
    """Drop all output from now on: the bytes in the buffer would fail at each flush, also at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _give_up_output(error: OSError, code: int) -> int:
    """Drop all output from now on; return the exit code.

    A reader that has gone has seen enough, like ``head`` (fault 95). Any other error is printed.
    """
    _discard_output()
    if isinstance(error, BrokenPipeError):
        return code
    complain(f"standard output cannot be written: {error.strerror}")
    return code or EXIT_FAILED
