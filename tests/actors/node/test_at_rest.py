"""What a plugin keeps while nothing happens at it: there may be ten thousand of them."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

import trio
from trio.testing import MockClock

from plugind.testing import FakeHandler, FakePlugin, SimulatedNode

PLUGINS = 5


def registrations() -> list[trio.lowlevel.Task]:
    """Return the tasks of the registration actors."""
    found: list[trio.lowlevel.Task] = []
    tasks = [trio.lowlevel.current_root_task()]
    while tasks:
        task = tasks.pop()
        assert task is not None
        tasks.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
        if task.name == "registration":
            found.append(task)
    return found


def waits_of_registrations() -> list[list[str]]:
    """Return for each registration actor the names of the coroutines in which its task waits, the outer ones first."""
    return [list(names_of(task.coro)) for task in registrations()]


def has_scope(task: trio.lowlevel.Task) -> bool:
    """Whether the task waits in a cancel scope of its own."""
    assert task.parent_nursery is not None
    return task._cancel_status is not task.parent_nursery._cancel_status


def names_of(coroutine: Any) -> list[str]:
    """Return the names of the coroutines, the outer ones first, without those of Trio itself."""
    names: list[str] = []
    while isinstance(coroutine, CoroutineType):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return [name for name in names if name != "wait_task_rescheduled"]


AT_REST = ["Registrations._run_one", "_Registration.run"]


async def test_the_actor_of_a_registered_plugin_waits_in_two_coroutines_without_a_scope(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        for number in range(PLUGINS):
            node.plug(f"{number}.sock", FakePlugin("Colour", f"plugin-{number}"))
        await node.settled()
        assert waits_of_registrations() == [AT_REST] * PLUGINS
        assert not any(map(has_scope, registrations()))


async def test_an_actor_at_rest_takes_each_message_and_rests_again(autojump_clock: MockClock) -> None:
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "a"))
        await node.settled()
        first = node.timeline("a.sock")
        for _ in range(2):
            await node.supervisor.retry(node.path("a.sock"))
            await node.settled()
            assert node.timeline("a.sock") == first
            assert waits_of_registrations() == [AT_REST]
        plugin.stop()
        await node.settled()
        assert waits_of_registrations() == []
        assert handler.asked("a") == ["validate", "register", "deregister"]
