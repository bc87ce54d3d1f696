"""Crashes of the lease actor and of its parts: what callers, owners and plugins know stays true (fault 85)."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.leases.actor import CRASHED
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.lease_owners import MemoryOwnerProcesses
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book
from plugind.protocol.leases.effects import Change
from plugind.protocol.leases.messages import Failure, new_ticket
from plugind.protocol.leases.values import (
    ConnectionOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.protocol.messages.addresses import Address
from plugind.protocol.plugins.devices import Device
from plugind.testing import FakePlugin, SimulatedNode

GPU = "vendor.com/gpu"
CONNECTION, NOBODY = ConnectionOwner("a hash"), NoOwner()


@attrs.define
class Caller:
    """Somebody who asks the lease actor, as the status socket does."""

    node: SimulatedNode
    ticket: int = attrs.field(factory=new_ticket)

    async def ask(
        self, owner: Owner, name: str | None = None, *, count: int = 1, ended: Address[Lease] | None = None
    ) -> Lease | Failure:
        reply, answer = trio.open_memory_channel[Lease | Failure](1)
        request = Request((Wanted(GPU, count),))
        self.send(m.LeaseAsked(request, owner, 500, self.ticket, reply, name, ended=ended))
        return await answer.receive()

    def leave(self) -> None:
        self.send(m.AskerLeft(self.ticket))

    def send(self, message: m.LeasesMessage) -> None:
        self.node.supervisor.internals.leases.inbox.send_nowait(message)


async def shown(node: SimulatedNode) -> dict[str, LeaseState]:
    return {lease.id: lease.state for lease in await node.supervisor.leases()}


@attrs.define
class ScriptedStore(MemoryLeaseStore):
    """A store that a script hears of, and can break."""

    #: Called after each write.
    then: Callable[[], None] = lambda: None
    breaks: bool = False

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a bug")
        conflicts = await MemoryLeaseStore.write_leases(self, groups)
        self.then()
        return conflicts


@attrs.define(eq=False)
class ScriptedProcesses(MemoryOwnerProcesses):
    """Processes of which a script can lose the ends."""

    breaks: bool = False

    async def ended(self) -> Sequence[int]:
        ended = await MemoryOwnerProcesses.ended(self)
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a bug")
        return ended


@attrs.define
class Rig:
    """A simulated node with two devices, and what a script can break."""

    node: SimulatedNode
    store: ScriptedStore
    processes: ScriptedProcesses


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    node, store, processes = SimulatedNode(), ScriptedStore(lasting=True), ScriptedProcesses()
    node.lease_store, node.owners, node.network.owners = store, processes, processes
    processes.start(os.getpid())
    devices = FakeDevices((Device("gpu-0"), Device("gpu-1")))
    node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))
    async with node:
        await node.settled()
        yield Rig(node, store, processes)


async def crash(node: SimulatedNode) -> None:
    node.crash("leases")
    await trio.sleep(1.0)


async def test_a_connection_goes_on_to_own_its_lease(rig: Rig, autojump_clock: object) -> None:
    """It need not come back: it is still there. Its end is the end of the lease."""
    caller = Caller(rig.node)
    assert isinstance(await caller.ask(CONNECTION, "a"), Lease)
    await crash(rig.node)
    await trio.sleep(120.0)
    assert await shown(rig.node) == {"a": LeaseState.HELD}
    await crash(rig.node)
    caller.leave()
    assert await shown(rig.node) == {}


async def test_an_answer_that_nobody_has_taken_is_taken_back_after_a_crash(rig: Rig, autojump_clock: object) -> None:
    """The caller left while its answer was under way. It had given no name, so nobody can ask for the lease again."""
    unnamed, named = Caller(rig.node), Caller(rig.node)
    assert isinstance(await unnamed.ask(NOBODY), Lease)
    assert isinstance(await named.ask(NOBODY, "named"), Lease)
    await crash(rig.node)
    unnamed.leave()
    named.leave()
    assert await shown(rig.node) == {"named": LeaseState.HELD}


async def test_a_lease_of_which_nobody_was_notified_ends(rig: Rig, autojump_clock: object) -> None:
    """It was written as held when the actor crashed; its caller is told to ask again."""

    def crash_once_held() -> None:
        if any(lease.state is LeaseState.HELD for lease in rig.store.leases.values()):
            rig.store.then = lambda: None
            rig.node.crash("leases")

    rig.store.then = crash_once_held
    answer = await Caller(rig.node).ask(NOBODY)
    assert isinstance(answer, Failure)
    assert answer.text == CRASHED
    await rig.node.settled()
    assert await shown(rig.node) == {}
    assert rig.store.leases == {}
    assert isinstance(await Caller(rig.node).ask(NOBODY, count=2), Lease)


async def test_times_go_on_through_a_crash(rig: Rig, autojump_clock: object) -> None:
    await Caller(rig.node).ask(TimeOwner(60.0), "a")
    await trio.sleep(30.0)
    await crash(rig.node)
    await trio.sleep(28.0)
    assert await shown(rig.node) == {"a": LeaseState.HELD}
    await trio.sleep(2.0)
    assert await shown(rig.node) == {}


async def test_subscribers_hear_of_what_a_crash_has_ended(rig: Rig, autojump_clock: object) -> None:
    await Caller(rig.node).ask(NOBODY, "a", count=2)
    waiting = Caller(rig.node)
    reply, answer = trio.open_memory_channel[Lease | Failure](1)
    async with rig.node.supervisor.watch_leases() as changes:
        await anext(changes)
        request = Request((Wanted(GPU, 1),))
        waiting.send(m.LeaseAsked(request, NOBODY, 500, waiting.ticket, reply, "b", math.inf))
        await wait_all_tasks_blocked()
        await crash(rig.node)
        assert isinstance(await answer.receive(), Failure)
        seen = list[tuple[str, LeaseState]]()
        while not seen or seen[-1][1] is not LeaseState.GONE:
            lease = await anext(changes)
            seen.append((lease.id, lease.state))
    assert (seen[0], seen[-1]) == (("b", LeaseState.QUEUED), ("b", LeaseState.GONE))
    assert await shown(rig.node) == {"a": LeaseState.HELD}


async def test_a_reader_whose_question_crashes_the_actor_is_answered_by_the_next_one(
    rig: Rig, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: a question that crashes each actor is not asked again."""
    snapshot, crashes = Book.snapshot, list[str]()

    def crash_once(self: Book, now: float, problem: str | None = None) -> m.LeasesSnapshot:
        if not crashes:
            crashes.append("a bug")
            raise RuntimeError("a bug")
        return snapshot(self, now, problem)

    monkeypatch.setattr(Book, "snapshot", crash_once)
    with trio.fail_after(10):
        assert await shown(rig.node) == {}
    assert crashes


