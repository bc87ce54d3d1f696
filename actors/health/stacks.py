"""A timer that takes the stack of a thread that is blocked, such as the loop's.

The timer is a Python thread, which holds the interpreter's lock while it reads the stack. The timer of ``faulthandler``
reads it without the lock, while the frames change, and sometimes crashes the process.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import FrameType

from ...protocol.health.stacks import Frame, Stack

#: The part of the time that is added once after its end, in which a process that was stopped can go on.
_GRACE = 1 / 6


class StackTimer:
    """Takes the stack of one thread when it was not disarmed in time.

    No stack is taken while C code holds the interpreter's lock, or if no thread can be started.
    """

    def __init__(self, thread: int) -> None:
        self._watched = thread
        self._changed = threading.Condition()
        #: When to take the stack, on the monotonic clock, and the added time; None while the timer is stopped.
        self._due: float | None = None
        self._grace: float | None = None
        self._stack: Stack | None = None
        #: Whether the thread sleeps without a deadline.
        self._sleeps_on = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plugind watchdog", daemon=True)
        with suppress(RuntimeError):
            self._thread.start()

    def arm(self, seconds: float) -> None:
        """Take the stack in ``seconds``, unless :meth:`disarm` is called before."""
        with self._changed:
            self._grace = seconds * _GRACE
            self._due = time.monotonic() + seconds - self._grace
            if self._sleeps_on:
                self._changed.notify()

    def disarm(self) -> Stack | None:
        """Stop the timer, without waking its thread; return the stack if it was taken."""
        with self._changed:
            self._due = None
            stack, self._stack = self._stack, None
            return stack

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    self._take()
                    continue
                # Without a deadline the thread is woken by the next start. Otherwise it sleeps until the deadline that
                # it knows, even if a later one is set: that makes at most two wake-ups a second.
                self._sleeps_on = left is None
                self._changed.wait(left)

    def _take(self) -> None:
        """Take the stack if the added time is over, too.

        When a stopped process continues, both threads run, and the watched one disarms the timer.
        """
        grace, self._grace = self._grace, None
        if grace is not None:
            self._due = time.monotonic() + grace
        else:
            self._due, self._stack = None, _stack_of(self._watched)


def _stack_of(thread: int) -> Stack:
    frame = _frames().get(thread)
    if frame is None:
        return ()
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    return tuple(Frame(call.filename, str(call.lineno), call.name) for call in calls)


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread.

    Before CPython 3.11.5 a garbage collection during the call may deadlock the process (gh-106883).
    """
    if not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
