"""Finds every suspension of registration actors, and makes disturbance at a chosen one.

A registration is a coroutine. It is driven here by a generator, which sees each value that it yields to Trio: each of
these is a suspension. Nothing lists the ``await`` statements, so the list of them cannot be out of date.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from plugind.actors.registration import actor
from plugind.actors.simulation.faults import InjectedError

#: The functions and lines that a suspended coroutine is in, from the outermost to the innermost.
Place = tuple[tuple[str, int], ...]


class When(enum.Enum):
    """When the disturbance comes."""

    #: As soon as the actor is suspended.
    DURING = "during"
    #: Once what it waits for has come, and before it goes on: everybody else runs until all wait.
    AFTER = "after"


@attrs.define(eq=False)
class Suspensions(trio.abc.Instrument):
    """Counts the suspensions of all actors of a run; at that with number ``at`` there is ``disturbance``."""

    disturbance: Callable[[], None] = lambda: None
    at: int | None = None
    when: When = When.DURING
    #: Whether the actor crashes there, by an error that what it waits for raises.
    crashes: bool = False
    #: Where the actors were suspended, in order, until :attr:`ended`.
    places: list[Place] = attrs.Factory(list)
    #: No suspension counts any more.
    ended: bool = False
    #: The disturbance comes once Trio has suspended the task.
    _due: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Drive all actors that begin within the block."""
        with pytest.MonkeyPatch.context() as patched:
            run = actor.run
            patched.setattr(actor, "run", lambda *given: self._drive(run(*given)))
            trio.lowlevel.add_instrument(self)
            try:
                yield
            finally:
                trio.lowlevel.remove_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Make the disturbance that is due. Before that the task could not be rescheduled."""
        del task
        if self._due:
            self._due = False
            self.disturbance()

    async def _drive(self, coroutine: Coroutine[Any, Any, None]) -> None:
        await self._steps(coroutine)

    @types.coroutine
    def _steps(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731 - changes with each step
        while True:
            try:
                trap = step()
            except StopIteration:
                return
            here = not self.ended and len(self.places) == self.at
            if not self.ended:
                self.places.append(place_of(coroutine))
            self._due = here and self.when is When.DURING
            answer = yield trap
            if here and self.when is When.AFTER:
                self.disturbance()
                yield from _hold().__await__()
            if here and self.crashes:
                step = lambda: coroutine.throw(InjectedError())  # noqa: E731
            else:
                step = lambda answer=answer: coroutine.send(answer)  # type: ignore[misc]  # noqa: E731


async def _hold() -> None:
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()


def place_of(coroutine: Any) -> Place:
    """Return where a coroutine is suspended."""
    place: list[tuple[str, int]] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        place.append((frame.f_code.co_qualname, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return tuple(place)
