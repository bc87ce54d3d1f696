"""The scanner by itself: what a rescan reports, which names it examines, and how it follows events."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Generic, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.discovery.directory import CHUNK, Chunk, Directory, LeaveOut, RealDirectory, take_all
from plugind.actors.discovery.scanner import Scanner, ScanReport
from plugind.actors.simulation.directory import MemoryDirectory, Telling
from plugind.protocol.discovery.sockets import MAX_LINKS, Discovery, Found, Message
from plugind.protocol.identity import Identity
from plugind.protocol.trust.directories import DirectoryCondition
from plugind.tests.actors.discovery.watching import ROOT, words
from plugind.tests.actors.io.exhaustion import descriptors

D = TypeVar("D", bound=Directory)

A, B, SUB = f"{ROOT}/a.sock", f"{ROOT}/b.sock", f"{ROOT}/sub"

FINE = ScanReport(
    unavailable=None, unwatched=None, last_error=None, failures=0, overflowed=False, over_limit=0, sockets=0, paths=None
)


@attrs.define
class Sent:
    """Records the messages of a scanner as lines, in the form that the tests of the watcher use."""

    lines: list[str] = attrs.Factory(list)

    async def __call__(self, messages: Sequence[Message]) -> None:
        self.lines += map(words, messages)
        await trio.lowlevel.checkpoint()

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@attrs.define
class Scanned(Generic[D]):
    """A scanner with its directory and the messages that it sent."""

    directory: D
    scanner: Scanner
    sent: Sent

    async def rescan(self, *, deep: bool = True, make_root: bool = False) -> ScanReport:
        return await self.scanner.rescan(deep=deep, make_root=make_root)


def scanned(directory: D, root: str = ROOT, max_entries: int = 1000, follow_symlinks: bool = False) -> Scanned[D]:
    sent = Sent()
    discovery = Discovery(root, itertools.count(1), max_entries=max_entries)
    return Scanned(directory, Scanner(directory, discovery, sent, follow_symlinks=follow_symlinks), sent)


def in_memory(*sockets: str, max_entries: int = 1000, telling: Telling = Telling.HANDLES) -> Scanned[MemoryDirectory]:
    directory = MemoryDirectory(telling=telling)
    directory.mkdir(ROOT)
    for path in sockets:
        directory.mkdir(os.path.dirname(path))
        directory.bind(path)
    return scanned(directory, max_entries=max_entries)


@asynccontextmanager
async def following(stage: Scanned[D], deadline: float = 1e9) -> AsyncIterator[trio.Event]:
    """Follow events until ``deadline`` while the block runs; the event is set when the scanner returns."""
    returned = trio.Event()

    async def follow() -> None:
        await stage.scanner.follow_events(deadline)
        returned.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        yield returned
        nursery.cancel_scope.cancel()


# --- what a rescan reports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_root", [True, False])
async def test_a_missing_root_is_made_only_on_request(autojump_clock: MockClock, make_root: bool) -> None:
    """Behaviour 1, fault 1."""
    directory = MemoryDirectory()
    directory.mkdir("/run")
    stage = scanned(directory)
    report = await stage.rescan(make_root=make_root)
    assert directory.exists(ROOT) == make_root
    missing = attrs.evolve(FINE, unavailable=f"{ROOT} is missing")
    assert report == (attrs.evolve(FINE, paths=frozenset(), made=True) if make_root else missing)
    assert make_root == (not (await stage.rescan()).unavailable), "it is made once"


class BoundMeanwhile(MemoryDirectory):
    """A socket is bound in the root once a part of the large directory ``SUB`` was listed."""

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        for number, chunk in enumerate(super().scan(path, known_sockets, deep=deep, leave_out=leave_out)):
            if path == SUB and number == 2:  # It has been found out that it is large.
                self.bind(A)
            yield chunk


async def test_a_socket_that_appears_during_the_scan_of_a_large_directory_does_not_wait_for_its_end(
    autojump_clock: MockClock,
) -> None:
    """Fault 48: 100,000 entries in one directory delayed every new plugin by seconds."""
    directory = BoundMeanwhile()
    directory.mkdir(SUB)
    last = 20 * CHUNK - 1
    for number in range(last + 1):
        directory.bind(f"{SUB}/{number}.sock")
    stage = scanned(directory, max_entries=1_000_000)
    await stage.rescan()
    appeared = [line.split()[0] for line in stage.sent.take()]
    assert appeared.index("a.sock") < appeared.index(f"sub/{last}.sock")
    assert len(appeared) == len(set(appeared)) == last + 2


def with_many_links(directory: MemoryDirectory) -> None:
    for number in range(MAX_LINKS + 3):
        directory.symlink("/nowhere", f"{SUB}/{number}")


def record_examined_links(directory: MemoryDirectory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    examined: list[str] = []
    leads_to_socket = directory.leads_to_socket

    def recording(path: str) -> bool:
        examined.append(path)
        return leads_to_socket(path)

    monkeypatch.setattr(directory, "leads_to_socket", recording)
    return examined


async def test_only_so_many_new_links_of_a_directory_are_examined_in_a_rescan(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 48: links that lead nowhere are no entries, so no quota of entries bounds the work that they cause."""
    directory = MemoryDirectory()
    directory.mkdir(SUB)
    with_many_links(directory)
    directory.bind(A)
    examined = record_examined_links(directory, monkeypatch)
    stage = scanned(directory)
    for _ in range(2):
        report = await stage.rescan()
        assert len(examined) == MAX_LINKS
        assert [(found.path, found.condition) for found in report.directories] == [(SUB, DirectoryCondition.FULL)]
        assert (report.sockets, report.over_limit) == (1, 3)
        examined.clear()


