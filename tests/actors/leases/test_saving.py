"""The writes of the lease actor: with a store that hangs, fails and comes back, and nobody who waits for it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.leases.saving import DEADLINE, Saving
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.protocol.errors import ConfigError, StateError
from plugind.protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveLease, Write
from plugind.protocol.leases.messages import Kept, LeasesRead, Saved
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.logs.lines import SILENT

GPU = "vendor.com/gpu"
LATE = "the leases were not written within 5 s"


def lease(name: str, *devices: str) -> Lease:
    return Lease(name, 0, Request((Wanted(GPU, 1),)), NoOwner(), LeaseState.HELD, 0.0, {GPU: devices})


def save(number: int, name: str, *devices: str, awaited: bool = True) -> Write:
    return Write(number, (SaveLease(lease(name, *devices)),), awaited)


def delete(number: int, name: str, *, awaited: bool = False) -> Write:
    return Write(number, (DeleteLease(name),), awaited)


@attrs.define
class Store(MemoryLeaseStore):
    """A store that can be told to hang or to fail."""

    #: Transactions and reads wait for this.
    open: trio.Event = attrs.field(factory=trio.Event)
    error: StateError | ConfigError | None = None
    #: How many groups each transaction had.
    transactions: list[int] = attrs.field(factory=list)
    at_once: int = 0
    #: How many more times the store is found damaged, and set aside, once a transaction was made.
    damaged_after: int = 0
    error_after: StateError | None = None

    async def _access(self) -> None:
        self.at_once += 1
        assert self.at_once == 1, "two transactions at once"
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error

    async def begin(self) -> None:
        await self._access()

    async def read_leases(self) -> Kept:
        await self._access()
        return await MemoryLeaseStore.read_leases(self)

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        self.transactions.append(len(groups))
        await self._access()
        conflicts = await MemoryLeaseStore.write_leases(self, groups)
        if self.damaged_after:
            self.damaged_after -= 1
            self.leases, self.replaced, self.error = {}, self.replaced + 1, self.error_after
        return conflicts


@attrs.define
class Setup:
    store: Store
    saving: Saving
    answers: trio.MemoryReceiveChannel[Saved | LeasesRead]

    def received(self) -> list[Saved | LeasesRead]:
        found = []
        with suppress(trio.WouldBlock):
            while True:
                found.append(self.answers.receive_nowait())
        return found

    @property
    def names(self) -> list[str]:
        return sorted(self.store.leases)


@asynccontextmanager
async def running(*, is_open: bool = True) -> AsyncIterator[Setup]:
    store = Store()
    if is_open:
        store.open.set()
    send, answers = trio.open_memory_channel[Saved | LeasesRead](math.inf)
    saving = Saving(store, send, SILENT)
    async with trio.open_nursery() as nursery:
        await saving.open()
        nursery.start_soon(saving.run)
        yield Setup(store, saving, answers)
        nursery.cancel_scope.cancel()


async def test_what_is_asked_for_in_one_turn_is_one_transaction(autojump_clock: object) -> None:
    """And all that comes while it is under way is the next one."""
    async with running() as setup:
        setup.store.open = trio.Event()
        for number in range(3):
            setup.saving.write(save(number, f"l{number}", f"GPU-{number}"))
        await wait_all_tasks_blocked()
        setup.saving.write(delete(3, "l0"))
        setup.saving.write(save(4, "l4", "GPU-0"))
        setup.store.open.set()
        await wait_all_tasks_blocked()
        assert setup.store.transactions == [3, 2]
        assert setup.received() == [Saved(0), Saved(1), Saved(2), Saved(4)]
        assert setup.names == ["l1", "l2", "l4"]


async def test_a_double_lease_is_answered_and_the_others_are_written(autojump_clock: object) -> None:
    async with running() as setup:
        setup.saving.write(save(1, "first", "GPU-0"))
        setup.saving.write(save(2, "second", "GPU-0"))
        setup.saving.write(save(3, "third", "GPU-1"))
        await wait_all_tasks_blocked()
        assert setup.received() == [Saved(1), Saved(2, f"GPU-0 of {GPU} is in the lease first"), Saved(3)]
        assert setup.names == ["first", "third"]


async def test_a_store_that_hangs_is_told_in_time_and_no_other_transaction_begins(autojump_clock: object) -> None:
    """A late success is undone by the write that follows the answer; what has not begun is never written."""
    async with running() as setup:
        setup.store.open = trio.Event()
        setup.saving.write(save(1, "begun", "GPU-0"))
        await trio.sleep(1)
        setup.saving.write(save(2, "waiting", "GPU-1"))
        await trio.sleep(DEADLINE - 0.5)
        assert setup.received() == [Saved(1, LATE, unknown=True)]
        assert setup.saving.problem == LATE
        setup.saving.write(delete(3, "begun"))
        setup.saving.write(save(4, "next", "GPU-0"))
        await trio.sleep(1)
        assert setup.received() == [Saved(2, LATE)]
        assert setup.store.transactions == [1]
        setup.store.open.set()
        await wait_all_tasks_blocked()
        assert setup.received() == [Saved(4)]
        assert setup.names == ["next"]
        assert setup.saving.problem is None


async def test_a_full_disk_fails_what_is_awaited_and_tries_the_rest_again(autojump_clock: object) -> None:
    """It is tried again with growing pauses, and at once with what somebody awaits, before it."""
    async with running() as setup:
        setup.saving.write(save(1, "held", "GPU-0"))
        await wait_all_tasks_blocked()
        setup.store.error = StateError("the disk is full")
        setup.saving.write(save(2, "new", "GPU-1"))
        setup.saving.write(delete(3, "held"))
        await wait_all_tasks_blocked()
        assert setup.received() == [Saved(1), Saved(2, "the disk is full")]
        assert setup.saving.problem == "the disk is full"
        await trio.sleep(100)
        assert len(setup.store.transactions) == 9  # The first one, and those after 0, 1, 3, 7, 15, 31, 61 and 91 s.
        setup.store.error = None
        setup.saving.write(save(4, "again", "GPU-0"))
        await wait_all_tasks_blocked()
        assert setup.store.transactions[-1] == 2
        assert setup.received() == [Saved(4)]
        assert setup.names == ["again"]
        assert setup.saving.problem is None


async def test_what_nobody_tries_again_fails_until_the_disk_has_room(autojump_clock: object) -> None:
    """That nothing is left to write does not show that the disk is better: each allocation would fail."""
    async with running() as setup:
        setup.store.error = StateError("the disk is full")
        setup.saving.write(save(1, "new", "GPU-0"))
        await trio.sleep(100)
        assert setup.received() == [Saved(1, "the disk is full")]
        assert (setup.saving.problem, setup.saving.failures) == ("the disk is full", 8)
        setup.store.error = None
        await trio.sleep(30)
        assert (setup.saving.problem, setup.saving.failures) == (None, 8)


async def test_of_each_lease_only_the_newest_change_waits(autojump_clock: object) -> None:
    """So a disk that is full for a week costs no memory; an older change does not come after a newer one."""
    async with running() as setup:
        setup.store.error = StateError("full")
        for number in range(100):
            setup.saving.write(save(number, "a", f"GPU-{number}", awaited=False))
        await trio.sleep(100)
        assert setup.store.transactions[-1] == 1
        setup.store.error = None
        setup.saving.write(save(100, "a", "GPU-9"))
        await trio.sleep(100)
        assert setup.store.leases == {"a": lease("a", "GPU-9")}


async def test_what_contradicts_the_store_is_tried_again(autojump_clock: object) -> None:
    async with running() as setup:
        setup.saving.write(save(1, "first", "GPU-0"))
        setup.saving.write(save(2, "second", "GPU-0", awaited=False))
        await trio.sleep(10)
        assert setup.saving.problem == f"GPU-0 of {GPU} is in the lease first"
        setup.saving.write(delete(3, "first"))
        await trio.sleep(60)
        assert setup.names == ["second"]
        assert setup.saving.problem is None


async def test_a_store_that_cannot_be_read_at_the_start_is_read_later(autojump_clock: object) -> None:
    """Until then all devices are withheld, with the reason; nobody waits for the disk."""
    store = Store(leases={"a": lease("a", "GPU-0")})
    send, answers = trio.open_memory_channel[Saved | LeasesRead](math.inf)
    saving = Saving(store, send, SILENT)
    kept = await saving.open()
    assert kept.withheld == ("the leases of before the start are not known yet: the leases were not read within 5 s")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saving.run)
        store.open.set()
        assert await answers.receive() == LeasesRead(Kept((lease("a", "GPU-0"),)))
        saving.write(Write(1, (EndWithholding(),)))
        assert await answers.receive() == Saved(1)
        nursery.cancel_scope.cancel()


async def test_another_daemons_store_is_an_error_of_the_start() -> None:
    store = Store(error=ConfigError("another plugind uses it"))
    store.open.set()
    with pytest.raises(ConfigError, match="another plugind uses it"):
        await Saving(store, trio.open_memory_channel[Saved | LeasesRead](0)[0], SILENT).open()


async def test_a_crash_amid_a_write_leaves_its_outcome_unknown(autojump_clock: object) -> None:
    """What is awaited is answered so when it runs again; what is not awaited is written again."""
    async with running() as setup:
        setup.store.open = trio.Event()
        async with trio.open_nursery() as nursery:
            other = Saving(setup.store, setup.saving._reply, SILENT)
            setup.store.open.set()
            await other.open()
            setup.store.open = trio.Event()
            nursery.start_soon(other.run)
            other.write(save(1, "a", "GPU-0"))
            other.write(save(2, "b", "GPU-1", awaited=False))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        setup.store.open.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert setup.received() == [Saved(1, "plugind has stopped amid a write", unknown=True)]
        assert setup.names == ["b"]


async def test_leases_are_written_again_to_a_store_that_was_replaced(autojump_clock: object) -> None:
    """A damaged file is set aside while plugind runs; what it withholds ends, since no lease is lost."""
    async with running() as setup:
        setup.saving.write(save(1, "a", "GPU-0"))
        setup.saving.write(save(2, "b", "GPU-1"))
        setup.saving.write(save(3, "c", "GPU-2"))
        await wait_all_tasks_blocked()
        setup.store.leases, setup.store.withheld = {}, "it was damaged"
        setup.store.replaced += 1
        setup.saving.write(delete(4, "b"))
        setup.saving.write(save(5, "c", "GPU-3"))
        await trio.sleep(10)
        assert setup.store.leases == {"a": lease("a", "GPU-0"), "c": lease("c", "GPU-3")}
        assert setup.store.withheld is None
        assert setup.saving.problem is None


async def test_a_write_is_answered_only_when_it_is_in_the_store_that_was_put_in_place(autojump_clock: object) -> None:
    """A store that is set aside while a write is under way may have that write, which its successor then lacks."""
    async with running() as setup:
        setup.saving.write(save(1, "a", "GPU-0"))
        await wait_all_tasks_blocked()
        setup.store.damaged_after = 1
        setup.store.transactions.clear()
        setup.saving.write(save(2, "b", "GPU-1"))
        await wait_all_tasks_blocked()
        assert setup.received() == [Saved(1), Saved(2)]
        assert setup.names == ["a", "b"]


# --- a crash of whoever asks, and the end of the node -----------------------------------------------------------------


async def test_after_a_crash_of_the_actor_it_is_said_what_will_be_written(autojump_clock: object) -> None:
    """Nobody awaits any of it: nobody is answered, and it is tried until it succeeds."""
    async with running() as setup:
        setup.saving.write(save(1, "old", "a"))
        await wait_all_tasks_blocked()
        setup.received()
        setup.store.open = trio.Event()
        setup.saving.write(save(2, "under way", "b"))
        await wait_all_tasks_blocked()
        setup.saving.write(delete(3, "old"))
        setup.saving.write(save(4, "waits", "c"))
        kept = setup.saving.start_again()
        assert [lease.id for lease in kept.leases] == ["under way", "waits"]
        assert kept.withheld is None
        setup.store.error = StateError("the disk is full")
        setup.store.open.set()
        await trio.sleep(2)
        setup.store.error = None
        await trio.sleep(30)
        assert setup.names == ["under way", "waits"]
        assert setup.received() == []
        assert setup.saving.problem is None


async def test_after_a_crash_devices_are_withheld_as_before(autojump_clock: object) -> None:
    """Until it is written that they are not."""
    async with running() as setup:
        assert setup.saving.start_again().withheld is None
    store = Store(withheld="the file was lost")
    store.open.set()
    saving = Saving(store, trio.open_memory_channel[Saved | LeasesRead](math.inf)[0], SILENT)
    await saving.open()
    assert saving.start_again().withheld == "the file was lost"
    saving.write(Write(1, (EndWithholding(),)))
    assert saving.start_again().withheld is None


async def test_a_node_that_stops_waits_for_its_writes(autojump_clock: object) -> None:
    """Also for those that are tried again."""
    async with running() as setup:
        await setup.saving.settle()
        setup.store.error = StateError("the disk is full")
        setup.saving.write(save(1, "a", "GPU-0", awaited=False))
        with trio.move_on_after(5) as waiting:
            await setup.saving.settle()
        assert waiting.cancelled_caught
        setup.store.error = None
        await setup.saving.settle()
        assert setup.names == ["a"]
