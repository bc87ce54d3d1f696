"""How a command ends: its exit code, and at most one line on standard error that says why.

A command's ``run`` returns its exit code, or raises :class:`CommandError`. Whatever is the same for all commands is
in :func:`run_to_end`: an interrupt, a reader of standard output that has gone, a disk that is full.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable

import attrs

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 78
#: What a shell shows for a process that SIGINT ended.
EXIT_INTERRUPTED = 130


@attrs.frozen
class CommandError(Exception):
    """A command cannot do what it was asked to do. The text is one line that says why, or what to do about it."""

    line: str
    code: int = EXIT_FAILED


def complain(line: str) -> None:
    """Print one line that says what is wrong; a standard error that is gone changes nothing (fault 95)."""
    with contextlib.suppress(OSError):
        print(f"plugind: {line}", file=sys.stderr, flush=True)  # noqa: T201


def run_to_end(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is escaped.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = run(args)
    except CommandError as error:
        complain(error.line)
        code = error.code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of standard output has seen enough, as ``head`` does (fault 95).
        code = EXIT_OK
    return _flush(code)


def _flush(code: int) -> int:
    """Write what standard output still holds, and return the exit code."""
    if sys.stdout is None:
        # It was closed when the process started.
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more when it exits, and would print a traceback.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            complain(f"standard output cannot be written: {error.strerror}")
            return code or EXIT_FAILED
    return code
