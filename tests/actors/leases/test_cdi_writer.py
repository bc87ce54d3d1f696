"""The CDI files as the lease actor has them written: in order, answered in time, and none left that nobody knows."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.leases.cdi_files import CdiFiles
from plugind.actors.leases.cdi_writer import DEADLINE, MOST_AT_ONCE, CdiStore, CdiWriter, MemoryCdiStore
from plugind.protocol.leases.cdi import CdiError, Hook
from plugind.protocol.leases.messages import FileWritten
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, Request, Wanted
from plugind.protocol.logs.lines import SILENT, Level

LATE = "the directory of CDI files has not answered within 5 s"


def lease(name: str, answer: Answer | None = None) -> Lease:
    request, state = Request((Wanted("v.com/a", 1),), container=True), LeaseState.PENDING
    return Lease(f"lease-{name}", 0, request, ContainerOwner(), state, 0.0, answer=answer, cdi_name=name)


@attrs.define
class Replies:
    """The inbox of the lease actor, with the time of each message."""

    received: list[tuple[float, FileWritten]] = attrs.field(factory=list)
    some: trio.Event = attrs.field(factory=trio.Event)

    def send_nowait(self, message: FileWritten, /) -> None:
        self.received.append((trio.current_time(), message))
        self.some.set()

    @property
    def messages(self) -> list[FileWritten]:
        return [message for _, message in self.received]


class SlowStore(MemoryCdiStore):
    """Takes some seconds for each access, or for leases of ``slow`` alone; fails with the next of ``failures``.

    As in a thread, what has begun is done to its end.
    """

    def __init__(self, slow: str | None = None) -> None:
        super().__init__()
        self.slow, self.takes = slow, 0.0
        self.failures: list[str | None] = []
        self.calls: list[tuple[float, str, str]] = []

    async def _pass(self, call: str, name: str, *, slow: bool = True) -> None:
        self.calls.append((trio.current_time(), call, name))
        failure = self.failures.pop(0) if self.failures else None
        await trio.sleep(self.takes if slow else 0.0)
        if failure is not None:
            raise CdiError(failure)

    async def clean(self, keep: Collection[str]) -> None:
        await self._pass("clean", "")
        await super().clean(keep)

    async def write(self, lease: Lease) -> None:
        await self._pass("write", lease.cdi_name or "", slow=self.slow is None or self.slow in lease.devices)
        await super().write(lease)

    async def remove(self, name: str) -> None:
        await self._pass("remove", name)
        await super().remove(name)


@attrs.define
class Log:
    """A log that keeps its lines."""

    lines: list[tuple[Level, str]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return True

    def event(self, level: Level, message: str, /, **fields: object) -> None:
        self.lines.append((level, f"{message}: {fields['reason']}" if fields else message))


def found(store: CdiStore) -> Callable[[], Awaitable[CdiStore]]:
    async def find() -> CdiStore:
        return store

    return find


@asynccontextmanager
async def running(store: CdiStore, log: Log | None = None) -> AsyncIterator[tuple[CdiWriter, Replies]]:
    replies = Replies()
    writer = CdiWriter(found(store), replies, log or SILENT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        yield writer, replies
        nursery.cancel_scope.cancel()


async def test_a_file_is_written_answered_and_removed(autojump_clock: MockClock) -> None:
    store = MemoryCdiStore()
    async with running(store) as (writer, replies):
        writer.write(lease("a"))
        writer.write(lease("b"))
        await wait_all_tasks_blocked()
        assert replies.messages == [FileWritten("lease-a"), FileWritten("lease-b")]
        assert set(store.files) == {"a", "b"}
        writer.remove("a")
        await wait_all_tasks_blocked()
        assert set(store.files) == {"b"}
        assert len(replies.messages) == 2


async def test_why_a_file_is_not_there_is_told_and_the_next_one_is_written(autojump_clock: MockClock) -> None:
    store = SlowStore()
    store.failures = ["the plugin gives no node"]
    async with running(store) as (writer, replies):
        writer.write(lease("a"))
        writer.write(lease("b"))
        await wait_all_tasks_blocked()
        await trio.sleep(1.0)
    assert replies.messages == [FileWritten("lease-a", "the plugin gives no node"), FileWritten("lease-b")]
    assert set(store.files) == {"b"}


async def test_a_late_write_is_answered_in_time_and_its_file_removed(autojump_clock: MockClock) -> None:
    """Nobody has a lease whose file would be left."""
    store = SlowStore()
    store.takes = 60.0
    async with running(store) as (writer, replies):
        writer.write(lease("a"))
        await trio.sleep(59.0)
        assert replies.received == [(5.0, FileWritten("lease-a", LATE))]
        assert writer.problem == LATE
        await trio.sleep(62.0)
        assert store.calls == [(0.0, "write", "a"), (60.0, "remove", "a")]
    assert store.files == {}
    assert len(replies.received) == 1
    assert writer.problem is None


async def test_what_waits_behind_a_late_write_is_answered_in_time_and_not_written(autojump_clock: MockClock) -> None:
    """Each has five seconds of its own, however slow those before it are."""
    store = SlowStore()
    store.takes = 4.0
    async with running(store) as (writer, replies):
        for name in "abc":
            writer.write(lease(name))
        await trio.sleep(2.0)
        writer.write(lease("d"))
        await trio.sleep(30.0)
    assert replies.received == [
        (4.0, FileWritten("lease-a")),
        (5.0, FileWritten("lease-b", LATE)),
        (5.0, FileWritten("lease-c", LATE)),
        (7.0, FileWritten("lease-d", LATE)),
    ]
    assert [(time, call, name) for time, call, name in store.calls] == [
        (0.0, "write", "a"),
        (4.0, "write", "b"),
        (8.0, "remove", "b"),
    ]
    assert set(store.files) == {"a"}


async def test_a_look_of_one_plugin_that_hangs_delays_no_lease_of_another(autojump_clock: MockClock) -> None:
    store = SlowStore(slow="v.com/a")
    store.takes = 2.0
    async with running(store) as (writer, replies):
        for number in range(2 * MOST_AT_ONCE):
            writer.write(attrs.evolve(lease(f"slow-{number}"), devices={"v.com/a": (str(number),)}))
        await trio.sleep(0.5)
        writer.write(attrs.evolve(lease("other"), devices={"v.com/b": ("1",)}))
        await trio.sleep(3.0)
    first, second = FileWritten("lease-slow-0"), FileWritten("lease-other")
    assert replies.received[:2] == [(0.5, second), (2.0, first)]


async def test_the_file_of_a_lease_from_before_the_start_is_written_however_late(autojump_clock: MockClock) -> None:
    """It is held whether its file is there or not, and its container may be about to start (seed 40180)."""
    store = SlowStore()
    store.takes = 7.0
    async with running(store) as (writer, replies):
        for name in "ab":
            writer.write(lease(name).moved(LeaseState.HELD))
        await trio.sleep(30.0)
    late = [(5.0, FileWritten("lease-a", LATE)), (5.0, FileWritten("lease-b", LATE))]
    assert replies.received == [*late, (7.0, FileWritten("lease-a")), (14.0, FileWritten("lease-b"))]
    assert set(store.files) == {"a", "b"}


async def test_the_file_of_a_held_lease_that_cannot_be_written_is_tried_again_until_it_is_there(
    autojump_clock: MockClock,
) -> None:
    """Its container may be about to start (seed 7552188). A lease that ends meanwhile gets none."""
    store, full = SlowStore(), "no space left"
    store.failures = [full, full, full, full, None]
    async with running(store) as (writer, replies):
        for name in "ab":
            writer.write(lease(name).moved(LeaseState.HELD))
        await trio.sleep(2.5)
        writer.remove("b")
        await trio.sleep(30.0)
    failures = [(0.0, FileWritten("lease-a", full)), (0.0, FileWritten("lease-b", full))]
    assert replies.received == [*failures, (3.0, FileWritten("lease-a"))]
    assert [(time, call, name) for time, call, name in store.calls if name == "b"][-1] == (2.5, "remove", "b")
    assert set(store.files) == {"a"}


async def test_a_lease_that_ends_before_its_file_is_written_has_none(autojump_clock: MockClock) -> None:
    store = SlowStore()
    store.takes = 1.0
    async with running(store) as (writer, replies):
        writer.write(lease("a"))
        writer.write(lease("b"))
        await trio.sleep(0.5)
        writer.remove("a")
        writer.remove("b")
        await trio.sleep(30.0)
    assert [call for _, *call in store.calls] == [["write", "a"], ["remove", "a"], ["remove", "b"]]
    assert store.files == {}
    assert replies.messages == []


async def test_a_file_is_written_again_as_the_lease_is_now(autojump_clock: MockClock) -> None:
    store, newer = SlowStore(), lease("a", Answer({"NEW": "1"}))
    store.takes = 1.0
    async with running(store) as (writer, replies):
        writer.write(lease("a"))
        await trio.sleep(0.5)
        writer.write(newer)
        await trio.sleep(30.0)
    assert store.files == {"a": newer}
    assert replies.received == [(2.0, FileWritten("lease-a"))]


async def test_a_removal_that_fails_is_tried_again_until_it_succeeds(autojump_clock: MockClock) -> None:
    """What else is asked for does not wait for that."""
    store, log = SlowStore(), Log()
    async with running(store, log) as (writer, replies):
        writer.write(lease("a"))
        await wait_all_tasks_blocked()
        store.failures = ["read-only"] * 3
        writer.remove("a")
        await trio.sleep(2.0)
        store.failures = [None, "read-only", "read-only"]
        writer.write(lease("b"))
        await trio.sleep(60.0)
    times = [time for time, call, _ in store.calls if call == "remove"]
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert (2.0, FileWritten("lease-b")) in replies.received
    assert set(store.files) == {"b"}
    warning = (Level.WARNING, "a CDI file cannot be written or removed: read-only")
    good = (Level.INFO, "CDI files are written again")
    assert log.lines == [warning, good, warning, good]


async def test_a_removal_that_fails_does_not_undo_the_write_that_was_asked_for_since(autojump_clock: MockClock) -> None:
    store = SlowStore()
    store.takes = 1.0
    async with running(store) as (writer, _):
        store.failures = ["read-only"]
        writer.remove("a")
        await trio.sleep(0.5)
        writer.write(lease("a"))
        await trio.sleep(60.0)
    assert [call for _, *call in store.calls] == [["remove", "a"], ["write", "a"]]
    assert set(store.files) == {"a"}


async def test_what_an_earlier_daemon_has_left_goes_when_the_leases_are_known(autojump_clock: MockClock) -> None:
    """Before anything is written: nothing is leased before that."""
    store = SlowStore()
    store.files, store.takes = {name: lease(name) for name in "abc"}, 1.0
    async with running(store) as (writer, _):
        writer.clean_later({"b"})
        writer.write(lease("c"))
        await trio.sleep(0.5)
        writer.write(lease("d"))
        await trio.sleep(10.0)
    assert set(store.files) == {"b", "c", "d"}


@pytest.mark.parametrize(("takes", "failure", "problem"), [(0.0, "read-only", "read-only"), (60.0, None, LATE)])
async def test_a_start_does_not_depend_on_the_directory(
    autojump_clock: MockClock, takes: float, failure: str | None, problem: str
) -> None:
    store, log = SlowStore(), Log()
    store.takes, store.failures = takes, [failure]
    writer = CdiWriter(found(store), Replies(), log)
    await writer.clean(())
    assert trio.current_time() <= 5.0
    assert writer.problem == problem
    assert log.lines == [(Level.WARNING, f"a CDI file cannot be written or removed: {problem}")]


async def test_a_writer_that_is_started_again_answers_and_removes_what_it_was_at(autojump_clock: MockClock) -> None:
    store, replies = SlowStore(), Replies()
    store.takes = 1.0
    writer = CdiWriter(found(store), replies, SILENT)
    writer.write(lease("a"))
    writer.write(lease("b"))
    with trio.move_on_after(0.5):
        await writer.run()
    with trio.move_on_after(20.0):
        await writer.run()
    stopped = FileWritten("lease-a", "plugind has stopped amid the writing of its CDI file")
    assert replies.received == [(0.5, stopped), (1.5, FileWritten("lease-b"))]
    assert [call for _, *call in store.calls] == [["write", "a"], ["write", "b"], ["remove", "a"]]


@pytest.mark.parametrize(("takes", "answers"), [(1.0, [(1.5, None)]), (7.0, [(5.0, LATE), (13.0, None)])])
async def test_the_file_of_a_held_lease_is_written_again_after_a_crash_amid_its_writing(
    autojump_clock: MockClock, takes: float, answers: list[tuple[float, str | None]]
) -> None:
    """A container may be about to start with it, whether or not its lease has been answered (seed 2702485)."""
    held, store, replies = lease("a").moved(LeaseState.HELD), SlowStore(), Replies()
    store.takes = takes
    writer = CdiWriter(found(store), replies, SILENT)
    writer.write(held)
    with trio.move_on_after(takes - 0.5 if takes < DEADLINE else DEADLINE + 1.0):
        await writer.run()
    with trio.move_on_after(20.0):
        await writer.run()
    assert [call for _, *call in store.calls] == [["write", "a"], ["write", "a"]]
    assert store.files == {"a": held}
    assert replies.received == [(time, FileWritten("lease-a", error)) for time, error in answers]


class RemovingFiles(CdiFiles):
    """Files that tell when one was removed."""

    def __init__(self, directory: Path) -> None:
        super().__init__("abc", Hook(("/p",), "/s"), directory=str(directory / "cdi"))
        self.removed = trio.Event()

    async def remove(self, name: str) -> None:
        await super().remove(name)
        self.removed.set()


async def test_a_directory_that_hangs_holds_neither_the_loop_nor_the_files_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """A real thread hangs amid a write; the removal that follows comes after it."""
    begun, hangs, fsync = trio.Event(), threading.Event(), os.fsync

    def hanging(descriptor: int) -> None:
        trio.from_thread.run_sync(begun.set)
        hangs.wait(30.0)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging)
    files = RemovingFiles(tmp_path)
    async with running(files) as (writer, replies):
        writer.write(lease("a"))
        await begun.wait()
        mock_clock.jump(5.0)
        await replies.some.wait()
        assert replies.messages == [FileWritten("lease-a", LATE)]
        assert not files.removed.is_set()
        hangs.set()
        await files.removed.wait()
        assert os.listdir(tmp_path / "cdi") == []
