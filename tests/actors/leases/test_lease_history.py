"""The history of leases in a whole simulated node: its rows, and what becomes of them when the store fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.io.history_database import BEGINS, UNSEEN
from plugind.actors.leases import history
from plugind.actors.leases.history import LeaseHistory
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.errors import StateError
from plugind.protocol.leases.history import Gap, HistoryQuery, HistoryRow
from plugind.protocol.leases.messages import REBOOTED
from plugind.protocol.leases.replies import HistoryLosses
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request
from plugind.protocol.logs.lines import SILENT, Level, Logger
from plugind.protocol.plugins.devices import Device
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.actors.leases.history_stores import FileHistory
from plugind.tests.actors.status.bench import RecordingLogger

GPU = "vendor.com/gpu"


@asynccontextmanager
async def node_with(store: FileHistory) -> AsyncIterator[SimulatedNode]:
    node = SimulatedNode()
    node.history_store = store
    async with node:
        devices = FakeDevices((Device("gpu-0"), Device("gpu-1")))
        node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))
        await node.settled()
        yield node


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileHistory]:
    with closing(FileHistory(tmp_path / "history.db")) as made:
        yield made


def shown(rows: list[HistoryRow]) -> list[tuple[object, ...]]:
    return [(row.lease, row.device, round(row.granted), row.ended, row.seen, row.reason) for row in rows]


async def test_each_device_of_a_lease_has_a_row_with_its_grant_and_its_end(
    autojump_clock: object, store: FileHistory
) -> None:
    async with node_with(store) as node:
        await trio.sleep_until(10.0)
        async with node.supervisor.allocate({GPU: 2}, id="both", labels={"project": "x"}):
            await trio.sleep_until(20.0)
            rows = await store.rows()
            assert shown(rows) == [("both", f"gpu-{number}", 10, None, None, None) for number in (0, 1)]
            assert (rows[0].labels, rows[0].uid, rows[0].owner, rows[0].resource) == (
                {"project": "x"},
                500,
                "process",
                GPU,
            )
        await trio.sleep_until(30.0)
        ended = [("both", f"gpu-{number}", 10, 20.0, None, "it was released") for number in (0, 1)]
        assert shown(await store.rows()) == ended


async def test_many_grants_and_ends_are_one_write(autojump_clock: object, store: FileHistory) -> None:
    async with node_with(store) as node:
        await trio.sleep(1.0)
        before = store.calls
        for number in range(50):
            async with node.supervisor.allocate({GPU: 1}, id=f"job {number}"):
                pass
        await trio.sleep(1.0)
        assert store.calls == before + 1
        assert len(await store.rows()) == 50


async def test_a_restart_of_plugind_ends_no_row_and_writes_none_twice(
    autojump_clock: object, store: FileHistory
) -> None:
    async with node_with(store) as node, node.supervisor.allocate({GPU: 1}, id="kept"):
        await trio.sleep_until(10.0)
        await node.kill()
        await node.start()
        await node.settled()
        await trio.sleep_until(20.0)
        assert shown(await store.rows()) == [("kept", "gpu-0", 0, None, None, None)]
        await node.supervisor.release("kept")
        await trio.sleep(1.0)
        assert shown(await store.rows()) == [("kept", "gpu-0", 0, 20.0, None, "it was released")]


async def test_a_lease_that_was_granted_just_before_a_kill_is_written_after_it(
    autojump_clock: object, store: FileHistory
) -> None:
    async with node_with(store) as node:
        await trio.sleep_until(10.0)
        async with node.supervisor.allocate({GPU: 1}, id="kept"):
            await node.kill()
            assert await store.rows() == []
            store.close()
            await node.start()
            await node.settled()
            await trio.sleep(1.0)
            assert shown(await store.rows()) == [("kept", "gpu-0", 10, None, None, None)]


@pytest.mark.parametrize(("boot", "reason"), [("a boot", UNSEEN), ("another boot", REBOOTED)])
async def test_a_lease_whose_end_nobody_saw_has_ended_between_two_times(
    autojump_clock: object, store: FileHistory, boot: str, reason: str
) -> None:
    async with node_with(store) as node, node.supervisor.allocate({GPU: 1}, id="lost"):
        await trio.sleep_until(history.HEARTBEAT + 50.0)
        await node.kill()
        node.lease_store.leases.clear()
        store.boot = boot
        await trio.sleep_until(2000.0)
        await node.start()
        await node.settled()
        await trio.sleep(1.0)
        (row,) = await store.rows()
        assert (row.lease, row.reason) == ("lost", reason)
        assert row.seen == pytest.approx(history.HEARTBEAT, abs=1.0)
        assert row.ended == pytest.approx(2000.0, abs=1.0)
        assert row.seconds(3000.0) == pytest.approx(history.HEARTBEAT, abs=1.0)


async def test_a_store_that_fails_touches_no_lease_and_has_all_when_it_works_again(
    autojump_clock: object, store: FileHistory
) -> None:
    async with node_with(store) as node:
        store.problem = "the disk is full"
        await trio.sleep_until(10.0)
        async with node.supervisor.allocate({GPU: 1}, id="a"):
            await trio.sleep_until(100.0)
        async with node.supervisor.allocate({GPU: 1}, id="b"):
            store.problem = None
            await trio.sleep_until(200.0)
            a, b = await store.rows()
            assert shown([a, b]) == [
                ("a", "gpu-0", 10, 100.0, None, "it was released"),
                ("b", "gpu-0", 100, *[None] * 3),
            ]
            assert (await node.supervisor.internals.lease_calls.snapshot()).history_losses == HistoryLosses()


async def test_a_store_that_hangs_delays_no_lease(autojump_clock: object, store: FileHistory) -> None:
    async with node_with(store) as node:
        store.takes = 1000.0
        for number in range(3):
            async with node.supervisor.allocate({GPU: 1}, id=f"job {number}"):
                pass
        assert trio.current_time() < 1.0
        assert node.supervisor.internals.leases.history is not None
        with trio.fail_after(2 * history.DEADLINE):
            with pytest.raises(Exception, match="the history was not read within 5 s"):
                await node.supervisor.internals.leases.history.rows(HistoryQuery(), None, 10)


def lease(number: int, state: LeaseState = LeaseState.HELD) -> Lease:
    return Lease(f"job {number}", 7, Request(()), NoOwner(), state, float(number), {GPU: (f"gpu-{number}",)})


@attrs.define(eq=False)
class Running:
    history: LeaseHistory
    shown: dict[int, Lease] = attrs.field(factory=dict)

    def show(self, number: int, state: LeaseState) -> None:
        now = lease(number, state)
        self.history.note(self.shown.get(number), now)
        self.shown[number] = now


@asynccontextmanager
async def running(store: FileHistory, log: Logger = SILENT) -> AsyncIterator[Running]:
    made = LeaseHistory(store, lambda: 1000.0 + trio.current_time(), log)
    made.keep(())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield Running(made)
        nursery.cancel_scope.cancel()


async def test_what_does_not_fit_while_the_store_fails_is_counted_and_noted_as_a_gap(
    autojump_clock: object, store: FileHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 leases, 3 have room: of the others 2 have ended and are lost, and one is held and is not."""
    monkeypatch.setattr(history, "MOST_WAITING", 3)
    async with running(store) as node:
        store.problem = "the disk is full"
        for number in range(6):
            node.show(number, LeaseState.HELD)
        for number in range(5):
            await trio.sleep(1.0)
            node.show(number, LeaseState.GONE)
        assert node.history.losses == HistoryLosses(leases=2)
        store.problem = None
        await trio.sleep(60.0)
        rows = {row.lease: row for row in await store.rows()}
        assert sorted(rows) == ["job 0", "job 1", "job 2", "job 5"]
        assert [rows[f"job {number}"].ended for number in (0, 1, 2, 5)] == [1001.0, 1002.0, 1003.0, None]
        begins, lost = await node.history.gaps(HistoryQuery())
        assert begins.reason == BEGINS
        assert lost == Gap(1004.0, 1005.0, 2, "they could not be written")


