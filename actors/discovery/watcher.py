"""The watcher of one root: it reports to the reconciler which sockets are there, by generation.

A watcher alternates between a rescan of everything and following events (behaviour 14). It owns the schedule: when a
rescan is due, how soon to try again after an error, and how often an overflow may cause a rescan. Its
:class:`~plugind.actors.discovery.scanner.Scanner` does the work, and sends to the reconciler what appears and vanishes.
A rescan returns a :class:`~plugind.actors.discovery.scanner.ScanReport`, which the watcher turns into ``ScanCompleted``
for the reconciler and ``RootStatus`` for the status actor.

When a dial has found another file at a path, ``LookNow`` makes the watcher look there at once (fault 41).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

import attrs
import trio

from ...protocol.discovery.sockets import Discovery
from ...protocol.messages.config import TrustChanged
from ...protocol.messages.discovery import LookNow, RescanNow, ScanCompleted, WatcherMessage
from ...protocol.messages.reconciler import ReconcilerMessage
from ...protocol.messages.status import RootStatus, StatusMessage
from ...protocol.plugins.status import Watching
from ...protocol.trust.directories import DirectoryReport, Trusts, count, trusts_nobody, worst
from ...protocol.values import record, value
from .directory import Directory
from .scanner import Scanner, ScanReport

#: Seconds between two rescans after overflows. Only a program that floods the root causes more.
_OVERFLOW_GAP = 0.1

#: Seconds between two looks that registrations ask for. Events already follow a socket that keeps being replaced.
_LOOK_GAP = 0.1

#: One in this many rescans is a deep one. The others compare the inode numbers in the listing, which do not show that
#: something is mounted over a socket.
_DEEP = 6


@value
class WatcherConfig:
    """The configuration of one watcher. Times are in seconds."""

    root: str
    #: Whether plugins found here are registered with a warning (behaviour 16).
    deprecated: bool = False
    rescan: float = 10.0
    #: The part of ``rescan`` by which each period may be shorter or longer.
    jitter: float = 0.1
    max_depth: int = 8
    max_entries: int = 100_000
    #: Whether to accept symbolic links that lead to a socket inside the root (behaviour 7).
    follow_symlinks_inside_root: bool = False
    #: Whether others may write to the root and to the directories below it (fault 3).
    insecure: bool = False
    #: Whether the root may be missing.
    optional: bool = False
    make: bool = True
    #: Who may own directories below the root, besides root and the user of the daemon.
    trusts: Trusts = trusts_nobody
    #: The delay before an unavailable root is tried again. It doubles with each failure.
    retry: float = 0.5
    retry_cap: float = 30.0


@record(eq=False)
class WatcherInbox:
    """The inbox of a watcher, which outlives a watcher that crashes.

    Equal messages coalesce, which bounds the inbox.
    """

    _messages: dict[WatcherMessage, None] = attrs.Factory(dict)
    _wake: Callable[[], None] | None = None

    def send_nowait(self, message: WatcherMessage, /) -> None:
        """Add ``message``, unless there is an equal one, and wake the watcher."""
        self._messages[message] = None
        if self._wake is not None:
            self._wake()

    def take(self) -> list[WatcherMessage]:
        """Remove and return all messages."""
        messages, self._messages = list(self._messages), {}
        return messages

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` for each message from now on, and now if there are messages."""
        self._wake = wake
        if self._messages:
            wake()


async def run(
    config: WatcherConfig,
    inbox: WatcherInbox,
    *,
    directory: Directory,
    reconciler: trio.MemorySendChannel[ReconcilerMessage],
    status: trio.MemorySendChannel[StatusMessage],
    generations: Iterator[int],
    rng: random.Random,
) -> None:
    """Watch ``config.root`` until cancelled. Errors of the file system are reported; other errors are bugs."""
    watcher = _Watcher(config, inbox, directory, reconciler, status, generations, rng)
    try:
        while True:
            await watcher.rescan()
            await watcher.follow_events()
    finally:
        watcher.close()