async def test_entries_over_the_limit_are_counted_again_by_each_rescan(autojump_clock: MockClock) -> None:
    """Fault 48."""
    stage = in_memory(A, B, f"{ROOT}/c.sock", max_entries=4)
    full = f"1 entry of {ROOT} is not taken: it has 2 sockets, as many as it may have beside other directories"
    for _ in range(2):
        report = await stage.rescan()
        (directory,) = report.directories
        assert (directory.path, directory.condition) == (ROOT, DirectoryCondition.FULL)
        assert directory.reason.startswith(full)
        assert attrs.evolve(report, directories=()) == attrs.evolve(FINE, sockets=2, over_limit=1)
    stage.directory.unlink(A)
    assert (await stage.rescan()).over_limit == 1, "a place becomes free only after the listing"
    assert await stage.rescan() == attrs.evolve(FINE, sockets=2, paths=frozenset({B, f"{ROOT}/c.sock"}))


async def test_marks_of_the_root_survive_a_rescan_that_fails_at_the_last_moment(autojump_clock: MockClock) -> None:
    """Faults 10 and 26: the root was recreated with its old inode number, and only the event shows it."""

    class FailsOnce(MemoryDirectory):
        fail_at = 0

        def look(self, path: str) -> Found | None:
            self.fail_at -= path == ROOT
            if path == ROOT and self.fail_at == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().look(path)

    stage = scanned(FailsOnce(telling=Telling.NOTHING))
    stage.directory.mkdir(ROOT)
    stage.directory.bind(A)
    await stage.rescan()
    before = stage.directory.look(ROOT)
    stage.directory.remove_tree(ROOT)
    stage.directory.mkdir(ROOT)
    stage.directory.bind(A)
    assert stage.directory.look(ROOT) == before
    stage.directory.fail_at = 2
    assert (await stage.rescan()).unavailable == f"cannot use {ROOT}: Input/output error"
    assert stage.sent.take() == ["a.sock appeared #1 (first scan)"]
    assert (await stage.rescan()).unavailable is None
    assert stage.sent.take() == ["a.sock vanished #1", "a.sock appeared #2"]


# --- which names it examines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
async def test_only_a_deep_rescan_looks_at_a_known_socket_again(autojump_clock: MockClock, deep: bool) -> None:
    """A deep rescan alone notices another device under the same inode number (fault 16)."""
    stage = in_memory(A)
    await stage.rescan()
    stage.directory.inode(A).device = 2
    await stage.rescan(deep=deep)
    assert stage.sent.take()[1:] == ["a.sock appeared #2"] * deep


@pytest.mark.parametrize("telling", Telling)
async def test_every_rescan_looks_at_each_name_if_events_may_be_lost(
    autojump_clock: MockClock, telling: Telling
) -> None:
    """Faults 11 and 24: without inotify only the file's own marks reveal a recreated socket."""
    stage = in_memory(A, telling=telling)
    stage.directory.inotify.instances_left = 0
    await stage.rescan()
    await trio.sleep(1)
    stage.directory.replace(A)
    await stage.rescan(deep=False)
    assert stage.sent.take()[1:] == ["a.sock appeared #2"]


async def test_marks_on_a_name_that_cannot_be_looked_at_wait_for_the_next_rescan(autojump_clock: MockClock) -> None:
    """Faults 10 and 26, seed 982: the new socket has the inode and the change time of the old one."""
    stage = in_memory(A, telling=Telling.NOTHING)
    await stage.rescan()
    stage.directory.look_errors[A] = errno.EACCES
    stage.directory.replace(A)
    async with following(stage):
        await wait_all_tasks_blocked()
    assert stage.sent.take()[1:] == []
    stage.directory.look_errors.clear()
    await stage.rescan()
    assert stage.sent.take() == ["a.sock appeared #2"]


# --- how it follows events --------------------------------------------------------------------------------------------