async def test_an_end_that_was_dropped_closes_its_row_when_the_store_works_again(
    autojump_clock: object, store: FileHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_WAITING", 1)
    async with running(store) as node:
        node.show(0, LeaseState.HELD)
        await trio.sleep(10.0)
        store.problem = "the disk is full"
        node.show(1, LeaseState.HELD)
        node.show(0, LeaseState.GONE)
        await trio.sleep(10.0)
        store.problem = None
        await trio.sleep(60.0)
        first, second = await store.rows()
        assert (first.lease, first.reason) == ("job 0", UNSEEN)
        assert first.seen == pytest.approx(1000.1)
        assert first.ended == pytest.approx(1020.0, abs=30.0)
        assert (second.lease, second.ended) == ("job 1", None)


async def test_a_reader_sees_what_was_granted_just_now(autojump_clock: object, store: FileHistory) -> None:
    async with running(store) as node:
        await trio.sleep(1.0)
        node.show(0, LeaseState.HELD)
        rows, _ = await node.history.rows(HistoryQuery(), None, 10)
        assert [row.lease for row in rows] == ["job 0"]
        await trio.sleep(36.0)
        (usage,) = await node.history.usage("resource", HistoryQuery(), 10)
        assert (usage.key, round(usage.seconds, 3), usage.leases) == (GPU, 36.0, 1)


async def test_a_write_that_is_late_is_logged_and_so_is_its_end(autojump_clock: object, store: FileHistory) -> None:
    log = RecordingLogger()
    async with running(store, log) as node:
        await trio.sleep(1.0)
        store.takes = 20.0
        node.show(0, LeaseState.HELD)
        await trio.sleep(history.GATHERING + history.DEADLINE - 0.01)
        assert log.events == []
        await trio.sleep(0.02)
        (late,) = log.events
        assert late == (
            Level.WARNING,
            "the history of leases cannot be kept",
            {"reason": "it was not written within 5 s"},
        )
        await trio.sleep(20.0)
        assert log.events[1:] == [(Level.INFO, "the history of leases is kept again", {})]


async def test_a_write_waits_for_one_reader_at_most(autojump_clock: object, store: FileHistory) -> None:
    """Each has its turn, and those who wait for too long are told so."""
    answered: list[float] = []
    refused: list[str] = []
    async with running(store) as node:
        await trio.sleep(1.0)
        store.takes, store.most_under_way = 2.0, 0

        async def read() -> None:
            try:
                await node.history.gaps(HistoryQuery())
                answered.append(trio.current_time())
            except StateError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read)
        assert (answered, store.most_under_way) == ([3.0, 5.0], 1)
        assert [text.partition(":")[0] for text in refused] == ["the history was not read within 5 s"] * 2