class _Watcher:
    def __init__(
        self,
        config: WatcherConfig,
        inbox: WatcherInbox,
        directory: Directory,
        reconciler: trio.MemorySendChannel[ReconcilerMessage],
        status: trio.MemorySendChannel[StatusMessage],
        generations: Iterator[int],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._reconciler = reconciler
        self._status = status
        self._rng = rng
        self._discovery = discovery = Discovery(
            config.root,
            generations,
            deprecated=config.deprecated,
            max_depth=config.max_depth,
            max_entries=config.max_entries,
            insecure=config.insecure,
            trusts=config.trusts,
        )
        self._scanner = Scanner(directory, discovery, self._send, follow_symlinks=config.follow_symlinks_inside_root)
        inbox.wake_by(self._scanner.wake)
        #: Whether the next rescan is a deep one because a rescan was requested.
        self._deep = False
        self._due = trio.current_time()
        #: How often in a row the root was unavailable, or not watched by inotify, when a rescan was due.
        self._failed_tries = 0
        self._scanned = False
        self._last_overflow = -_OVERFLOW_GAP
        #: The paths to look at, once the last look was long enough ago.
        self._to_look_at: dict[str, None] = {}
        self._last_look = -_LOOK_GAP
        #: The last report to the status actor, whose counters go on.
        self._report = RootStatus(config.root, Watching.UNAVAILABLE, 0.0, deprecated=config.deprecated)

    async def rescan(self) -> None:
        """Rescan everything and report. This is the same at the start, on schedule and after an error."""
        scheduled = trio.current_time() >= self._due
        await self._pause_between_overflows()
        deep, self._deep = self._deep or self._report.scans % _DEEP == 0, False
        scan = await self._scanner.rescan(deep=deep, make_root=scheduled and self._config.make)
        await self._conclude(scan, scheduled=scheduled)

    async def follow_events(self) -> None:
        """Let the scanner follow events, and obey messages, until the next rescan is due or needed."""
        await self._scanner.follow_events(self._due)
        while (messages := self._inbox.take()) or self._may_look:
            for message in messages:
                self._obey(message)
            if self._may_look:
                await self._look()
            await self._scanner.follow_events(min(self._due, self._next_look))

    @property
    def _next_look(self) -> float:
        """When to look at the requested paths; infinity if there are none."""
        return self._last_look + _LOOK_GAP if self._to_look_at else math.inf

    @property
    def _may_look(self) -> bool:
        return trio.current_time() >= self._next_look

    async def _look(self) -> None:
        paths, self._to_look_at = self._to_look_at, {}
        self._last_look = trio.current_time()
        await self._scanner.look_at(paths)

    def _obey(self, message: WatcherMessage) -> None:
        match message:
            case RescanNow():
                self._due, self._deep = trio.current_time(), True
            case LookNow():
                self._to_look_at[message.path] = None
            case TrustChanged():
                self._discovery.trusts = message.trusts
                self._due, self._deep = trio.current_time(), True
            case _:
                assert_never(message)

    def close(self) -> None:
        self._scanner.close()

    async def _pause_between_overflows(self) -> None:
        """Wait if the last rescan after an overflow was just now: a flood must not starve the node (fault 19)."""
        if self._scanner.overflowed:
            await trio.sleep_until(self._last_overflow + _OVERFLOW_GAP)
            self._last_overflow = trio.current_time()

    async def _send(self, messages: Sequence[ReconcilerMessage]) -> None:
        """Send to the reconciler, with one checkpoint for all: ten thousand sockets may appear at once."""
        for message in messages:
            try:
                self._reconciler.send_nowait(message)
            except trio.WouldBlock:
                await self._reconciler.send(message)
        await trio.lowlevel.checkpoint()

    async def _conclude(self, scan: ScanReport, *, scheduled: bool) -> None:
        """Report the rescan, and set the time of the next one."""
        report, available, directories = self._report, scan.unavailable is None, worst(scan.directories)
        if available:
            await self._send([ScanCompleted(self._config.root, first=not self._scanned, paths=scan.paths)])
            self._scanned = True
        watching = self._watching(scan)
        ready = available or watching == Watching.ABSENT
        self._report = attrs.evolve(
            report,
            watching=watching,
            time=trio.current_time(),
            made=scan.made,
            reason=scan.unavailable or scan.unwatched or scan.last_error or _worst_reason(directories),
            directories=directories,
            conditions=count(scan.directories),
            ready=ready,
            scans=report.scans + 1,
            scan_failures=report.scan_failures + scan.failures + (not ready),
            overflows=report.overflows + scan.overflowed,
            sockets=scan.sockets,
        )
        self._due = trio.current_time() + self._delay(scan, scheduled=scheduled)
        await self._status.send(self._report)

    def _watching(self, scan: ScanReport) -> str:
        if scan.unavailable is not None:
            if scan.insecure:
                return Watching.INSECURE
            return Watching.ABSENT if self._config.optional and not self._scanned else Watching.UNAVAILABLE
        return Watching.EVENTS if scan.unwatched is None else Watching.POLLING

    def _delay(self, scan: ScanReport, *, scheduled: bool) -> float:
        """Return the seconds until the next rescan: the usual period, or after failures a delay that doubles."""
        config = self._config
        period = config.rescan * (1 + self._rng.uniform(-config.jitter, config.jitter))
        if scan.unavailable is None and scan.unwatched is None:
            self._failed_tries = 0
            return period
        if scan.unavailable is not None and self._failed_tries and not scheduled:
            # An event caused this rescan; the scheduled try stays when it was.
            return max(0.0, self._due - trio.current_time())
        delay = min(config.retry_cap, config.retry * 2.0 ** min(self._failed_tries, 30))
        self._failed_tries += 1
        return delay if scan.unavailable is not None else min(delay, period)


def _worst_reason(directories: tuple[DirectoryReport, ...]) -> str | None:
    return next((directory.reason for directory in directories if directory.condition.degrades), None)
