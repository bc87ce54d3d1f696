"""A thread for calls that may hang. It makes them one at a time, in the order of the requests.

``trio.to_thread`` costs the loop three times as much, for the choice of a thread, names, limits and context variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar, cast

import attrs
import outcome
import trio

T = TypeVar("T")


class _Interrupt:
    """A descriptor that the thread writes and a task waits for. It is closed when both have dropped it."""

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        """Open the descriptor.

        Raises:
          OSError: if no descriptors are left.
        """
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


@attrs.define(eq=False)
class _Job(Generic[T]):
    """A call for the thread, and the task that waits for it."""

    call: Callable[[], T]
    interrupt: _Interrupt | None
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken
    is_abandoned: bool = False
    result: outcome.Outcome[T] | None = None

    def tell(self, result: outcome.Outcome[T]) -> None:
        """Give the result to the waiting task, from the thread."""
        self.result = result
        if self.interrupt is not None:
            os.eventfd_write(self.interrupt.descriptor, 1)
            return
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self._settle, result)

    def _settle(self, result: outcome.Outcome[T]) -> None:
        """Give the result to the waiting task, in the loop."""
        if not self.is_abandoned:
            trio.lowlevel.reschedule(self.task, result)

    def abandon(self, _: object) -> trio.lowlevel.Abort:
        """Stop waiting."""
        self.is_abandoned = True
        return trio.lowlevel.Abort.SUCCEEDED


class WorkerThread:
    """The thread. It starts with the first call, and ends with :meth:`close` or the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._asked = 0
        self._over = 0
        #: Reports the end of one call; None while a task waits for it. The end of calls behind that one is reported by
        #: the loop's own queue, which costs three times as much.
        self._interrupt = _new_interrupt()

    @property
    def is_at_work(self) -> bool:
        """Whether calls are under way or wait."""
        return self._asked != self._over

    async def run(self, call: Callable[[], T]) -> T:
        """Make ``call`` after the earlier ones, and return its result.

        A cancellation withdraws a call that has not begun. A call that has begun goes on.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        interrupt, self._interrupt = self._interrupt, None
        asked = _Job(call, interrupt, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        if self._thread is None:
            self._thread = Thread(target=self._make_calls, name=self._name, daemon=True)
            self._thread.start()
        self._asked += 1
        self._calls.put(asked)
        if interrupt is None:
            return cast(T, await trio.lowlevel.wait_task_rescheduled(asked.abandon))
        return await self._wait_for(asked, interrupt)

    async def _wait_for(self, asked: _Job[T], interrupt: _Interrupt) -> T:
        try:
            await trio.lowlevel.wait_readable(interrupt.descriptor)
        except BaseException:
            asked.is_abandoned = True
            self._interrupt = _new_interrupt()  # The old one will be written when nobody waits.
            raise
        os.eventfd_read(interrupt.descriptor)
        self._interrupt = interrupt
        assert asked.result is not None
        return asked.result.unwrap()

    def _make_calls(self) -> None:
        while (asked := self._calls.get()) is not None:
            result = None if asked.is_abandoned else outcome.capture(asked.call)
            self._over += 1  # Before a caller has the result, and may want to close what was used.
            if result is not None:
                asked.tell(result)
            del asked, result  # Not kept until the next call.

    def close(self) -> None:
        """Let the thread end after the requested calls. No calls may follow."""
        self._calls.put(None)


def _new_interrupt() -> _Interrupt | None:
    """Return a new interrupt; None if no descriptors are left."""
    try:
        return _Interrupt()
    except OSError:
        return None
