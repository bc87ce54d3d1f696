"""The lease actor with its parts, as health and metrics see it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.io.node_access import NodeAccess
from plugind.actors.leases.actor import BATCH
from plugind.actors.leases.cdi_writer import MemoryCdiStore
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.leases.unit import LeasePorts, LeaseUnit
from plugind.actors.simulation.device_nodes import MemoryNodes
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.protocol.errors import StateError
from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book
from plugind.protocol.leases.config import LeasesConfig
from plugind.protocol.leases.replies import Failure, LeasesSnapshot, Problem
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, NoOwner
from plugind.protocol.logs.lines import SILENT
from plugind.tests.protocol.leases.script import GPU, request


@asynccontextmanager
async def running(store: MemoryLeaseStore, files: MemoryCdiStore | None = None) -> AsyncIterator[LeaseUnit]:
    numbers, cdi = itertools.count(1), files or MemoryCdiStore()
    ports = LeasePorts(
        MemoryOwnerProcesses(), MemoryBootClock(), lambda _: cdi, trio.current_time, lambda: next(numbers)
    )
    unit = LeaseUnit(
        store, lambda: ports, LeasesConfig(), SILENT, operators=frozenset({0}), access=NodeAccess(MemoryNodes)
    )
    await unit.open()
    async with trio.open_nursery() as nursery:
        for run in unit.parts.values():
            nursery.start_soon(run)
        await wait_all_tasks_blocked()
        yield unit
        nursery.cancel_scope.cancel()
    unit.close()


async def snapshot(unit: LeaseUnit) -> LeasesSnapshot:
    reply, answer = trio.open_memory_channel[LeasesSnapshot](1)
    unit.inbox.send_nowait(m.LeasesAsked(reply))
    return await answer.receive()


async def test_health_says_that_devices_are_withheld_and_why(autojump_clock: MockClock) -> None:
    async with running(MemoryLeaseStore(withheld="the file with the leases is lost")) as unit:
        assert unit.inbox.read().wrong == "all devices are withheld: the file with the leases is lost"
        assert (await snapshot(unit)).withheld == "the file with the leases is lost"
        reply, answer = trio.open_memory_channel[Failure | None](1)
        unit.inbox.send_nowait(m.RecoverAsked(0, reply))
        assert await answer.receive() is None
        await wait_all_tasks_blocked()
        assert unit.inbox.read().wrong is None
        assert (await snapshot(unit)).withheld is None


async def test_one_lease_is_shown_without_all_others(autojump_clock: MockClock) -> None:
    lease = Lease("a", 0, request((GPU, 1)), NoOwner(), LeaseState.HELD, 1.5, {GPU: ("GPU-0",)})
    async with running(MemoryLeaseStore(leases={"a": lease})) as unit:
        reply, answer = trio.open_memory_channel[Lease | Failure](2)
        unit.inbox.send_nowait(m.ShowAsked("a", reply))
        unit.inbox.send_nowait(m.ShowAsked("b", reply))
        assert await answer.receive() == lease
        assert await answer.receive() == Failure(Problem.UNKNOWN, "there is no lease b")


async def test_many_leases_are_taken_up_in_steps_of_the_loop(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 of them blocked the loop for 150 ms."""
    start, steps = Book.start, list[int]()

    def counted(book: Book, kept: m.Kept, now: float) -> list[e.Effect]:
        steps.append(len(kept.leases))
        return start(book, kept, now)

    monkeypatch.setattr(Book, "start", counted)
    names = [f"{number:03}" for number in range(300)]
    kept = {
        name: Lease(name, 0, request((GPU, 1)), NoOwner(), LeaseState.HELD, 0.0, {GPU: (name,)}, Answer())
        for name in names
    }
    async with running(MemoryLeaseStore(kept, lasting=True)) as unit:
        assert [lease.id for lease in (await snapshot(unit)).leases] == names
    assert (sum(steps), max(steps)) == (300, BATCH)


class FullStore(MemoryLeaseStore):
    """A store that can be read, and not be written."""

    async def begin(self) -> None:
        raise StateError("the disk is full")


async def test_a_snapshot_says_for_metrics_that_leases_cannot_be_kept(autojump_clock: MockClock) -> None:
    async with running(FullStore()) as unit:
        found = await snapshot(unit)
    assert (found.problem, found.state_fails, found.state_failures) == ("the disk is full", True, 1)


@attrs.define
class UnreadableStore(MemoryLeaseStore):
    """A store that cannot be read at first."""

    is_unreadable: bool = True

    async def read_leases(self) -> m.Kept:
        if self.is_unreadable:
            raise StateError("the disk is away")
        return await MemoryLeaseStore.read_leases(self)


async def test_no_cdi_file_is_taken_for_that_of_a_lost_lease_before_the_leases_are_known(
    autojump_clock: MockClock,
) -> None:
    """The containers of leases that are read later would not start again."""
    wanted = attrs.evolve(request((GPU, 1)), container=True)
    lease = Lease("a", 0, wanted, ContainerOwner(), LeaseState.HELD, 0.0, {GPU: ("a",)}, Answer(), "kept")
    store = UnreadableStore({"a": lease}, lasting=True)
    files = MemoryCdiStore({"kept": lease, "left": attrs.evolve(lease, cdi_name="left")})
    async with running(store, files) as unit:
        assert set(files.files) == {"kept", "left"}
        assert (await snapshot(unit)).withheld == "the leases of before the start are not known yet: the disk is away"
        store.is_unreadable = False
        await trio.sleep(30.0)
        assert set(files.files) == {"kept"}
