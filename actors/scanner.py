"""Looking: from names in a directory, and from events about names, to a judgement on each.

The order is always: watch, read the events that wait, look, judge. So whatever happens after a look comes as an event
after it, and whatever happened before it is not taken for news (faults 11 and 12).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing

import trio

from ..protocol.discovery import LOOK, Discovery, Found, Kind, Message, below
from ..protocol.watches import Watches
from .io.directory import CHUNK, Chunk, Directory, Events

#: Hands messages on, and lets others run; may be called without any.
Tell = Callable[[Sequence[Message]], Awaitable[None]]


class Scanner:
    """The eyes of one watcher: owned and driven by it, and it alone.

    The three reasons are in words, or None while all is well.
    """

    def __init__(self, directory: Directory, discovery: Discovery, tell: Tell, *, follow_symlinks: bool) -> None:
        self.directory = directory
        self.discovery = discovery
        self.root = discovery.root
        self.watches = Watches(self.root)
        #: The first scan that could read everything is over.
        self.complete = False
        #: Why the root cannot be read; why inotify is not to be had for all of it; what else could not be read.
        self.unavailable: str | None = None
        self.unwatched: str | None = None
        self.last_error: str | None = None
        #: Look at every name, also where no event and no other inode asks for it.
        self.deep = True
        self._tell = tell
        self._follow_symlinks = follow_symlinks
        self._events: Events | None = None
        #: Directories to watch and scan, and paths to look at again, for the sake of what was just found.
        self._enter: deque[str] = deque()
        self._again: deque[str] = deque()
        #: Marks on paths whose look failed; they wait for the next look at everything (seed 982).
        self._unseen: dict[str, int] = {}

    def close(self) -> None:
        """Give the descriptor of inotify back."""
        if self._events is not None:
            self._events.close()

    def begin(self) -> None:
        """A look at everything begins: what was wrong before may be so no longer."""
        self.unavailable = self.unwatched = self.last_error = None
        self.discovery.over_limit = 0
        self._open_events()
        unseen, self._unseen = self._unseen, {}
        self.watches.put_back(unseen)
        self.collect()

    @property
    def needs_rescan(self) -> bool:
        """Looking here and there does not do: everything must be looked at, at once."""
        return self.watches.overflowed or self.root in self.watches.marks or self.unavailable is not None

    # --- scanning -----------------------------------------------------------------------------------------------------

    async def scan_tree(self) -> int:
        """Scan the root and all beneath, then whatever follows from that; how many directories could not be read."""
        failures = 0
        waiting = deque([self.root])
        while waiting and self.unavailable is None:
            path = waiting.popleft()
            failures += not await self._scan(path)
            waiting.extend(self.discovery.subdirectories(path))
        self._enter.clear()
        await self.settle()
        return failures

    async def _scan(self, path: str) -> bool:
        """Watch one directory, then read it (fault 12). False: it could not be read, and nothing follows (fault 26)."""
        self._watch(path)
        trusted = self.watches.trusts(path)
        known = self.discovery.children(path) if trusted and not self.deep else {}
        seen: set[str] = set()
        self.collect()
        try:
            with closing(self.directory.scan(path, known)) as chunks:
                for chunk in chunks:
                    self._judge(path, chunk, seen, trusted=trusted)
                    await self.flush()
                    self.collect()
        except OSError as error:
            return self._is_gone(path) or self._fail(path, error)
        for missing in self.discovery.missing(path, seen):
            self._look(missing, self.watches.marks.pop(missing, 0))
        self.watches.trust(path)
        await self.flush()
        return True

    def _judge(self, path: str, chunk: Chunk, seen: set[str], *, trusted: bool) -> None:
        # Events that came between the look and now belong to the next look, but an overflow among them spoils this one.
        earlier = self.watches.take()
        self.collect()
        trusted = trusted and not self.watches.overflowed
        now = trio.current_time()
        for name, found in chunk.found:
            child = below(path, name)
            self.observe(child, found, earlier.pop(child, 0), now=now, trusted=trusted)
            seen.add(name)
        seen.update(chunk.unchanged, chunk.unreadable)
        for name in chunk.unreadable:
            self.last_error = f"cannot look at {below(path, name)}"
        self.watches.put_back(earlier)

    def _is_gone(self, path: str) -> bool:
        """Whether a directory that could not be read is one no more, which is no failure (fault 25)."""
        try:
            found = self.directory.look(path)
        except OSError:
            return False
        if found is not None and found.kind is Kind.DIRECTORY:
            return False
        self.watches.put_back({path: LOOK})
        return True

    def _fail(self, path: str, error: OSError) -> bool:
        reason = f"cannot read {path}: {words(error)}"
        if path == self.root:
            self.unavailable = reason
        else:
            self.last_error = reason
        return False

    # --- events -------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Read the events that wait, and remember what they say."""
        if self._events is not None:
            for notice in self._events.read():
                self.watches.note(notice)

    async def settle(self) -> None:
        """Look wherever something was said to have happened, and go on until nothing follows, or there is alarm."""
        while not self.needs_rescan:
            if self.watches.marks:
                await self._look_at_marked()
            elif self._again:
                self._look(self._again.popleft(), 0)
            elif self._enter:
                path = self._enter.popleft()
                if self.discovery.knows_directory(path) and not self.watches.trusts(path):
                    await self._scan(path)
            else:
                return
            await self.flush()

    async def wait(self, deadline: float) -> None:
        """Return when there are events to read, and at the deadline at the latest."""
        if self._events is None:
            await trio.sleep_until(deadline)
            return
        with trio.move_on_at(deadline):
            await self._events.wait()

    async def _look_at_marked(self) -> None:
        marked = self.watches.take()
        looks: list[tuple[str, int, Found | None]] = []
        for path, marks in marked.items():
            try:
                looks.append((path, marks, self.directory.look(path)))
            except OSError as error:
                self._unseeable(path, marks, error)
        self.collect()
        # What went away makes room for what appeared: a rename is one of each (fault 9).
        looks.sort(key=lambda look: look[2] is not None)
        for count, (path, marks, found) in enumerate(looks, 1):
            self.observe(path, found, marks)
            self._revisit(path)
            if count % CHUNK == 0:
                await self.flush()

    def _revisit(self, path: str) -> None:
        """A directory that lost its watch, or could not be read, is entered again when something happened to it."""
        if self.discovery.knows_directory(path) and not self.watches.trusts(path):
            self._enter.append(path)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, path: str, marks: int) -> None:
        try:
            found = self.directory.look(path)
        except OSError as error:
            self._unseeable(path, marks, error)
            return
        self.observe(path, found, marks)

    def _unseeable(self, path: str, marks: int, error: OSError) -> None:
        """What events said of ``path`` is kept: without it, a socket with the inode of the old one is no news."""
        self.last_error = f"cannot look at {path}: {words(error)}"
        self._unseen[path] = self._unseen.get(path, 0) | marks

    def observe(
        self, path: str, found: Found | None, marks: int, *, now: float | None = None, trusted: bool | None = None
    ) -> None:
        """Judge what was found at ``path``; what follows is told by the next :meth:`flush`."""
        refusal = None
        if found is not None and found.kind is Kind.SYMLINK and self._follow_symlinks:
            found, refusal = self._follow(path, found)
        if found is not None and found.kind is Kind.SOCKET:
            self._look_at_other_name(path, found)
        if trusted is None:
            trusted = self.watches.trusts(os.path.dirname(path))
        self.discovery.observe(
            path,
            found,
            marks,
            time=trio.current_time() if now is None else now,
            trusted=trusted,
            first=not self.complete,
            refusal=refusal,
        )

    def _look_at_other_name(self, path: str, found: Found) -> None:
        other = self.discovery.hard_link_of(path, found)
        if other is None:
            return
        try:
            there = self.directory.look(other)
        except OSError:
            return
        if there is not None and there.kind is Kind.SYMLINK:
            there = self.directory.follow(other, self.root)
        self.discovery.observe(
            other,
            there,
            self.watches.marks.pop(other, 0),
            time=trio.current_time(),
            trusted=self.watches.trusts(os.path.dirname(other)),
            first=not self.complete,
        )

    def _follow(self, path: str, link: Found) -> tuple[Found, str | None]:
        target = self.directory.follow(path, self.root)
        if target is not None and target.kind is Kind.SOCKET:
            return target, None
        return link, "a symbolic link that leads to no socket inside the root"

    # --- inotify ------------------------------------------------------------------------------------------------------

    def _open_events(self) -> None:
        if self._events is not None:
            return
        try:
            self._events = self.directory.events()
        except OSError as error:
            self.unwatched = f"no inotify instance: {words(error)}"

    def _watch(self, path: str) -> None:
        """Watch a directory; one that is watched is asked for again, in case that the word of its end was lost."""
        if self._events is None:
            return
        known = self.watches.descriptor(path)
        try:
            descriptor = self._events.watch(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if known is None:
                self.unwatched = f"cannot watch {path}: {words(error)}"
            return
        if descriptor == known:
            return
        old = self.watches.drop(path)
        if old is not None:
            self._events.unwatch(old)
        self.watches.add(path, descriptor)

    def watch_parent(self) -> None:
        """Watch the directory that holds the root (behaviour 11); without, only scans see what becomes of the root."""
        parent = os.path.dirname(self.root)
        if self._events is None or parent == self.root:
            return
        try:
            self.watches.add_parent(self._events.watch_parent(parent))
        except OSError:
            return

    # --- handing on ---------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Tell what follows from the looks so far, and let others run."""
        changes = self.discovery.take()
        for path in changes.leave:
            descriptor = self.watches.drop(path)
            if descriptor is not None and self._events is not None:
                self._events.unwatch(descriptor)
        self._enter.extend(changes.enter)
        self._again.extend(changes.again)
        await self._tell(changes.messages)


def words(error: OSError) -> str:
    """What the error is called, in words where the system has some."""
    if error.errno == errno.ENOSPC:
        return "no inotify watches are left (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        return "too many open files or inotify instances (fs.inotify.max_user_instances)"
    return error.strerror or str(error)
