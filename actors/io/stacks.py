"""Timers that take the stack of a thread which does not go on: the loop's, when something blocks it.

The C timer of ``faulthandler`` writes the stacks even while code in C holds the interpreter's lock. A process has one
such timer, which pytest and other programs use for themselves, so only the daemon's own process takes it. In other
processes a thread of Python does the same, as long as the code that blocks gives it a turn.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from typing import Protocol

from ...protocol.stacks import Frame, Stack, parse


class StackTimer(Protocol):
    """Takes the stack of one thread when it was not disarmed in time."""

    def arm(self, seconds: float) -> None:
        """Take the stack in so many seconds, unless :meth:`disarm` comes before."""

    def disarm(self) -> Stack | None:
        """Stop the timer; return the stack if it was taken. It is empty if it cannot be read."""

    def close(self) -> None:
        """Stop the timer for good."""


#: Seconds for which the timer runs at most when it is tried out.
_TRIAL = 3600.0
#: More than a hundred threads are not written by ``faulthandler``, and a stack has a hundred frames at most.
_MOST = 1 << 20


class FaulthandlerTimer:
    """The C timer of ``faulthandler``, which writes to a file without a name. The process must not use it otherwise.

    Raises:
      OSError: if there can be no such file.
      RuntimeError: if the timer cannot be started.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._file = _unnamed_file()
        try:
            # A trial: whatever keeps the timer from its start is found out here, where there is something else.
            self.arm(_TRIAL)
            faulthandler.cancel_dump_traceback_later()
        except BaseException:
            os.close(self._file)
            raise

    def arm(self, seconds: float) -> None:
        """Start the timer; each start is a new thread in C, which takes some 50 µs."""
        faulthandler.dump_traceback_later(seconds, file=self._file)

    def disarm(self) -> Stack | None:
        """Stop the timer, and read what it has written."""
        # This waits for a dump that has begun, so that all of it is read.
        faulthandler.cancel_dump_traceback_later()
        if not os.fstat(self._file).st_size:
            return None
        text = os.pread(self._file, _MOST, 0).decode(errors="replace")
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)
        return parse(text, self._thread)

    def close(self) -> None:
        """Stop the timer and close the file."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self._file)


def _unnamed_file() -> int:
    """Open a file without a name: in memory, or where that is not possible among the temporary files.

    Raises:
      OSError: if neither is possible.
    """
    with suppress(OSError, AttributeError):  # An old kernel, a seccomp filter, or a C library without the call.
        return os.memfd_create("plugind-stacks", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="plugind-stacks-")
    os.unlink(path)
    return descriptor


class ThreadTimer:
    """A thread of Python that takes the stack."""

    def __init__(self, thread: int) -> None:
        self._watched = thread
        self._changed = threading.Condition()
        #: When the stack is to be taken, on the monotonic clock; None while the timer is stopped.
        self._due: float | None = None
        self._stack: Stack | None = None
        #: Whether the thread sleeps without an end.
        self._sleeps_on = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plugind watchdog", daemon=True)
        self._thread.start()

    def arm(self, seconds: float) -> None:
        """Start the timer."""
        with self._changed:
            self._due = time.monotonic() + seconds
            if self._sleeps_on:
                self._changed.notify()

    def disarm(self) -> Stack | None:
        """Stop the timer. The thread is not woken up for that: it finds out when it wakes up by itself."""
        with self._changed:
            self._due = None
            stack, self._stack = self._stack, None
            return stack

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    self._due, self._stack = None, _stack_of(self._watched)
                    continue
                # A thread that has nothing to wait for is woken up by the next start; otherwise it sleeps until the
                # time it knows, although a later one may be set meanwhile: two wake-ups a second are the most.
                self._sleeps_on = left is None
                self._changed.wait(left)


class TimeOnly:
    """What is left where neither timer can be had: whether the time has passed, and never the stack."""

    def __init__(self) -> None:
        self._due: float | None = None

    def arm(self, seconds: float) -> None:
        """Start to measure."""
        self._due = time.monotonic() + seconds

    def disarm(self) -> Stack | None:
        """Return an empty stack if the time has passed."""
        due, self._due = self._due, None
        return () if due is not None and time.monotonic() >= due else None

    def close(self) -> None:
        """Do nothing."""


def best_timer(thread: int) -> StackTimer:
    """Return the C timer, or what can be had instead: the report that something blocked matters more than its stack."""
    for make in (FaulthandlerTimer, ThreadTimer):
        with suppress(OSError, RuntimeError):
            return make(thread)
    return TimeOnly()


def thread_timer(thread: int) -> StackTimer:
    """Return the timer that is a thread, or if none can be started, one without stacks."""
    with suppress(RuntimeError):
        return ThreadTimer(thread)
    return TimeOnly()


def _stack_of(thread: int) -> Stack:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ()
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    return tuple(Frame(call.filename, str(call.lineno), call.name) for call in calls)
