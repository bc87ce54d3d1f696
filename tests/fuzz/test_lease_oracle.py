"""The oracle of leases: how long a lease waits for its container, by what is shown of it."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.protocol.leases.messages import LeasesSnapshot
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, Request, Wanted
from plugind.tests.fuzz.lease_holders import LABEL, Asking
from plugind.tests.fuzz.lease_oracle import BIND, LeaseOracle
from plugind.tests.fuzz.lease_stores import SimulatedCdiStore, SimulatedLeaseStore
from plugind.tests.fuzz.preparation_oracle import PreparationOracle

GPU = "lab.com/gpu"
REQUEST = Request((Wanted(GPU, 1),), container=True, labels=((LABEL, "1"),))
GIVEN = Answer({"GPU": "d0"})
HELD = Lease("job", 0, REQUEST, ContainerOwner(), LeaseState.HELD, 0.0, {GPU: ("d0",)}, GIVEN, cdi_name="job")
PENDING, GONE = HELD.moved(LeaseState.PENDING), HELD.moved(LeaseState.GONE, "its time is over")


class Judged:
    """The oracle of a node with one lease, and what it has found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        store, files = SimulatedLeaseStore(), SimulatedCdiStore()
        self.store = store
        store.leases["job"] = files.files["job"] = HELD
        self.preparations = PreparationOracle(self._violated)
        self.oracle = LeaseOracle(
            self._violated,
            lambda *_: None,
            store,
            files,
            MemoryOwnerProcesses(),
            MemoryBootClock(),
            self.preparations,
            {GPU: 4},
        )

    def _violated(self, oracle: str, text: str) -> None:
        self.found.append(f"{oracle}: {text}")

    def show_all(self, *leases: Lease) -> None:
        self.oracle.snapshot(LeasesSnapshot(trio.current_time(), leases))

    def tell(self) -> None:
        """Let somebody ask for the lease by its name, who is told of it."""
        asking = Asking(1, REQUEST, ContainerOwner(), 0, trio.current_time(), "job", None, self.oracle.answered)
        self.oracle.asks(asking)
        asking.send_nowait(HELD)

    def end(self) -> list[str]:
        """Let the lease end, and return what is wrong with that."""
        self.oracle.look(GONE)
        return self.found


async def hold(judged: Judged) -> None:
    """Let the daemon start, and have the lease at 10 s, of which nobody is told."""
    judged.oracle.daemon_starts()
    judged.show_all()
    await trio.sleep_until(10)
    judged.oracle.look(PENDING)
    judged.oracle.look(HELD)


@pytest.mark.parametrize(("ends_at", "is_right"), [(10 + BIND, True), (10 + BIND - 0.1, False)])
async def test_the_minute_of_a_container_begins_when_its_lease_is_held_whenever_it_is_told(
    autojump_clock: MockClock, ends_at: float, is_right: bool
) -> None:
    """The one who has asked first has left; another one asks by the same name."""
    judged = Judged()
    await hold(judged)
    await trio.sleep_until(20)
    judged.tell()
    await trio.sleep_until(ends_at)
    words = "told: lease job (held, ContainerOwner, lab.com/gpu=d0) is lease job (gone, ContainerOwner, lab.com/gpu=d0)"
    assert judged.end() == ([] if is_right else [f"{words}: its time is over"])


async def test_a_lease_that_is_told_before_it_is_shown_has_its_minute_from_then_on(autojump_clock: MockClock) -> None:
    judged = Judged()
    judged.oracle.daemon_starts()
    judged.show_all(PENDING)
    await trio.sleep_until(20)
    judged.tell()
    await trio.sleep_until(20 + BIND - 0.1)
    assert len(judged.end()) == 1


@pytest.mark.parametrize(("ends_at", "is_right"), [(30 + BIND, True), (30 + BIND - 0.1, False)])
async def test_the_minute_begins_anew_with_the_daemon_which_may_show_its_leases_later(
    autojump_clock: MockClock, ends_at: float, is_right: bool
) -> None:
    judged = Judged()
    await hold(judged)
    await trio.sleep_until(30)
    judged.oracle.daemon_ended()
    judged.oracle.daemon_starts()
    await trio.sleep_until(33)
    judged.show_all(HELD)
    await trio.sleep_until(40)
    judged.tell()
    await trio.sleep_until(ends_at)
    assert len(judged.end()) == (0 if is_right else 1)


async def test_a_lease_that_no_container_takes_has_to_end_a_minute_after_it_is_held(autojump_clock: MockClock) -> None:
    judged = Judged()
    await hold(judged)
    await trio.sleep_until(20)
    judged.tell()
    for at, count in ((10 + BIND + 3, 0), (10 + BIND + 3.1, 1)):
        await trio.sleep_until(at)
        judged.oracle.check(0.0)
        assert len(judged.found) == count, judged.found


@pytest.mark.parametrize("asked_at", [10 + BIND - 1, 10 + BIND + 1])
async def test_a_lease_that_a_container_binds_in_time_may_be_there_until_that_is_answered(
    autojump_clock: MockClock, asked_at: float
) -> None:
    """Seed 2700620: a slow disk delays the answer."""
    judged = Judged()
    await hold(judged)
    await trio.sleep_until(20)
    judged.tell()
    await trio.sleep_until(asked_at)
    judged.oracle.binds("job")
    await trio.sleep_until(10 + BIND + 4)
    judged.oracle.check(0.0)
    assert len(judged.found) == (0 if asked_at < 10 + BIND else 1), judged.found
    judged.oracle.bind_answered("job")
    await trio.sleep(3.1)
    judged.oracle.check(0.0)
    assert len(judged.found) == 1, judged.found


@pytest.mark.parametrize("ends", [True, False])
async def test_what_was_refused_to_a_lease_that_ends_is_not_refused_to_the_next_one(
    autojump_clock: MockClock, ends: bool
) -> None:
    """All of it happens in one instant, and the next lease has the same device."""
    judged = Judged()
    await hold(judged)
    judged.preparations.refusals[GPU, "d0"] = trio.current_time()
    if ends:
        judged.oracle.look(GONE)
    judged.oracle.look(attrs.evolve(PENDING, id="next"))
    await trio.sleep(60)
    judged.oracle.check(0.0)
    words = "refused: lease next (pending, ContainerOwner, lab.com/gpu=d0) is shown, and was refused"
    assert [violation for violation in judged.found if violation.startswith("refused")] == ([] if ends else [words])


@pytest.mark.parametrize(
    ("told_before", "noticed", "is_right"), [(True, False, True), (False, False, False), (True, True, False)]
)
async def test_a_lease_that_is_asked_for_again_may_be_told_before_it_is_noticed_that_the_file_was_lost(
    autojump_clock: MockClock, told_before: bool, noticed: bool, is_right: bool
) -> None:
    """Nothing is written for the second asker."""
    judged = Judged()
    await hold(judged)
    if told_before:
        judged.tell()
    judged.store.damage(unnoticed=False)
    judged.store.noticed = noticed
    judged.tell()
    words = "told: 1 is told of lease job (held, ContainerOwner, lab.com/gpu=d0), and written is None"
    assert judged.found == ([] if is_right else [words])
