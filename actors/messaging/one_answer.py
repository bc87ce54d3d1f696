"""Where one task waits for one answer."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import outcome
import trio

T = TypeVar("T")


class OneAnswer(Generic[T]):
    """What a memory channel with one place does, for one answer and in a fifth of the time: it is an address."""

    __slots__ = ("_over", "_result", "_task")

    def __init__(self) -> None:
        self._result: outcome.Outcome[T] | None = None
        self._task: trio.lowlevel.Task | None = None
        #: Nobody waits any more.
        self._over = False

    def send_nowait(self, answer: T, /) -> None:
        """Give the answer.

        Raises:
          trio.BrokenResourceError: if nobody waits for it any more.
          trio.WouldBlock: if there is one.
        """
        if self._over:
            raise trio.BrokenResourceError("nobody waits for the answer any more")
        if self._result is not None:
            raise trio.WouldBlock
        self._settle(outcome.Value(answer))

    def end(self) -> None:
        """Let whoever waits get no answer any more."""
        if self._result is None and not self._over:
            self._settle(outcome.Error(trio.EndOfChannel("there will be no answer")))

    def _settle(self, result: outcome.Outcome[T]) -> None:
        self._result = result
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task, result)

    async def receive(self) -> T:
        """Return the answer, once.

        Raises:
          trio.EndOfChannel: if there will be none.
        """
        try:
            if self._result is not None:
                await trio.lowlevel.checkpoint()
                return self._result.unwrap()
            self._task = trio.lowlevel.current_task()
            return cast(T, await trio.lowlevel.wait_task_rescheduled(self._abort))
        finally:
            self._over = True

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
