"""A thread for calls that may hang: it makes them one at a time, in the order in which they were asked for.

``trio.to_thread`` takes another thread for each call as it comes, with names, limits and context variables, which costs
the loop three times as much.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar, cast

import attrs
import outcome
import trio

T = TypeVar("T")


@attrs.define(eq=False)
class _Call(Generic[T]):
    """A call, and the task that waits for its result; None once it waits no more."""

    call: Callable[[], T]
    task: trio.lowlevel.Task | None
    token: trio.lowlevel.TrioToken

    def tell(self, result: outcome.Outcome[T]) -> None:
        """Have the result given to whoever waits, from the thread."""
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self._settle, result)

    def _settle(self, result: outcome.Outcome[T]) -> None:
        """Give the result to whoever waits, in the loop."""
        if self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task, result)

    def abandon(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        """Wait no more."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class WorkerThread:
    """The thread; it begins with the first call, and ends with :meth:`close` or the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None
        #: How many calls were asked for, and how many are over.
        self._asked = 0
        self._over = 0

    @property
    def is_at_work(self) -> bool:
        """Whether a call is under way, or waits for one that is."""
        return self._asked != self._over

    async def run(self, call: Callable[[], T]) -> T:
        """Make ``call`` after those that were asked for before, and return what it returns.

        Whoever is cancelled has not asked for a call that has not begun; one that has begun goes on.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        asked = _Call(call, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        if self._thread is None:
            self._thread = Thread(target=self._make_calls, name=self._name, daemon=True)
            self._thread.start()
        self._asked += 1
        self._calls.put(asked)
        return cast(T, await trio.lowlevel.wait_task_rescheduled(asked.abandon))

    def _make_calls(self) -> None:
        while (asked := self._calls.get()) is not None:
            result = outcome.capture(asked.call) if asked.task is not None else None
            self._over += 1  # Before anybody hears of the result, and may want to close what was used.
            if result is not None:
                asked.tell(result)
            del asked, result  # What they hold is not kept until the next one.

    def close(self) -> None:
        """Let the thread end after the calls that were asked for. There are no others."""
        self._calls.put(None)
