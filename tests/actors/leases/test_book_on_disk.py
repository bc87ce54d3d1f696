"""The book of leases with its store and its owners: what a caller is told of is there, and nothing is given twice."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.leases.owners import Owners
from plugind.actors.leases.saving import DEADLINE, Saving
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book, Sources
from plugind.protocol.leases.messages import Failure, Problem
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Owner, ProcessOwner, TimeOwner
from plugind.protocol.logs.lines import SILENT
from plugind.tests.protocol.leases.script import GPU, PLUGIN, offer, request


@attrs.define
class SlowStore(MemoryLeaseStore):
    """A store whose transactions wait for this event."""

    open: trio.Event = attrs.field(factory=trio.Event)

    async def write_leases(self, groups: Sequence[Sequence[e.Change]]) -> Sequence[str | None]:
        await self.open.wait()
        return await MemoryLeaseStore.write_leases(self, groups)


class Node:
    """The book, which carries its effects out as the lease actor is to; its plugin answers at once, or never."""

    def __init__(self, store: SlowStore, processes: MemoryOwnerProcesses) -> None:
        self.send, self.inbox = trio.open_memory_channel[m.StateMessage](math.inf)
        self.clock = MemoryBootClock()
        self.saving = Saving(store, self.send, SILENT)
        self.owners = Owners(processes, self.clock, self.send)
        numbers = itertools.count()
        self.book = Book(self.send, Sources(lambda: 0.0, self.clock.now, lambda: next(numbers)))
        self.answers = True

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self.carry_out(self.book.start(await self.saving.open(), trio.current_time()))
            self.carry_out(self.book.handle(m.OfferChanged(offer(("GPU-0",), GPU, key=PLUGIN)), 0.0))
            nursery.start_soon(self.saving.run)
            nursery.start_soon(self.owners.run)
            while True:
                with trio.move_on_at(self.book.next_end):
                    message = await self.inbox.receive()
                    self.carry_out(self.book.handle(message, trio.current_time()))
                self.carry_out(self.book.pass_time(trio.current_time()))

    def carry_out(self, effects: Sequence[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.AnswerAsker():
                    effect.send()
                case e.Write():
                    self.saving.write(effect)
                case e.WatchOwner():
                    self.owners.watch(effect)
                case e.ForgetOwner():
                    self.owners.forget(effect.id)
                case e.CallPlugin():
                    if self.answers:
                        self.send.send_nowait(m.Allocated(effect.call.lease, GPU, Answer(), uid=0))
                case _:
                    pass

    async def ask(self, owner: Owner, name: str) -> Lease | Failure:
        send, answer = trio.open_memory_channel[Lease | Failure](1)
        self.send.send_nowait(m.LeaseAsked(request((GPU, 1)), owner, 1000, 1, send, name))
        return await answer.receive()


@asynccontextmanager
async def running(store: SlowStore, processes: MemoryOwnerProcesses) -> AsyncIterator[Node]:
    node = Node(store, processes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        await wait_all_tasks_blocked()
        yield node
        nursery.cancel_scope.cancel()


def states(store: SlowStore) -> dict[str, LeaseState]:
    return {lease.id: lease.state for lease in store.leases.values()}


def opened(store: SlowStore) -> SlowStore:
    store.open.set()
    return store


async def test_an_allocation_on_a_disk_that_hangs_fails_and_holds_nothing(autojump_clock: object) -> None:
    """It is written when the disk comes back, and removed at once, before the device is in another lease."""
    store, processes = SlowStore(), MemoryOwnerProcesses()
    owner = ProcessOwner(processes.start(991))
    async with running(store, processes) as node:
        before = trio.current_time()
        failure = await node.ask(owner, "first")
        assert isinstance(failure, Failure)
        assert failure.problem is Problem.STORAGE
        assert "not written within 5 s" in failure.text
        assert trio.current_time() - before == DEADLINE
        store.open.set()
        lease = await node.ask(owner, "second")
        assert isinstance(lease, Lease)
        assert list(store.leases) == ["second"]


async def test_a_lease_outlives_a_restart_and_ends_with_its_owner(autojump_clock: object) -> None:
    store, processes = opened(SlowStore()), MemoryOwnerProcesses()
    async with running(store, processes) as node:
        held = await node.ask(ProcessOwner(processes.start(991)), "a")
    async with running(store, processes) as node:
        assert node.book.find("a") == held
        assert isinstance(await node.ask(ProcessOwner(processes.start(992)), "b"), Failure)
        processes.end(991)
        await wait_all_tasks_blocked()
        assert store.leases == {}
        assert isinstance(await node.ask(ProcessOwner(processes.start(993)), "c"), Lease)


async def test_an_owner_that_ended_while_plugind_was_away_has_nothing(autojump_clock: object) -> None:
    """Also if another process has got its pid."""
    store, processes = opened(SlowStore()), MemoryOwnerProcesses()
    async with running(store, processes) as node:
        await node.ask(ProcessOwner(processes.start(991)), "a")
    processes.start(991)
    async with running(store, processes):
        await wait_all_tasks_blocked()
        assert store.leases == {}


async def test_a_time_goes_on_while_plugind_is_away(autojump_clock: object) -> None:
    store, processes = opened(SlowStore()), MemoryOwnerProcesses()
    async with running(store, processes) as node:
        await node.ask(TimeOwner(60.0), "a")
    await trio.sleep(50)
    async with running(store, processes) as node:
        await trio.sleep(9)
        assert list(store.leases) == ["a"]
        node.clock.suspend(1)
        await wait_all_tasks_blocked()
        assert store.leases == {}


async def test_a_call_that_a_restart_has_cut_is_uncertain(autojump_clock: object) -> None:
    """The plugin may have prepared the device: for a minute nobody gets it."""
    store, processes = opened(SlowStore()), MemoryOwnerProcesses()
    owner = ProcessOwner(processes.start(991))
    async with running(store, processes) as node:
        node.answers = False
        with trio.move_on_after(1):
            await node.ask(owner, "a")
    assert states(store) == {"a": LeaseState.PENDING}
    async with running(store, processes) as node:
        await wait_all_tasks_blocked()
        assert states(store) == {"a": LeaseState.UNCERTAIN}
        assert isinstance(await node.ask(owner, "b"), Failure)
        await trio.sleep(61)
        assert isinstance(await node.ask(owner, "b"), Lease)
