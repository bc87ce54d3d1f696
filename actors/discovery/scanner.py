"""The scanner of one root: rescans the whole tree, and between rescans follows events to single names.

The order is always the same: watch a directory, read the pending events, look at names, decide what follows. So every
change after a look causes an event after that look, and an event from before the look never counts as a later change
(faults 11 and 12). Looking is one ``lstat`` and one call for the file handle. Judging is done by
:class:`~plugind.protocol.discovery.sockets.Discovery`, which says what is new and which messages follow.

A *rescan* reads every directory again. It makes up for lost events, and is the only source if inotify is not
available (behaviour 14). *Following events* looks only at the paths that events named.
"""

from __future__ import annotations

import enum
import itertools
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

import attrs
import trio

from ...protocol.discovery.sockets import LOOK, Discovery, EntryKind, Found, Message, below
from ...protocol.discovery.watches import Watches
from ...protocol.errors import ConfigError
from ...protocol.trust.directories import DirectoryCondition, DirectoryReport
from ...protocol.values import value
from ..trust.directories import InsecureRootError
from .directory import CHUNK, Chunk, Directory, describe
from .inotify import Inotify
from .roots import RootBusyError

#: How many marks are kept while the root cannot be scanned: as many events as the kernel's queue holds by default.
_MOST_MARKS = 16_384
#: During a rescan, what events named in a directory is looked at before its end if it is no more than so many paths.
_FEW = CHUNK

#: A chmod costs its caller a microsecond, and a look at what it changed a hundred times that. So a look at something
#: whose attributes alone have changed counts so many seconds, and the next such look at it is made when all of those
#: are over.
TOUCH = 0.01
#: While such looks wait, events are read once in so many seconds: a new socket waits no longer.
READ_GAP = 0.002

#: Sends messages and lets other tasks run. It is also called without messages, after each piece of work.
Send = Callable[[Sequence[Message]], Awaitable[None]]


@value
class ScanReport:
    """The findings of one rescan about the root. Reasons are text for users, or None without an error."""

    #: Why the root cannot be read. Whatever was known below it stays registered (fault 26).
    unavailable: str | None
    #: Why inotify does not watch the whole tree: rescans alone find changes there (faults 17 and 18).
    unwatched: str | None
    #: The last error with a directory or a name below the root.
    last_error: str | None
    #: How many directories could not be read.
    failures: int
    #: The kernel had dropped events, and this rescan recovered from that (fault 19).
    overflowed: bool
    #: How many entries were left out because the limit of entries is reached (fault 48).
    over_limit: int
    #: How many sockets are known now.
    sockets: int
    #: All known paths, once: in the report of the first rescan that could read everything.
    paths: frozenset[str] | None
    #: The root was missing, and this rescan made it (behaviour 1).
    made: bool = False
    #: The root is unavailable because others may write to it (fault 3).
    insecure: bool = False
    #: The directories with which something is wrong, the root among them.
    directories: tuple[DirectoryReport, ...] = ()


class _Result(enum.Enum):
    """How the scan of one directory ended."""

    #: It was read, or is gone, or may not be scanned any more.
    DONE = enum.auto()
    FAILED = enum.auto()
    #: It is large, and is scanned after the others.
    PUT_OFF = enum.auto()