async def test_an_event_makes_the_scanner_examine_one_name_and_read_no_directory(autojump_clock: MockClock) -> None:
    """Behaviours 3, 4 and 9."""
    stage = in_memory(A)
    await stage.rescan()
    stage.sent.take()
    scans = stage.directory.scans
    async with following(stage):
        stage.directory.bind(B)
        await wait_all_tasks_blocked()
        stage.directory.replace(A)
        await wait_all_tasks_blocked()
        stage.directory.unlink(B)
        await wait_all_tasks_blocked()
    assert stage.sent.take() == ["b.sock appeared #2", "a.sock appeared #3", "b.sock vanished #2"]
    assert stage.directory.scans == scans


async def test_a_new_directory_is_watched_before_it_is_read(autojump_clock: MockClock) -> None:
    """Fault 12: a socket that is bound between the two steps is found once."""

    class Racing(MemoryDirectory):
        def scan(
            self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
        ) -> Generator[Chunk, None, None]:
            if path == SUB and not self.exists(f"{SUB}/b.sock"):
                self.bind(f"{SUB}/b.sock")
            return super().scan(path, known_sockets, deep=deep, leave_out=leave_out)

    stage = scanned(Racing())
    stage.directory.mkdir(ROOT)
    await stage.rescan()
    async with following(stage):
        stage.directory.mkdir(SUB)
        await wait_all_tasks_blocked()
        stage.directory.bind(f"{SUB}/c.sock")
        await wait_all_tasks_blocked()
    assert stage.sent.take() == ["sub/b.sock appeared #1", "sub/c.sock appeared #2"]


class RecreatedAtTheStart(MemoryDirectory):
    """Everything is removed and made again after the first watch and before the first listing of its directory."""

    recreated = False

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        if not self.recreated:
            self.recreated = True
            self.replace(A)
            self.remove_tree(SUB)
            self.mkdir(SUB)
            self.bind(f"{SUB}/b.sock")
        return super().scan(path, known_sockets, deep=deep, leave_out=leave_out)


async def test_a_socket_that_is_recreated_around_the_start_is_one_generation(autojump_clock: MockClock) -> None:
    """Behaviour 9: the scan finds the new socket before the events of its removal and creation, which were queued.

    The same holds for the directory of a socket.
    """
    directory = RecreatedAtTheStart()
    directory.mkdir(SUB)
    directory.bind(A)
    directory.bind(f"{SUB}/b.sock")
    stage = scanned(directory)
    # The scanner watches the root first: what happens between watch and listing is in the queue, and in the listing.
    await stage.rescan()
    async with following(stage):
        await wait_all_tasks_blocked()
    assert stage.sent.take() == ["a.sock appeared #1 (first scan)", "sub/b.sock appeared #2 (first scan)"]


async def test_without_file_handles_the_events_of_a_removal_are_used(autojump_clock: MockClock) -> None:
    """Behaviour 13: the new socket may have the inode number and the times of the old one."""
    directory = RecreatedAtTheStart(telling=Telling.BIRTHS)
    directory.mkdir(SUB)
    directory.bind(A)
    directory.bind(f"{SUB}/b.sock")
    stage = scanned(directory)
    await stage.rescan()
    async with following(stage):
        await wait_all_tasks_blocked()
    appearances = [line for line in stage.sent.take() if line.startswith("a.sock appeared")]
    assert appearances == ["a.sock appeared #1 (first scan)", "a.sock appeared #2"]


# --- a real directory -------------------------------------------------------------------------------------------------


def bound(path: Path) -> str:
    """Create a socket file without a listener, which a scanner does not need."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
    return str(path)


def names(lines: list[str], root: Path) -> list[str]:
    return [line.removeprefix(f"{root}/").partition(" #")[0] for line in lines]


async def test_a_rescan_of_a_real_directory(tmp_path: Path) -> None:
    """Faults 5 to 8: a FIFO and a plain file are ignored; a link and a second name are refused."""
    first, below = bound(tmp_path / "a.sock"), tmp_path / "sub"
    below.mkdir()
    second = bound(below / "b.sock")
    bound(tmp_path / ".hidden.sock")
    os.mkfifo(tmp_path / "fifo.sock")
    (tmp_path / "plain.sock").touch()
    stage = scanned(RealDirectory(str(tmp_path)), str(tmp_path))
    with closing(stage.scanner):
        assert await stage.rescan() == attrs.evolve(FINE, sockets=2, paths=frozenset({first, second}))
        os.link(first, tmp_path / "c.sock")
        (tmp_path / "d.sock").symlink_to("a.sock")
        assert await stage.rescan(deep=False) == attrs.evolve(FINE, sockets=2)
        lines = names(stage.sent.take(), tmp_path)
        assert sorted(lines[:4]) == [
            "a.sock appeared",
            "fifo.sock is no socket",
            "plain.sock is no socket",
            "sub/b.sock appeared",
        ]
        assert sorted(lines[4:]) == ["a.sock touched", "c.sock refused", "d.sock refused"]


async def test_a_scanner_of_a_real_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()
    directory = RealDirectory(str(tmp_path))
    stage = scanned(directory, str(tmp_path))
    for _ in range(2):
        await stage.rescan()
    stage.scanner.close()
    directory.release()
    assert descriptors() == before
