"""Handler actors are added, removed and retired. Each test keeps them as children in a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.handlers.by_type import HandlerActors
from plugind.actors.handlers.calls import CallConfig
from plugind.actors.inboxes import Inboxes
from plugind.actors.simulation import FakeHandler
from plugind.protocol import messages as m
from plugind.protocol.logs import SILENT
from plugind.protocol.plugins import InstancePolicy


def made() -> tuple[HandlerActors, list[tuple[str, Callable[[], Awaitable[None]]]]]:
    children: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    config = CallConfig(1.0)
    return HandlerActors(config, lambda name, run: children.append((name, run)), Inboxes(10.0, SILENT)), children


async def ends(run: Callable[[], Awaitable[None]]) -> bool:
    """Return whether the actor ends by itself within a moment."""
    with trio.move_on_after(1.0) as scope:
        await run()
    return not scope.cancelled_caught


async def test_an_added_handler_registers_plugins_under_its_policy(autojump_clock: MockClock) -> None:
    actors, children = made()
    added = actors.add("T", FakeHandler(instances=InstancePolicy.REJECT))
    assert added == m.HandlerAdded("T", added.handler, InstancePolicy.REJECT)
    assert (actors.added, actors.running, actors.address("T")) == ((added,), 1, added.handler)
    assert "T" in actors
    ((name, run),) = children
    assert name.startswith("handler T ")
    assert not await ends(run)


async def test_a_removed_handler_runs_until_it_retires(autojump_clock: MockClock) -> None:
    """Behaviour 29: its plugins have to be deregistered first."""
    actors, ((_, run),) = _one()
    (added,) = actors.added
    retired = actors.remove("T")
    assert ("T" in actors, actors.address("T"), actors.added, actors.running) == (False, None, (), 1)
    assert not await ends(run)
    assert not retired.is_set()
    actors.retire(added.handler)
    assert retired.is_set()
    assert actors.running == 0
    assert await ends(run)


def _one() -> tuple[HandlerActors, list[tuple[str, Callable[[], Awaitable[None]]]]]:
    actors, children = made()
    actors.add("T", FakeHandler())
    return actors, children


async def test_a_handler_that_was_replaced_while_it_was_removed_retires_by_itself() -> None:
    """The removal of the first handler returns when that handler has retired; the second one is not affected."""
    actors, _ = _one()
    (first,) = actors.added
    first_retired = actors.remove("T")
    second = actors.add("T", FakeHandler())
    actors.retire(first.handler)
    assert first_retired.is_set()
    assert (actors.added, actors.running) == ((second,), 1)
    second_retired = actors.remove("T")
    assert not second_retired.is_set()


async def test_a_new_reconciler_takes_over_current_handlers_and_not_removed_ones() -> None:
    """Fault 85: the returned functions retire the removed handlers, each of them once."""
    actors, _ = _one()
    kept = actors.add("U", FakeHandler())
    retired = actors.remove("T")
    (retire,) = actors.take_removed()
    assert actors.take_removed() == []
    assert (actors.added, actors.running) == ((kept,), 1)
    assert not retired.is_set()
    retire()
    assert retired.is_set()


async def test_removing_a_missing_handler_is_an_error() -> None:
    actors, _ = made()
    with pytest.raises(KeyError, match="T"):
        actors.remove("T")
