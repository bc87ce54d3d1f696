"""One watcher per root: inotify and polling, which tell the reconciler what is there, by generation.

Events only say where to look; a periodic scan of everything repairs whatever they lost, and is all there is where
inotify is not to be had (behaviour 14). This module has the root, the schedule and the reports; how it looks is in
:mod:`plugind.actors.scanner`, what follows from a look in :mod:`plugind.protocol.discovery`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import attrs
import trio

from ..protocol.discovery import Discovery, Kind
from ..protocol.messages import ReconcilerMessage, RootReported, ScanCompleted, StatusMessage
from ..protocol.status import Watching
from .io.directory import Directory
from .scanner import Scanner, words

#: Events that can be lost come so fast only where somebody floods the root: seconds between two scans for their sake.
_OVERFLOW_GAP = 0.1

#: A scan goes by the inodes in the listing, which do not tell of a mount over a socket; every so many-th does not.
_DEEP = 6


@attrs.frozen
class WatcherConfig:
    """What a watcher is told of its root. Times are in seconds."""

    #: An absolute path without a slash at its end.
    root: str
    #: Plugins found here are registered with a warning (behaviour 16).
    deprecated: bool = False
    rescan: float = 10.0
    #: The part of ``rescan`` by which each period may be shorter or longer.
    jitter: float = 0.1
    max_depth: int = 8
    max_entries: int = 100_000
    #: Take symbolic links that lead to a socket inside the root (behaviour 7).
    follow_symlinks_inside_root: bool = False
    #: A root that cannot be had is tried again after so long, then twice as long, and so on.
    retry: float = 0.5
    retry_cap: float = 30.0


async def run(
    config: WatcherConfig,
    *,
    directory: Directory,
    reconciler: trio.MemorySendChannel[ReconcilerMessage],
    status: trio.MemorySendChannel[StatusMessage],
    generations: Iterator[int],
    rng: random.Random,
) -> None:
    """Watch ``config.root`` until cancelled. Errors of the file system are reported; any other error is a bug."""
    watcher = _Watcher(config, directory, reconciler, status, generations, rng)
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
        directory: Directory,
        reconciler: trio.MemorySendChannel[ReconcilerMessage],
        status: trio.MemorySendChannel[StatusMessage],
        generations: Iterator[int],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._root = config.root
        self._reconciler = reconciler
        self._status = status
        self._rng = rng
        self._discovery = Discovery(
            config.root,
            generations,
            deprecated=config.deprecated,
            max_depth=config.max_depth,
            max_entries=config.max_entries,
        )
        self._scanner = Scanner(
            directory, self._discovery, self._send, follow_symlinks=config.follow_symlinks_inside_root
        )
        #: When the next look at everything is due, and whether the present one was due, or an event asked for it.
        self._due = trio.current_time()
        self._scheduled = True
        self._failed_tries = 0
        #: What events told of a root that could not be looked at.
        self._root_marks = 0
        self._last_overflow = -_OVERFLOW_GAP
        self._report = RootReported(config.root, Watching.UNAVAILABLE, 0.0, deprecated=config.deprecated)

    def close(self) -> None:
        self._scanner.close()

    # --- the two things that it does ----------------------------------------------------------------------------------

    async def rescan(self) -> None:
        """A full scan, and all that a first start does, so that a start, a rescan and a recovery are one thing."""
        self._scheduled = trio.current_time() >= self._due
        overflows = await self._begin_after_overflow()
        self._scanner.deep = self._report.scans % _DEEP == 0
        self._scanner.begin()
        failures = 0
        if await self._find_root():
            failures = await self._scanner.scan_tree()
        await self._conclude(failures, overflows)

    async def follow_events(self) -> None:
        """Look where events say that something happened, until everything must be looked at."""
        scanner = self._scanner
        while trio.current_time() < self._due:
            if scanner.watches.overflowed or self._root in scanner.watches.marks:
                return
            await scanner.wait(self._due)
            scanner.collect()
            await scanner.settle()

    async def _begin_after_overflow(self) -> int:
        """Count an overflow that the rescan recovers from; a flood of them must not starve the node (fault 19)."""
        if not self._scanner.watches.overflowed:
            return 0
        await trio.sleep_until(self._last_overflow + _OVERFLOW_GAP)
        self._last_overflow = trio.current_time()
        self._scanner.collect()
        self._scanner.watches.overflowed = False
        return 1

    async def _find_root(self) -> bool:
        """Whether the root is there: made if it is missing, found again if it is another one (faults 1, 14 to 16)."""
        scanner = self._scanner
        scanner.watch_parent()
        try:
            found = scanner.directory.look(self._root)
            if found is None and self._scheduled and not self._discovery.knows_directory(self._root):
                scanner.directory.make(self._root)
                scanner.watch_parent()
            scanner.collect()
            marks = self._take_root_marks()
            found = scanner.directory.look(self._root)
        except OSError as error:
            scanner.unavailable = f"cannot have {self._root}: {words(error)}"
            # Or they would ask for the next look at once, and so for ever.
            self._root_marks = self._take_root_marks()
            return False
        if found is None or found.kind is not Kind.DIRECTORY:
            # Not made again at once: whoever removes it may be about to remove what it lies in, or to make it himself.
            scanner.unavailable = f"{self._root} {'was removed' if found is None else 'is not a directory'}"
            found = None
        scanner.observe(self._root, found, marks)
        await scanner.flush()
        return found is not None

    def _take_root_marks(self) -> int:
        """What events told of the root since it was last judged."""
        marks = self._root_marks | self._scanner.watches.marks.pop(self._root, 0)
        self._root_marks = 0
        return marks

    # --- telling ------------------------------------------------------------------------------------------------------

    async def _send(self, messages: Sequence[ReconcilerMessage]) -> None:
        """Report upwards; one checkpoint for all, since ten thousand sockets may appear at once."""
        for message in messages:
            try:
                self._reconciler.send_nowait(message)
            except trio.WouldBlock:
                await self._reconciler.send(message)
        await trio.lowlevel.checkpoint()

    async def _conclude(self, failures: int, overflows: int) -> None:
        """Tell how the scan went, and when the next one is due."""
        scanner, report = self._scanner, self._report
        there = scanner.unavailable is None
        if there:
            whole = not (failures or scanner.last_error or self._discovery.over_limit)
            paths = self._discovery.paths() if whole and not scanner.complete else None
            scanner.complete = scanner.complete or whole
            await self._send([ScanCompleted(self._root, first=not report.ready, paths=paths)])
        self._report = attrs.evolve(
            report,
            watching=self._watching(),
            time=trio.current_time(),
            reason=scanner.unavailable or scanner.unwatched or scanner.last_error or self._crowded(),
            ready=report.ready or there,
            scans=report.scans + 1,
            scan_failures=report.scan_failures + failures + (not there),
            overflows=report.overflows + overflows,
            sockets=self._discovery.sockets,
        )
        self._due = trio.current_time() + self._delay()
        await self._status.send(self._report)

    def _watching(self) -> str:
        if self._scanner.unavailable is not None:
            return Watching.UNAVAILABLE
        return Watching.EVENTS if self._scanner.unwatched is None else Watching.POLLING

    def _crowded(self) -> str | None:
        if not self._discovery.over_limit:
            return None
        return f"{self._discovery.over_limit} entries beyond the limit of {self._config.max_entries} are not taken"

    def _delay(self) -> float:
        """Seconds to the next look at everything: soon and then less and less soon while something is wrong."""
        config, scanner = self._config, self._scanner
        period = config.rescan * (1 + self._rng.uniform(-config.jitter, config.jitter))
        if scanner.unavailable is None and scanner.unwatched is None:
            self._failed_tries = 0
            return period
        if scanner.unavailable is not None and self._failed_tries and not self._scheduled:
            return max(0.0, self._due - trio.current_time())
        again = min(config.retry_cap, config.retry * 2.0 ** min(self._failed_tries, 30))
        self._failed_tries += 1
        return again if scanner.unavailable is not None else min(again, period)