@pytest.mark.parametrize("part", ["store", "processes"])
async def test_a_crash_of_a_part_ends_no_lease(
    rig: Rig, autojump_clock: object, part: Literal["store", "processes"]
) -> None:
    """What was under way then fails, or is done by the next one; nothing is left of it."""
    owner = ProcessOwner(rig.processes.start(42))
    assert isinstance(await Caller(rig.node).ask(owner, "a"), Lease)
    if part == "store":
        rig.store.breaks = True
        failure = await Caller(rig.node).ask(NOBODY, "b")
        assert isinstance(failure, Failure)
        assert "plugind has stopped amid a write" in failure.text
    else:
        rig.processes.breaks = True
        assert isinstance(await Caller(rig.node).ask(ProcessOwner(rig.processes.start(43)), "b"), Lease)
        rig.processes.end(43)
    await trio.sleep(5.0)
    assert await shown(rig.node) == {"a": LeaseState.HELD}
    rig.processes.end(42)
    await trio.sleep(5.0)
    assert await shown(rig.node) == {}
    assert rig.store.leases == {}


# --- the end of the node ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_leases_stay_held_while_no_daemon_runs(rig: Rig, autojump_clock: object, how: str) -> None:
    """Their devices are in use: the next daemon gives them to nobody else, and hears of the ends of owners."""
    await Caller(rig.node).ask(NOBODY, "nobody's")
    await Caller(rig.node).ask(ProcessOwner(rig.processes.start(42)), "a process's")
    await (rig.node.stop() if how == "stop" else rig.node.kill())
    assert set(rig.store.leases) == {"nobody's", "a process's"}
    await rig.node.start()
    await rig.node.settled()
    assert isinstance(await Caller(rig.node).ask(NOBODY), Failure)
    rig.processes.end(42)
    await trio.sleep(1.0)
    assert await shown(rig.node) == {"nobody's": LeaseState.HELD}


async def test_what_ended_while_no_daemon_ran_has_ended(rig: Rig, autojump_clock: object) -> None:
    """An owner, also if another process has its pid by now, and a part of a time."""
    await Caller(rig.node).ask(ProcessOwner(rig.processes.start(42)), "a process's")
    await Caller(rig.node).ask(TimeOwner(60.0), "a time's")
    await rig.node.kill()
    rig.processes.start(42)
    await trio.sleep(50.0)
    await rig.node.start()
    await trio.sleep(1.0)
    assert await shown(rig.node) == {"a time's": LeaseState.HELD}
    await trio.sleep(10.0)
    assert await shown(rig.node) == {}


async def test_what_was_released_before_a_stop_is_not_held_after_it(rig: Rig, autojump_clock: object) -> None:
    """Also if it could not be written at once, since the disk failed for a moment."""
    await Caller(rig.node).ask(NOBODY, "a")
    rig.store.breaks = True
    await rig.node.supervisor.release("a")
    await rig.node.stop()
    assert rig.store.leases == {}
