"""Runs a watcher on a directory in memory and records its messages as a transcript with times."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from plugind.actors.discovery import watcher
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.protocol.messages.discovery import (
    EntryIgnored,
    EntryRefused,
    ScanCompleted,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
)
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import RootStatus, StatusMessage

ROOT = "/run/plugins"

Line = tuple[float, str]


def short(path: str) -> str:
    return path.removeprefix(ROOT + "/")


def words(message: ReconcilerMessage | StatusMessage) -> str:
    match message:
        case SocketAppeared():
            extra = " (first scan)" * message.first_scan + " (deprecated)" * message.deprecated
            return f"{short(message.path)} appeared #{message.generation}{extra}"
        case SocketVanished():
            return f"{short(message.path)} vanished #{message.generation}"
        case SocketTouched():
            return f"{short(message.path)} touched #{message.generation}"
        case EntryIgnored():
            return f"{short(message.path)} is {'a directory' if message.directory else 'no socket'}"
        case EntryRefused():
            return f"{short(message.path)} refused #{message.generation}: {message.reason.replace(ROOT + '/', '')}"
        case ScanCompleted():
            paths = "" if message.paths is None else f" of {sorted(map(short, message.paths))}"
            return f"{'first ' * message.first}scan completed{paths}"
        case RootStatus():
            return f"{message.watching}: {message.reason}" if message.reason else message.watching
        case _:
            raise AssertionError(message)


@attrs.define
class Stage:
    """A directory to change, and the messages of its watcher as lines."""

    directory: MemoryDirectory
    #: What the watcher is asked to do.
    asks: watcher.WatcherInbox = attrs.Factory(watcher.WatcherInbox)
    lines: list[Line] = attrs.Factory(list)
    reports: list[RootStatus] = attrs.Factory(list)
    #: The latest generation of each path, and every generation so far.
    latest: dict[str, int] = attrs.Factory(dict)
    generations: list[int] = attrs.Factory(list)
    #: The paths with a socket, according to the latest message about each.
    sockets: set[str] = attrs.Factory(set)

    async def sent(self) -> list[str]:
        """Wait until all tasks are blocked; return the new lines, without rescans that found nothing new."""
        await trio.testing.wait_all_tasks_blocked()
        lines, self.lines = self.lines, []
        return [line for _, line in lines if line != "scan completed"]

    async def timeline(self) -> list[Line]:
        await trio.testing.wait_all_tasks_blocked()
        lines, self.lines = self.lines, []
        return lines

    def note(self, message: ReconcilerMessage | StatusMessage) -> None:
        self.lines.append((round(trio.current_time(), 6), words(message)))
        if isinstance(message, RootStatus):
            self.reports.append(message)
            self.lines.pop()
        elif isinstance(message, SocketAppeared | EntryRefused):
            self.generations.append(message.generation)
            self.latest[message.path] = message.generation
            if isinstance(message, SocketAppeared):
                self.sockets.add(message.path)
        elif isinstance(message, SocketVanished):
            assert self.latest.pop(message.path) == message.generation
            self.sockets.discard(message.path)


Prepare = Callable[[MemoryDirectory], None]


@asynccontextmanager
async def staged(
    directory: MemoryDirectory | None = None,
    prepare: Prepare = lambda directory: directory.mkdir(ROOT),
    config: watcher.WatcherConfig | None = None,
    inbox: float = 10_000,
) -> AsyncIterator[Stage]:
    """Run a watcher, without jitter unless ``config`` has some."""
    directory = directory or MemoryDirectory()
    config = config or watcher.WatcherConfig(ROOT, jitter=0.0)
    prepare(directory)
    stage = Stage(directory)
    reconciler, sent = trio.open_memory_channel[ReconcilerMessage](inbox)
    status, reported = trio.open_memory_channel[StatusMessage](inbox)

    async def collect(channel: trio.MemoryReceiveChannel[ReconcilerMessage]) -> None:
        async for message in channel:
            stage.note(message)

    async def collect_reports(channel: trio.MemoryReceiveChannel[StatusMessage]) -> None:
        async for message in channel:
            stage.note(message)

    async def watch() -> None:
        await watcher.run(
            config,
            stage.asks,
            directory=directory,
            reconciler=reconciler,
            status=status,
            generations=itertools.count(1),
            rng=random.Random(7),
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, sent)
        nursery.start_soon(collect_reports, reported)
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        yield stage
        nursery.cancel_scope.cancel()
    assert directory.inotify.instances == [], "a watcher that ended left an instance of inotify behind"