async def test_nobody_waits_for_a_store_that_fails(autojump_clock: object, store: FileHistory) -> None:
    """Neither a reader, who gets the rows that are there, nor a stop."""
    async with running(store) as node:
        node.show(0, LeaseState.HELD)
        await trio.sleep(1.0)
        node.show(1, LeaseState.HELD)
        store.problem = "the disk is full"
        before = trio.current_time()
        await node.history.settle()
        await node.history.settle()
        assert trio.current_time() - before < 0.01
        store.problem = None
        rows, _ = await node.history.rows(HistoryQuery(), None, 10)
        assert [row.lease for row in rows] == ["job 0"]


async def test_before_the_leases_are_known_no_row_is_closed(autojump_clock: object, store: FileHistory) -> None:
    async with running(store) as node:
        node.show(0, LeaseState.HELD)
        await trio.sleep(1.0)
    made = LeaseHistory(store, lambda: 2000.0 + trio.current_time(), SILENT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.sleep(100.0)
        assert [row.ended for row in await store.rows()] == [None]
        made.keep([lease(0)])
        await trio.sleep(100.0)
        assert [row.ended for row in await store.rows()] == [None]
        nursery.cancel_scope.cancel()


async def test_a_write_that_was_cancelled_is_made_again_and_once(autojump_clock: object, store: FileHistory) -> None:
    store.takes = 1.0
    made = LeaseHistory(store, lambda: 1000.0, SILENT)
    made.keep(())
    made.note(None, lease(0))
    with trio.move_on_after(0.5):
        await made.run()
    made.note(lease(0), lease(0, LeaseState.GONE))
    with trio.move_on_after(10.0):
        await made.run()
    assert [(row.lease, row.ended) for row in await store.rows()] == [("job 0", 1000.0)]
