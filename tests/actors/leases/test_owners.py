"""The owners of leases: each lease is told once that its process has ended, or its time is over."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.leases.owners import Owners
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.protocol.leases.effects import StopOwner, WatchOwner, WatchPlugin
from plugind.protocol.leases.messages import OwnerEnded, PluginEnded
from plugind.protocol.leases.values import ConnectionOwner, ContainerOwner, NoOwner, Owner, ProcessOwner, TimeOwner


@attrs.define
class Setup:
    processes: MemoryOwnerProcesses
    clock: MemoryBootClock
    owners: Owners
    messages: trio.MemoryReceiveChannel[OwnerEnded | PluginEnded]

    def watch(self, lease: str, owner: Owner) -> None:
        self.owners.watch(WatchOwner(lease, owner))

    async def ended(self) -> list[str]:
        return [message.id for message in await self.messages_until_now() if isinstance(message, OwnerEnded)]

    async def messages_until_now(self) -> list[OwnerEnded | PluginEnded]:
        await wait_all_tasks_blocked()
        found: list[OwnerEnded | PluginEnded] = []
        with suppress(trio.WouldBlock):
            while True:
                found.append(self.messages.receive_nowait())
        return found

    def in_seconds(self, seconds: float) -> TimeOwner:
        return TimeOwner(seconds, self.clock.now() + round(seconds * 1e9))


@asynccontextmanager
async def running(most: int = 1000) -> AsyncIterator[Setup]:
    processes, clock = MemoryOwnerProcesses(most=most), MemoryBootClock()
    send, messages = trio.open_memory_channel[OwnerEnded | PluginEnded](math.inf)
    owners = Owners(processes, clock, send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owners.run)
        yield Setup(processes, clock, owners, messages)
        nursery.cancel_scope.cancel()


async def test_all_leases_of_a_process_end_with_it(autojump_clock: object) -> None:
    """They cost one watch. A lease that is forgotten is not reported."""
    async with running() as setup:
        owner, other = setup.processes.start(991), setup.processes.start(992)
        for number in range(10_000):
            setup.watch(f"l{number:05}", ProcessOwner(owner))
        setup.watch("container", ContainerOwner(owner))
        setup.watch("other", ProcessOwner(other))
        setup.owners.forget("l00000")
        assert setup.processes.watched == 2
        setup.processes.end(991)
        found = await setup.ended()
        assert set(found) == {"container", *(f"l{number:05}" for number in range(1, 10_000))}
        assert len(found) == 10_000
        assert await setup.ended() == []
        setup.owners.forget("other")
        assert setup.processes.watched == 0


async def test_one_that_has_ended_before_is_told_at_once(autojump_clock: object) -> None:
    """Also if another process has its pid by now, and if it was one of another boot."""
    async with running() as setup:
        first = setup.processes.start(991)
        second = setup.processes.start(991)
        setup.watch("old", ProcessOwner(first))
        setup.watch("new", ProcessOwner(second))
        setup.watch("boot", ProcessOwner(attrs.evolve(second, boot_id="another boot")))
        assert await setup.ended() == ["old", "boot"]


async def test_a_lease_is_bound_to_another_owner(autojump_clock: object) -> None:
    """A container that is restarted within its grace has another init."""
    async with running() as setup:
        first, second = setup.processes.start(1), setup.processes.start(2)
        setup.watch("a", ContainerOwner(first))
        setup.watch("a", ContainerOwner(second))
        setup.processes.end(1)
        assert await setup.ended() == []
        setup.processes.end(2)
        assert await setup.ended() == ["a"]


async def test_without_descriptors_processes_are_looked_at_every_second(autojump_clock: object) -> None:
    """As soon as there are descriptors they are watched."""
    async with running(most=1) as setup:
        processes = [setup.processes.start(pid) for pid in (1, 2, 3)]
        for process in processes:
            setup.watch(f"of {process.pid}", ProcessOwner(process))
        setup.processes.end(3)
        assert await setup.ended() == []
        await trio.sleep(1)
        assert await setup.ended() == ["of 3"]
        setup.processes.end(1)
        await trio.sleep(1)
        setup.processes.end(2)
        assert await setup.ended() == ["of 1", "of 2"]


async def test_a_time_ends_also_while_the_machine_is_suspended(autojump_clock: object) -> None:
    """A lease of an hour does not last a night longer."""
    async with running() as setup:
        setup.watch("hour", setup.in_seconds(3600))
        setup.watch("minute", setup.in_seconds(60))
        await trio.sleep(59)
        assert await setup.ended() == []
        await trio.sleep(1)
        assert await setup.ended() == ["minute"]
        setup.clock.suspend(8 * 3600)
        assert await setup.ended() == ["hour"]


@pytest.mark.parametrize("owner", [NoOwner(), ContainerOwner(), ConnectionOwner("hash"), TimeOwner(60.0)])
async def test_other_owners_are_not_watched(owner: Owner, autojump_clock: object) -> None:
    async with running() as setup:
        setup.watch("a", owner)
        await trio.sleep(10_000)
        assert await setup.ended() == []


async def test_the_process_of_a_lease_is_stopped_if_it_is_watched(autojump_clock: object) -> None:
    """One that could not be watched is tried once more; nothing is sent to a pid."""
    async with running(most=1) as setup:
        first, second = setup.processes.start(991), setup.processes.start(992)
        setup.watch("first", ProcessOwner(first))
        setup.watch("second", ProcessOwner(second))
        setup.owners.stop(StopOwner("first", first, 0, "unhealthy"))
        with pytest.raises(OSError, match="it is not watched by a descriptor"):
            setup.owners.stop(StopOwner("second", second, 0, "unhealthy"))
        setup.owners.forget("first")
        setup.owners.stop(StopOwner("second", second, 1000, "unhealthy"))
        setup.owners.stop(StopOwner("first", first, 0, "unhealthy"))
        assert setup.processes.stopped == [(first, 0), (second, 1000)]


KEY = ("/r/a.sock", 1)


async def test_the_end_of_a_plugin_is_reported_once(autojump_clock: object) -> None:
    """Beside the leases that its process owns."""
    async with running() as setup:
        process = setup.processes.start(7)
        setup.owners.watch_plugin(WatchPlugin(KEY, 7, is_cut=False))
        setup.watch("a", ProcessOwner(process))
        setup.processes.end(7)
        assert await setup.messages_until_now() == [PluginEnded(KEY), OwnerEnded("a", ProcessOwner(process))]


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_listener_that_is_not_there_has_ended_if_its_connection_has(
    is_cut: bool, autojump_clock: object
) -> None:
    """Otherwise another process serves with its listener."""
    async with running() as setup:
        setup.owners.watch_plugin(WatchPlugin(KEY, 7, is_cut))
        assert await setup.messages_until_now() == ([PluginEnded(KEY)] if is_cut else [])


async def test_a_plugin_that_is_forgotten_is_not_watched(autojump_clock: object) -> None:
    async with running() as setup:
        setup.processes.start(7)
        setup.owners.watch_plugin(WatchPlugin(KEY, 7, is_cut=True))
        setup.owners.forget(KEY)
        assert setup.processes.watched == 0
