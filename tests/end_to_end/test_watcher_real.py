"""The watcher on a real file system with real inotify. Time is real, so no test asserts a duration."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.discovery import watcher
from plugind.actors.discovery.directory import RealDirectory, describe, describe_inotify
from plugind.protocol.messages.discovery import EntryRefused, ScanCompleted, SocketAppeared, SocketVanished
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import RootStatus, StatusMessage
from plugind.tests.actors.io.exhaustion import no_descriptor_left
from plugind.tests.end_to_end.processes import DEADLINE


@attrs.define
class Seen:
    """The reports of the watcher so far: the sockets, the refused entries and the state of the root."""

    sockets: dict[str, int] = attrs.Factory(dict)
    refused: dict[str, str] = attrs.Factory(dict)
    report: RootStatus | None = None
    changed: trio.Event = attrs.Factory(trio.Event)

    def note(self, message: ReconcilerMessage | StatusMessage) -> None:
        match message:
            case SocketAppeared():
                self.sockets[message.path] = message.generation
            case EntryRefused():
                self.refused[message.path] = message.reason
            case SocketVanished():
                self.sockets.pop(message.path, None)
                self.refused.pop(message.path, None)
            case RootStatus():
                self.report = message
            case ScanCompleted():
                return
            case _:
                return
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(DEADLINE):
            while not holds():
                await self.changed.wait()


@asynccontextmanager
async def watching(root: Path, rescan: float = 60.0) -> AsyncIterator[Seen]:
    """Run a watcher. The default period is so long that no rescan hides a missed event."""
    seen, directory = Seen(), RealDirectory(str(root))
    reconciler, sent = trio.open_memory_channel[ReconcilerMessage](1000)
    status, reported = trio.open_memory_channel[StatusMessage](1000)

    async def collect(channel: trio.MemoryReceiveChannel[ReconcilerMessage]) -> None:
        async for message in channel:
            seen.note(message)

    async def collect_reports(channel: trio.MemoryReceiveChannel[StatusMessage]) -> None:
        async for message in channel:
            seen.note(message)

    async def watch() -> None:
        await watcher.run(
            watcher.WatcherConfig(str(root), rescan=rescan),
            watcher.WatcherInbox(),
            directory=directory,
            reconciler=reconciler,
            status=status,
            generations=itertools.count(1),
            rng=random.Random(1),
        )

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, sent)
            nursery.start_soon(collect_reports, reported)
            nursery.start_soon(watch)
            await seen.until(lambda: seen.report is not None)
            yield seen
            nursery.cancel_scope.cancel()
    finally:
        directory.release()


@pytest.fixture
def bind() -> Iterator[Callable[[Path], str]]:
    """Return a function that binds a listener, which stays open until the test ends."""
    alive: list[socket.socket] = []

    def listen(path: Path) -> str:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        alive.append(listener)
        return str(path)

    yield listen
    for listener in alive:
        listener.close()


Bind = Callable[[Path], str]


async def test_a_recreated_socket_is_a_new_generation(tmp_path: Path, bind: Bind) -> None:
    """Faults 10 and 11, behaviour 13."""
    (tmp_path / "a/b").mkdir(parents=True)
    async with watching(tmp_path / "a/b/root") as seen:
        path = bind(tmp_path / "a/b/root/a.sock")
        await seen.until(lambda: seen.sockets == {path: 1})
        os.unlink(path)
        bind(Path(path))
        await seen.until(lambda: seen.sockets.get(path, 0) > 1)
        os.unlink(path)
        await seen.until(lambda: seen.sockets == {})


async def test_nested_directories_and_renames_are_followed(tmp_path: Path, bind: Bind) -> None:
    """Behaviours 4 and 5, faults 8, 9 and 12."""
    async with watching(tmp_path) as seen:
        (tmp_path / "x/y/.z").mkdir(parents=True)
        bind(tmp_path / "x/y/.z/hidden.sock")
        first, second = bind(tmp_path / "x/a.sock"), bind(tmp_path / "x/y/b.sock")
        await seen.until(lambda: seen.sockets.keys() == {first, second})
        (tmp_path / "x").rename(tmp_path / "w")
        moved = {str(tmp_path / "w/a.sock"), str(tmp_path / "w/y/b.sock")}
        await seen.until(lambda: seen.sockets.keys() == moved)
        os.link(tmp_path / "w/a.sock", tmp_path / "c.sock")
        (tmp_path / "d.sock").symlink_to("w/a.sock")
        await seen.until(lambda: seen.refused.keys() == {str(tmp_path / "c.sock"), str(tmp_path / "d.sock")})
        (tmp_path / "w/a.sock").unlink()
        await seen.until(lambda: seen.sockets.keys() == {str(tmp_path / "c.sock"), str(tmp_path / "w/y/b.sock")})


async def test_a_root_that_is_removed_under_a_listener_is_watched_again(tmp_path: Path, bind: Bind) -> None:
    """Behaviours 10 and 11, fault 14: the kernel withholds DELETE_SELF while the listener is open."""
    root = tmp_path / "root"
    async with watching(root) as seen:
        path = bind(root / "a.sock")
        await seen.until(lambda: path in seen.sockets)
        shutil.rmtree(root)
        await seen.until(lambda: seen.sockets == {})
        await seen.until(lambda: seen.report is not None and seen.report.watching == "events" and root.is_dir())
        path = bind(root / "b.sock")
        await seen.until(lambda: seen.sockets.keys() == {path})


async def test_a_root_that_is_moved_away_and_recreated_is_watched_again(tmp_path: Path, bind: Bind) -> None:
    """Fault 15."""
    root = tmp_path / "root"
    async with watching(root) as seen:
        bind(root / "a.sock")
        await seen.until(lambda: len(seen.sockets) == 1)
        root.rename(tmp_path / "old")
        root.mkdir()
        path = bind(root / "b.sock")
        await seen.until(lambda: seen.sockets.keys() == {path})
        bind(tmp_path / "old/c.sock")
        path_again = bind(root / "d.sock")
        await seen.until(lambda: seen.sockets.keys() == {path, path_again})


async def test_a_root_that_cannot_be_opened_for_want_of_descriptors_names_their_limit(tmp_path: Path) -> None:
    """Fault 46: it named the limit of inotify. Only where no instance can be made may that be the cause."""
    directory = RealDirectory(str(tmp_path))
    with no_descriptor_left():
        with pytest.raises(OSError, match="Too many open files") as opening:
            next(directory.scan(str(tmp_path), {}, deep=True))
        with pytest.raises(OSError, match="Too many open files") as starting:
            directory.events()
    assert describe(opening.value) == "too many open files (raise the limit: ulimit -n)"
    assert "fs.inotify.max_user_instances" in describe_inotify(starting.value)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert describe(full) == "No space left on device", "a root may be made on a disk that is full"
    assert describe_inotify(full) == "no inotify watches are left (fs.inotify.max_user_watches)"


def test_a_root_is_scanned_though_the_process_has_no_descriptors_left(tmp_path: Path, bind: Bind) -> None:
    """Fault 46: the scans failed, so that a root with many slow plugins was unavailable."""
    path = Path(bind(tmp_path / "a.sock"))
    before = set(os.listdir("/proc/self/fd"))
    directory = RealDirectory(str(tmp_path))
    directory.hold(str(tmp_path))
    with no_descriptor_left():
        for _ in range(3):
            directory.hold(str(tmp_path))
            found = [name for chunk in directory.scan(str(tmp_path), {}, deep=True) for name, _ in chunk.found]
            assert found == [path.name]
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_PATH)
    directory.release()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_no_descriptor_outlives_the_watcher(tmp_path: Path) -> None:
    """Known problem of the reference: its watcher outlives its tests and leaks descriptors."""
    before = set(os.listdir("/proc/self/fd"))
    async with watching(tmp_path):
        assert set(os.listdir("/proc/self/fd")) > before
    assert set(os.listdir("/proc/self/fd")) == before
