"""One watcher per root: inotify and polling, which tell the reconciler what is there, by generation.

Events only say where to look; a periodic scan of everything repairs whatever they lost, and is all there is where
inotify is not to be had. The order is always: watch, read the events that wait, look, judge. So whatever happens after
a look comes as an event after it, and whatever happened before it is not taken for news (faults 11 and 12).

What is judged is in :mod:`plugind.protocol.discovery`, what the events said in :mod:`plugind.protocol.watches`.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing

import attrs
import trio

from plugind.actors.io.directory import CHUNK, Chunk, Directory, Events
from plugind.protocol.discovery import LOOK, Discovery, Found, Kind
from plugind.protocol.messages import ReconcilerMessage, RootReported, ScanCompleted, StatusMessage, Watching
from plugind.protocol.watches import Watches, below

#: Events that can be lost come so fast only where somebody floods the root: seconds between two scans for their sake.
_OVERFLOW_GAP = 0.1


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
            await watcher.look_at_everything()
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
        self._directory = directory
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
        self._watches = Watches(config.root)
        self._events: Events | None = None
        #: Directories to watch and scan, and paths to look at again, for the sake of what was just found.
        self._enter: deque[str] = deque()
        self._again: deque[str] = deque()
        self._look_now = False
        #: When the next look at everything is due, and whether the present one was due, or an event asked for it.
        self._due = trio.current_time()
        self._timely = True
        self._failed_tries = 0
        #: Why the root cannot be had; why inotify cannot; what else the last scan could not do.
        self._unavailable: str | None = None
        self._unwatched: str | None = None
        self._trouble: str | None = None
        self._complete = False
        self._last_overflow = -_OVERFLOW_GAP
        self._report = RootReported(config.root, Watching.UNAVAILABLE, 0.0, deprecated=config.deprecated)

    def close(self) -> None:
        """Give the descriptor of inotify back."""
        if self._events is not None:
            self._events.close()

    # --- the two things that it does ----------------------------------------------------------------------------------

    async def look_at_everything(self) -> None:
        """A full scan, of all that a first start does, so that a start, a rescan and a recovery are one thing."""
        self._look_now = False
        self._timely = trio.current_time() >= self._due
        self._unwatched = self._trouble = None
        self._discovery.untaken = 0
        overflows = await self._begin_after_overflow()
        self._open_events()
        self._collect()
        failures = 0
        if await self._find_root():
            failures = await self._scan_tree()
            await self._settle()
        await self._conclude(failures, overflows)

    async def follow_events(self) -> None:
        """Look where events say that something happened, until the next look at everything is due."""
        while not self._look_now and not self._watches.overflowed and trio.current_time() < self._due:
            with trio.move_on_at(self._due):
                if self._events is None:
                    await trio.sleep_until(self._due)
                else:
                    await self._events.wait()
            self._collect()
            if self._watches.overflowed or self._root in self._watches.marks:
                return
            await self._settle()

    # --- the root -----------------------------------------------------------------------------------------------------

    async def _find_root(self) -> bool:
        """Whether the root is there: made if it is missing, found again if it is another one (faults 1, 14 to 16)."""
        self._unavailable = None
        marks = self._watches.marks.pop(self._root, 0)
        try:
            found = self._directory.look(self._root)
            if found is None and self._timely and not self._discovery.knows_directory(self._root):
                self._directory.make(self._root)
                found = self._directory.look(self._root)
        except OSError as error:
            self._unavailable = f"cannot have {self._root}: {_words(error)}"
            return False
        if found is None or found.kind is not Kind.DIRECTORY:
            # Not made again at once: whoever removes it may be about to remove what it lies in, or to make it himself.
            self._unavailable = f"{self._root} {'was removed' if found is None else 'is not a directory'}"
            found = None
        self._observe(self._root, found, marks)
        await self._flush()
        self._watch_parent()
        return found is not None

    def _watch_parent(self) -> None:
        parent = os.path.dirname(self._root)
        if self._events is None or parent == self._root:
            return
        try:
            self._watches.add_parent(self._events.watch_parent(parent))
        except OSError:
            # A parent that cannot be watched costs only time: the next scan sees what became of the root.
            return

    # --- scanning -----------------------------------------------------------------------------------------------------

    async def _scan_tree(self) -> int:
        """Scan the root and all beneath; how many directories could not be read."""
        failures = 0
        waiting = deque([self._root])
        while waiting and not self._unavailable:
            path = waiting.popleft()
            failures += not await self._scan(path)
            waiting.extend(self._discovery.subdirectories(path))
        self._enter.clear()
        return failures

    async def _scan(self, path: str) -> bool:
        """Watch one directory, then read it (fault 12). False: it could not be read, and nothing follows (fault 26)."""
        self._watch(path)
        trusted = self._watches.trusts(path)
        seen: set[str] = set()
        self._collect()
        try:
            with closing(self._directory.scan(path)) as chunks:
                for chunk in chunks:
                    self._judge_chunk(path, chunk, seen, trusted=trusted)
                    await self._flush()
                    self._collect()
        except (FileNotFoundError, NotADirectoryError):
            self._watches.put_back({path: LOOK})
            return True
        except OSError as error:
            self._fail(path, error)
            return False
        for missing in self._discovery.missing(path, seen):
            self._look(missing, self._watches.marks.pop(missing, 0))
        self._watches.trust(path)
        await self._flush()
        return True

    def _judge_chunk(self, path: str, chunk: Chunk, seen: set[str], *, trusted: bool) -> None:
        # Events that came between the look and now belong to the next look, but an overflow among them spoils this one.
        earlier = self._watches.take()
        self._collect()
        trusted = trusted and not self._watches.overflowed
        now = trio.current_time()
        for name, found in chunk:
            child = below(path, name)
            seen.add(child)
            if found is None:
                self._trouble = f"cannot look at {child}"
            else:
                self._observe(child, found, earlier.pop(child, 0), now=now, trusted=trusted)
        self._watches.put_back(earlier)

    def _fail(self, path: str, error: OSError) -> None:
        if path == self._root:
            self._unavailable = f"cannot read {path}: {_words(error)}"
        else:
            self._trouble = f"cannot read {path}: {_words(error)}"

    # --- events -------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Read the events that wait, and remember what they say."""
        if self._events is not None:
            for notice in self._events.read():
                self._watches.note(notice)

    async def _settle(self) -> None:
        """Look wherever something was said to have happened, and go on until nothing follows from that."""
        while True:
            if self._watches.marks:
                await self._look_at_marked()
            elif self._again:
                path = self._again.popleft()
                self._look(path, 0)
            elif self._enter:
                path = self._enter.popleft()
                if self._discovery.knows_directory(path):
                    await self._scan(path)
            else:
                return
            if self._root in self._watches.marks or self._watches.overflowed or self._unavailable:
                self._look_now = True
                return
            await self._flush()

    async def _look_at_marked(self) -> None:
        marked = self._watches.take()
        looks: list[tuple[str, int, Found | None]] = []
        for path, marks in marked.items():
            try:
                looks.append((path, marks, self._directory.look(path)))
            except OSError as error:
                self._trouble = f"cannot look at {path}: {_words(error)}"
        self._collect()
        # What went away makes room for what appeared: a rename is one of each (fault 9).
        looks.sort(key=lambda look: look[2] is not None)
        for count, (path, marks, found) in enumerate(looks, 1):
            self._observe(path, found, marks)
            self._revisit(path)
            if count % CHUNK == 0:
                await self._flush()

    def _revisit(self, path: str) -> None:
        """A directory that lost its watch, or could not be read, is entered again when something happened to it."""
        if self._discovery.knows_directory(path) and not self._watches.trusts(path):
            self._enter.append(path)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, path: str, marks: int) -> None:
        try:
            found = self._directory.look(path)
        except OSError as error:
            self._trouble = f"cannot look at {path}: {_words(error)}"
            return
        self._observe(path, found, marks)

    def _observe(
        self, path: str, found: Found | None, marks: int, *, now: float | None = None, trusted: bool | None = None
    ) -> None:
        refusal = None
        if found is not None and found.kind is Kind.SYMLINK and self._config.follow_symlinks_inside_root:
            found, refusal = self._follow(path, found)
        if found is not None and found.kind is Kind.SOCKET:
            self._look_at_rival(path, found)
        if trusted is None:
            trusted = self._watches.trusts(os.path.dirname(path))
        self._discovery.observe(
            path,
            found,
            marks,
            time=trio.current_time() if now is None else now,
            trusted=trusted,
            first=not self._complete,
            refusal=refusal,
        )

    def _look_at_rival(self, path: str, found: Found) -> None:
        rival = self._discovery.rival(path, found)
        if rival is None:
            return
        try:
            there = self._directory.look(rival)
        except OSError:
            return
        if there is not None and there.kind is Kind.SYMLINK:
            there = self._directory.follow(rival, self._root)
        self._discovery.observe(
            rival,
            there,
            self._watches.marks.pop(rival, 0),
            time=trio.current_time(),
            trusted=self._watches.trusts(os.path.dirname(rival)),
            first=not self._complete,
        )

    def _follow(self, path: str, link: Found) -> tuple[Found, str | None]:
        target = self._directory.follow(path, self._root)
        if target is not None and target.kind is Kind.SOCKET:
            return target, None
        return link, "a symbolic link that leads to no socket inside the root"

    # --- inotify ------------------------------------------------------------------------------------------------------

    def _open_events(self) -> None:
        if self._events is not None:
            return
        try:
            self._events = self._directory.events()
        except OSError as error:
            self._unwatched = f"no inotify instance: {_words(error)}"

    def _watch(self, path: str) -> None:
        if self._events is None or self._watches.has(path):
            return
        try:
            self._watches.add(path, self._events.watch(path))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._unwatched = f"cannot watch {path}: {_words(error)}"

    async def _begin_after_overflow(self) -> int:
        """Count an overflow that is about to be made good for; a flood of them may not starve the node (fault 19)."""
        if not self._watches.overflowed:
            return 0
        await trio.sleep_until(self._last_overflow + _OVERFLOW_GAP)
        self._last_overflow = trio.current_time()
        self._collect()
        self._watches.overflowed = False
        return 1

    # --- telling ------------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Send what follows from the looks so far, and let others run."""
        changes = self._discovery.take()
        for path in changes.leave:
            descriptor = self._watches.drop(path)
            if descriptor is not None and self._events is not None:
                self._events.unwatch(descriptor)
        self._enter.extend(changes.enter)
        self._again.extend(changes.again)
        await self._send(changes.messages)

    async def _send(self, messages: Iterable[ReconcilerMessage]) -> None:
        for message in messages:
            try:
                self._reconciler.send_nowait(message)
            except trio.WouldBlock:
                await self._reconciler.send(message)
        await trio.lowlevel.checkpoint()

    async def _conclude(self, failures: int, overflows: int) -> None:
        """Tell how the scan went, and when the next one is due."""
        report = self._report
        found_all = not (self._unavailable or failures or self._trouble or self._discovery.untaken)
        if self._unavailable is None:
            whole = found_all and not self._complete
            self._complete = self._complete or found_all
            paths = self._discovery.paths() if whole else None
            await self._send([ScanCompleted(self._root, first=not report.ready, paths=paths)])
        self._report = attrs.evolve(
            report,
            watching=self._watching(),
            time=trio.current_time(),
            reason=self._unavailable or self._unwatched or self._trouble or self._crowded(),
            ready=report.ready or self._unavailable is None,
            scans=report.scans + 1,
            scan_failures=report.scan_failures + failures + (self._unavailable is not None),
            overflows=report.overflows + overflows,
            sockets=self._discovery.sockets,
        )
        self._due = trio.current_time() + self._delay()
        await self._status.send(self._report)

    def _watching(self) -> str:
        if self._unavailable is not None:
            return Watching.UNAVAILABLE
        return Watching.EVENTS if self._unwatched is None else Watching.POLLING

    def _crowded(self) -> str | None:
        if not self._discovery.untaken:
            return None
        return f"{self._discovery.untaken} entries beyond the limit of {self._config.max_entries} are not taken"

    def _delay(self) -> float:
        """Seconds to the next look at everything: soon and then less and less soon while something is wrong."""
        config = self._config
        period = config.rescan * (1 + self._rng.uniform(-config.jitter, config.jitter))
        if self._unavailable is None and self._unwatched is None:
            self._failed_tries = 0
            return period
        if self._unavailable is not None and not self._timely and self._failed_tries:
            return max(0.0, self._due - trio.current_time())
        again = min(config.retry_cap, config.retry * 2.0 ** min(self._failed_tries, 30))
        self._failed_tries += 1
        return again if self._unavailable is not None else min(again, period)


def _words(error: OSError) -> str:
    """What the error is called, in words where the system has some."""
    if error.errno == errno.ENOSPC:
        return "no inotify watches are left (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        return "too many open files or inotify instances (fs.inotify.max_user_instances)"
    return error.strerror or str(error)
