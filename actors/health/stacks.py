"""A timer that takes the stack of a thread which does not go on: the loop's, when something blocks it.

The timer is a thread of Python, which reads the stack while it holds the interpreter's lock. The timer of
``faulthandler`` reads it without the lock, while the frames change, and crashes the process now and then.
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

#: The part of the time that is waited once more when it is over. A process that was stopped runs on within it.
_GRACE = 1 / 6


class StackTimer:
    """Takes the stack of one thread when it was not disarmed in time.

    Code in C that does not give up the interpreter's lock keeps the timer from its turn, and no stack is taken. Nor is
    one if no thread can be started.
    """

    def __init__(self, thread: int) -> None:
        self._watched = thread
        self._changed = threading.Condition()
        #: When the stack is to be taken, on the monotonic clock, and the last wait before; None while it is stopped.
        self._due: float | None = None
        self._grace: float | None = None
        self._stack: Stack | None = None
        #: Whether the thread sleeps without an end.
        self._sleeps_on = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plugind watchdog", daemon=True)
        with suppress(RuntimeError):
            self._thread.start()

    def arm(self, seconds: float) -> None:
        """Take the stack in so many seconds, unless :meth:`disarm` comes before."""
        with self._changed:
            self._grace = seconds * _GRACE
            self._due = time.monotonic() + seconds - self._grace
            if self._sleeps_on:
                self._changed.notify()

    def disarm(self) -> Stack | None:
        """Stop the timer; return the stack if it was taken.

        The thread is not woken up for that: it finds out when it wakes up by itself.
        """
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
                # A thread that has nothing to wait for is woken up by the next start; otherwise it sleeps until the
                # time it knows, although a later one may be set meanwhile: two wake-ups a second are the most.
                self._sleeps_on = left is None
                self._changed.wait(left)

    def _take(self) -> None:
        """Take the stack if the thread does not go on within the grace either.

        After a stop of the whole process both threads run on at once, and the watched one disarms the timer.
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

    A collection of garbage in the middle of that call may deadlock the process before CPython 3.11.5 (gh-106883).
    """
    if not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