class Scanner:
    """Finds the sockets below the root of ``discovery`` and sends what follows from each look.

    One task at a time may use it. Errors of the file system are part of the report; any other error is a bug and
    propagates.
    """

    def __init__(
        self, directory: Directory, discovery: Discovery, send: Send, *, follow_symlinks: bool = False
    ) -> None:
        self._root = discovery.root
        self._directory = directory
        self._discovery = discovery
        self._send = send
        self._follow_symlinks = follow_symlinks
        self._watches = Watches(self._root)
        self._inotify = Inotify(directory, self._watches)
        #: A rescan has read everything: from now on, what appears is new on the node, and not only to this scanner.
        self._complete = False
        #: :meth:`follow_events` was asked to return.
        self._woken = False
        #: Since when the looks count that were caused by attributes alone.
        self._touches_since = -math.inf
        #: The two errors of the present or last rescan; see :class:`ScanReport`.
        self._unavailable: str | None = None
        self._insecure = False
        #: The root was there once.
        self._was_there = False
        #: The present or last rescan has made the root.
        self._made = False
        self._last_error: str | None = None
        #: Directories to watch and scan, and paths to look at again, because of what was just found.
        self._enter: deque[str] = deque()
        self._again: deque[str] = deque()
        #: The directories that the rescan under way has read, and that are still what they were then.
        self._scanned: set[str] = set()

    @property
    def overflowed(self) -> bool:
        """Whether the kernel has dropped events since the last rescan (fault 19)."""
        return self._watches.overflowed

    async def rescan(self, *, deep: bool, make_root: bool) -> ScanReport:
        """Find the root, read every directory below it, and report how that went.

        As long as events are reliable in a directory, a socket is skipped whose inode number in the listing is the
        known one; a ``deep`` rescan skips it only after an lstat that shows no change. Where events may be lost, every
        name is looked at. ``make_root`` makes a root that is missing and was not known.
        """
        overflowed = self._begin_rescan()
        failures = await self._scan_tree(deep=deep) if await self._find_root(make=make_root) else 0
        return self._report(failures, overflowed=overflowed)

    async def follow_events(self, deadline: float) -> None:
        """Look wherever events name a path; return at ``deadline``, upon :meth:`wake`, or if a rescan is needed."""
        while trio.current_time() < deadline and not (self._watches.need_rescan or self._woken):
            await self._wait_for_events(deadline)
            if trio.current_time() >= self._next_touches:
                self._touches_since = trio.current_time()
                self._watches.release()
            self._inotify.read()
            if self._unavailable is not None:
                self._watches.limit_marks(_MOST_MARKS)
            await self._settle()
        self._woken = False

    async def _wait_for_events(self, deadline: float) -> None:
        if self._watches.holds:
            await trio.sleep_until(min(deadline, self._next_touches, trio.current_time() + READ_GAP))
        else:
            await self._inotify.wait(deadline)

    @property
    def _next_touches(self) -> float:
        """When to look again at paths of which only the attributes have changed."""
        return self._touches_since + TOUCH * self._watches.touched

    async def look_at(self, paths: Iterable[str]) -> None:
        """Look at ``paths``, regardless of events, and at whatever is found below them."""
        self._inotify.read()
        self._watches.put_back(dict.fromkeys(paths, LOOK))
        await self._settle()

    def wake(self) -> None:
        """Make :meth:`follow_events` return: the current call after its current step, or else the next call."""
        self._woken = True
        self._inotify.wake()

    def close(self) -> None:
        """Close the descriptor of inotify."""
        self._inotify.close()

    # --- a rescan -----------------------------------------------------------------------------------------------------

    def _begin_rescan(self) -> bool:
        """Forget the errors of the last rescan; return whether there was an overflow to recover from."""
        overflowed = self._watches.overflowed
        if overflowed:
            self._inotify.read()
            self._watches.clear_overflow()
        self._unavailable = self._last_error = None
        self._made = self._insecure = False
        self._discovery.begin_rescan()
        self._inotify.open()
        self._watches.begin_rescan()
        self._inotify.read()
        return overflowed

    async def _find_root(self, *, make: bool) -> bool:
        """Look at the root itself, which may be missing, or another directory than before (faults 1, 14 to 16)."""
        self._inotify.watch_parent()
        try:
            # First of all: whoever may replace the root may also remove it.
            self._directory.check_above(self._root)
            found = self._directory.look(self._root)
            if found is None and make and not self._discovery.knows_directory(self._root):
                self._make_root()
            self._inotify.read()
            found = self._directory.look(self._root)
            if found is not None and found.kind is EntryKind.DIRECTORY:
                self._was_there = True
                self._directory.hold(self._root)
        except OSError as error:
            return self._cannot_use_root(f"cannot use {self._root}: {describe(error)}")
        except RootBusyError as error:
            # The other node registers what is there, and no plugin may be registered by two (fault 96).
            self._observe(self._root, None, 0)
            await self._flush()
            return self._cannot_use_root(str(error))
        except ConfigError as error:
            # What is registered stays registered, and nothing new is taken, until the root may be used (fault 3).
            self._insecure = isinstance(error, InsecureRootError)
            return self._cannot_use_root(str(error))
        marks = self._watches.take_path(self._root)
        if found is None or found.kind is not EntryKind.DIRECTORY:
            # Only the next scheduled rescan makes it again: the program that removed it may be about to remove the
            # directory above it too, or to make it again.
            self._unavailable = f"{self._root} {self._why_no_root(found)}"
            found = None
        self._observe(self._root, found, marks)
        await self._flush()
        return self._discovery.may_scan(self._root)

    def _why_no_root(self, found: Found | None) -> str:
        if found is not None:
            return "is not a directory"
        return "was removed" if self._was_there else "is missing"

    def _make_root(self) -> None:
        try:
            self._directory.make(self._root)
        except FileNotFoundError as error:
            parent = os.path.dirname(self._root)
            raise OSError(
                error.errno,
                f"its parent directory {parent} is missing, and plugind does not make it: make it, or name another root"
                f" with --root DIR",
            ) from error
        self._made = True
        self._inotify.watch_parent()

    def _cannot_use_root(self, reason: str) -> bool:
        self._unavailable = reason
        # Marks on the root cause a rescan at once. If they stayed, they would do so again and again.
        self._watches.postpone(self._root, self._watches.take_path(self._root))
        return False

    async def _scan_tree(self, *, deep: bool) -> int:
        """Scan the root and all below it, then settle; return how many directories could not be read."""
        failures = 0
        waiting, large = deque([self._root]), deque[str]()
        self._scanned.clear()
        while (waiting or large) and self._unavailable is None:
            is_large = not waiting
            path = large.popleft() if is_large else waiting.popleft()
            if path in self._scanned or not self._discovery.may_scan(path):
                continue  # It was removed, or became insecure, while others were scanned.
            # The root comes first, however large: the plugins directly in it do not wait for thousands of directories.
            result = await self._scan(path, deep=deep, may_put_off=not is_large and path != self._root)
            if result is _Result.PUT_OFF:
                self._close_unless_judged(path)
                large.append(path)
            else:
                self._scanned.add(path)
                failures += result is _Result.FAILED
            waiting.extend(self._discovery.subdirectories(path))
            if self._watches.pending and not self._watches.need_rescan:
                # A tree of thousands of directories takes seconds, and a new plugin must not wait for its end.
                await self._look_at_marked(self._watches.take_where_few(_FEW), early=True)
                await self._flush()
        self._enter = deque(path for path in self._enter if path not in self._scanned)
        await self._settle()
        return failures

    def _report(self, failures: int, *, overflowed: bool) -> ScanReport:
        over_limit = self._discovery.over_limit
        directories = self._discovery.conditions()
        insecure = any(report.condition is DirectoryCondition.INSECURE for report in directories)
        complete = not (self._unavailable or failures or self._last_error or over_limit or insecure)
        paths = self._discovery.paths() if complete and not self._complete else None
        self._complete = self._complete or complete
        return ScanReport(
            unavailable=self._unavailable,
            unwatched=self._inotify.unwatched,
            made=self._made,
            last_error=self._last_error,
            failures=failures,
            overflowed=overflowed,
            over_limit=over_limit,
            sockets=self._discovery.sockets,
            paths=paths,
            insecure=self._insecure,
            directories=self._with_root(directories),
        )

    def _with_root(self, directories: tuple[DirectoryReport, ...]) -> tuple[DirectoryReport, ...]:
        """Add the root if it cannot be used because it is insecure."""
        if not self._insecure or self._unavailable is None:
            return directories
        others = (report for report in directories if report.path != self._root)
        return (DirectoryReport(self._root, DirectoryCondition.INSECURE, self._unavailable), *others)

    # --- one directory ------------------------------------------------------------------------------------------------

    async def _scan(self, path: str, *, deep: bool, may_put_off: bool = False) -> _Result:
        """Watch one directory, then read it (fault 12). If it cannot be read, nothing else follows.

        A large directory may be put off: thousands of entries must not delay the plugins in other directories.
        """
        self._inotify.watch(path)
        trusted = self._watches.trusts(path)
        known_sockets = self._discovery.children(path) if trusted else {}
        if may_put_off and len(self._discovery.children(path)) >= CHUNK:
            return _Result.PUT_OFF
        seen: set[str] = set()
        self._inotify.read()
        try:
            leave_out = partial(self._discovery.leaves_out, path)
            with closing(self._directory.scan(path, known_sockets, deep=deep, leave_out=leave_out)) as chunks:
                first = [*itertools.islice(chunks, 2)] if may_put_off else []
                if len(first) > 1:
                    self._discovery.scan_again(path)
                    return _Result.PUT_OFF
                for chunk in itertools.chain(first, chunks):
                    # What was opened may have another mode or owner than what was looked at.
                    if not self._discovery.allows(path, chunk.access):
                        await self._flush()
                        return _Result.DONE
                    self._judge(path, chunk, seen, trusted=trusted)
                    await self._flush()
                    self._inotify.read()
                    if elsewhere := self._watches.take_elsewhere(path, _FEW):
                        await self._look_at_marked(elsewhere, early=True)
                        await self._flush()
        except OSError as error:
            return _Result.DONE if self._is_gone(path) else self._fail(path, error)
        for missing in self._discovery.missing(path, seen):
            self._look(missing, self._watches.take_path(missing))
        self._watches.trust(path)
        await self._flush()
        return _Result.DONE

    def _judge(self, path: str, chunk: Chunk, seen: set[str], *, trusted: bool) -> None:
        """Judge the names in one chunk of the directory ``path`` and add them to ``seen``."""
        # Events from between the listing and now belong to the next look, but an overflow among them counts now.
        earlier = self._watches.take_beside(path)
        self._inotify.read()
        trusted = trusted and not self._watches.overflowed
        now = trio.current_time()
        for name, found in chunk.found:
            child = below(path, name)
            self._observe(child, found, earlier.pop(child, 0), now=now, trusted=trusted)
            seen.add(name)
        seen.update(chunk.unchanged, chunk.unreadable)
        for name in chunk.unreadable:
            self._last_error = f"cannot look at {below(path, name)}"
        for name in chunk.ignored:
            self._discovery.ignore(below(path, name))
        self._watches.put_back_beside(path, earlier)

    def _is_gone(self, path: str) -> bool:
        """Whether a directory could not be read because it is gone, which is no failure (fault 25)."""
        try:
            found = self._directory.look(path)
        except OSError:
            return False
        if found is not None and found.kind is EntryKind.DIRECTORY:
            return False
        self._watches.put_back({path: LOOK})
        return True

    def _fail(self, path: str, error: OSError) -> _Result:
        reason = f"cannot read {path}: {describe(error)}"
        if path == self._root:
            self._unavailable = reason
        else:
            self._close_unless_judged(path)
            self._last_error = reason
        return _Result.FAILED

    def _close_unless_judged(self, path: str) -> None:
        """Take nothing new below a directory that was not read, unless a look at it says who may write to it (fault 3).

        The look from the directory above may have failed as well.
        """
        if not self._judge_directory(path):
            self._discovery.cannot_judge(path)

    # --- where something happened -------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Look wherever something happened until nothing more follows, or until only a rescan can go on."""
        while not (self._watches.need_rescan or self._unavailable):
            if self._watches.pending:
                await self._look_at_marked(self._watches.take(CHUNK))
            elif self._again:
                self._look(self._again.popleft(), 0)
            elif self._enter:
                path = self._enter.popleft()
                if self._discovery.may_scan(path) and not self._watches.trusts(path):
                    await self._scan(path, deep=True)
            else:
                return
            await self._flush()

    async def _look_at_marked(self, taken: Mapping[str, int], *, early: bool = False) -> None:
        """Look at paths that events named, with their marks. What is missing is judged first: a rename is one of each
        (fault 9). ``early`` means that their directories may not have been scanned yet by the rescan under way.
        """
        looks: list[tuple[str, int, Found | None]] = []
        for path, found in self._directory.look_at_all(taken):
            if isinstance(found, OSError):
                self._postpone(path, taken[path], found)
            elif not self._is_left_out(path, found):
                looks.append((path, taken[path], found))
        self._inotify.read()
        for path, _, found in looks:
            # Before what is in it: a directory to which others may write now keeps what it has.
            if found is not None and found.kind is EntryKind.DIRECTORY:
                self._discovery.allows(path, found.access)
        if early:
            looks = self._with_judged_directories(looks)
        looks.sort(key=lambda look: look[2] is not None)
        for count, (path, marks, found) in enumerate(looks, 1):
            self._observe(path, found, marks)
            # A directory that lost its watch, or could not be read, is entered again.
            if self._discovery.may_scan(path) and not self._watches.trusts(path):
                self._scanned.discard(path)
                self._enter.append(path)
            if count % CHUNK == 0:
                await self._flush()

    def _with_judged_directories(
        self, looks: list[tuple[str, int, Found | None]]
    ) -> list[tuple[str, int, Found | None]]:
        """Judge the directories of ``looks`` as they are now, and return the looks whose directories could be judged.

        The event of a chmod may be lost where that of a new socket is not, and while the root could not be scanned no
        rescan made up for it (fault 3). The marks of the other looks stay until their directories were scanned.
        """
        judged = {self._root: True}
        kept = []
        for path, marks, found in looks:
            if self._is_judged(os.path.dirname(path), judged):
                kept.append((path, marks, found))
            else:
                self._watches.put_back({path: marks})
        return kept

    def _is_judged(self, path: str, judged: dict[str, bool]) -> bool:
        """Judge the directory ``path`` after those above it, but for those in ``judged``; return whether they could be
        looked at.
        """
        if not self._discovery.knows_directory(path):
            return True  # Nothing is taken from it.
        if path not in judged:
            judged[path] = self._is_judged(os.path.dirname(path), judged) and self._judge_directory(path)
        return judged[path]

    def _judge_directory(self, path: str) -> bool:
        try:
            found = self._directory.look(path)
        except OSError as error:
            self._last_error = f"cannot look at {path}: {describe(error)}"
            return False
        if found is not None and found.kind is EntryKind.DIRECTORY:
            self._discovery.allows(path, found.access)
        return True

    def _is_left_out(self, path: str, found: Found | None) -> bool:
        """Whether a link is not examined, because its directory has too many new ones (fault 48)."""
        if found is None or found.kind is not EntryKind.SYMLINK:
            return False
        directory, name = os.path.split(path)
        return self._discovery.leaves_out(directory, name, EntryKind.SYMLINK)

    # --- one name -----------------------------------------------------------------------------------------------------

    def _look(self, path: str, marks: int) -> None:
        try:
            found = self._directory.look(path)
        except OSError as error:
            self._postpone(path, marks, error)
            return
        self._observe(path, found, marks)

    def _postpone(self, path: str, marks: int, error: OSError) -> None:
        """Leave ``path`` to the next rescan, which needs the marks: without file handles a removal alone tells two
        sockets apart.
        """
        self._last_error = f"cannot look at {path}: {describe(error)}"
        self._watches.postpone(path, marks)

    def _observe(
        self, path: str, found: Found | None, marks: int, *, now: float | None = None, trusted: bool | None = None
    ) -> None:
        """Judge what was found at ``path``; the next :meth:`_flush` sends what follows."""
        refusal = None
        if found is not None and found.kind is EntryKind.SYMLINK:
            found, refusal = self._examine_link(path, found)
        if found is not None and found.kind is EntryKind.SOCKET:
            self._look_at_hard_link(path, found)
        if trusted is None:
            # As dirname says it of an absolute path; this is done for each socket.
            trusted = self._watches.trusts(path.rpartition("/")[0] or "/")
        self._discovery.observe(
            path,
            found,
            marks,
            time=trio.current_time() if now is None else now,
            trusted=trusted,
            first=not self._complete,
            refusal=refusal,
        )

    def _look_at_hard_link(self, path: str, found: Found) -> None:
        """Judge the other path of this very socket first: it may be gone, since a rename ends one path (fault 9)."""
        other = self._discovery.hard_link_of(path, found)
        if other is None:
            return
        try:
            there = self._directory.look(other)
        except OSError:
            return
        if there is not None and there.kind is EntryKind.SYMLINK:
            there = self._directory.follow(other, self._root)
        self._discovery.observe(
            other,
            there,
            self._watches.take_path(other),
            time=trio.current_time(),
            trusted=self._watches.trusts(os.path.dirname(other)),
            first=not self._complete,
        )

    def _examine_link(self, path: str, link: Found) -> tuple[Found, str | None]:
        """Return what a symbolic link counts as and, if it is refused, perhaps why (behaviour 7, fault 7).

        A link that leads to no socket is like a plain file: no event says when that changes, but each rescan looks.
        """
        if self._follow_symlinks:
            target = self._directory.follow(path, self._root)
            if target is not None and target.kind is EntryKind.SOCKET:
                return target, None
        if not self._directory.leads_to_socket(path):
            return attrs.evolve(link, kind=EntryKind.OTHER), None
        return link, "a symbolic link that leads to no socket inside the root" if self._follow_symlinks else None

    async def _flush(self) -> None:
        """Send what follows from the looks so far, end watches that are not needed any more, let other tasks run."""
        changes = self._discovery.take()
        for path in changes.leave:
            self._inotify.unwatch(path)
            # Another directory may be there by now, which the rescan under way has not read.
            self._scanned.discard(path)
        self._enter.extend(changes.enter)
        self._again.extend(changes.again)
        await self._send(changes.messages)
