"""The scanner of one root: it rescans the whole tree, and between rescans follows events.

The order is always the same: watch a directory, read the pending events, look at names, decide what follows. So every
change after a look causes an event after that look, and an event from before the look never counts as a later change
(faults 11 and 12). A look is one ``lstat`` and one call for the file handle.
:class:`~plugind.protocol.discovery.sockets.Discovery` judges what is new and which messages follow.

A *rescan* reads every directory again. It makes up for lost events, and is the only source without inotify (behaviour
14). *Following events* looks only at the paths that events named.
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

#: The most marks that are kept while the root cannot be scanned: the default size of the kernel's queue of events.
_MOST_MARKS = 16_384
#: During a rescan, a directory with at most this many marked paths is looked at before the end.
_FEW = CHUNK

#: A chmod costs its caller a microsecond, and the look that follows a hundred times that. So each look that only a
#: change of attributes caused counts this many seconds, and the next such looks wait until the sum has passed.
TOUCH = 0.01
#: While such looks wait, events are read at this interval in seconds, so that new sockets are found.
READ_GAP = 0.002

#: Sends messages, perhaps none, and lets other tasks run. Called after each piece of work.
Send = Callable[[Sequence[Message]], Awaitable[None]]


@value
class ScanReport:
    """The result of one rescan. Reasons are text for users; None if there is no error."""

    #: Why the root cannot be read. What is known below it stays registered (fault 26).
    unavailable: str | None
    #: Why inotify does not watch the whole tree, so that only rescans find changes (faults 17 and 18).
    unwatched: str | None
    last_error: str | None
    failures: int
    #: Whether this rescan recovered from dropped events (fault 19).
    overflowed: bool
    #: How many entries were left out because of a limit (fault 48).
    over_limit: int
    sockets: int
    #: All known paths, in the report of the first rescan that read everything; otherwise None.
    paths: frozenset[str] | None
    #: Whether this rescan made the missing root (behaviour 1).
    made: bool = False
    #: Whether the root is unavailable because others may write to it (fault 3).
    insecure: bool = False
    #: The directories with problems, including the root.
    directories: tuple[DirectoryReport, ...] = ()


class _Result(enum.Enum):
    """The result of scanning one directory."""

    #: The directory was read, is gone, or may no longer be scanned.
    DONE = enum.auto()
    FAILED = enum.auto()
    #: The directory is large, and is scanned after the others.
    PUT_OFF = enum.auto()


class Scanner:
    """Finds the sockets below the root of ``discovery`` and sends what follows from each look.

    Only one task may use it. Errors of the file system are part of the report; other errors are bugs and propagate.
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
        #: Whether a rescan has read everything: what appears later is new on the node, not only to this scanner.
        self._complete = False
        self._woken = False
        #: Since when looks are counted that only a change of attributes caused.
        self._touches_since = -math.inf
        #: Parts of the next :class:`ScanReport`.
        self._unavailable: str | None = None
        self._insecure = False
        self._was_there = False
        self._made = False
        self._last_error: str | None = None
        #: Directories to watch and scan, and paths to look at again, because of earlier looks.
        self._enter: deque[str] = deque()
        self._again: deque[str] = deque()
        #: The directories that the present rescan has read, and that were not replaced since.
        self._scanned: set[str] = set()

    @property
    def overflowed(self) -> bool:
        """Whether the kernel has dropped events since the last rescan (fault 19)."""
        return self._watches.overflowed

    async def rescan(self, *, deep: bool, make_root: bool) -> ScanReport:
        """Find the root, read every directory below it, and return a report.

        While the events of a directory are reliable, a socket is skipped if its inode number in the listing is the
        known one; in a ``deep`` rescan, only if an lstat shows no change. If events may be lost, every name is looked
        at. ``make_root`` makes a missing root that was not known.
        """
        overflowed = self._begin_rescan()
        failures = await self._scan_tree(deep=deep) if await self._find_root(make=make_root) else 0
        return self._report(failures, overflowed=overflowed)

    async def follow_events(self, deadline: float) -> None:
        """Look wherever events name a path; return at ``deadline``, on :meth:`wake`, or if a rescan is needed."""
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
        """When to look again at paths whose attributes alone have changed."""
        return self._touches_since + TOUCH * self._watches.touched

    async def look_at(self, paths: Iterable[str]) -> None:
        """Look at ``paths``, regardless of events, and at everything found below them."""
        self._inotify.read()
        self._watches.put_back(dict.fromkeys(paths, LOOK))
        await self._settle()

    def wake(self) -> None:
        """Make the present :meth:`follow_events` return after its current step, or else the next call."""
        self._woken = True
        self._inotify.wake()

    def close(self) -> None:
        """Close the descriptor of inotify."""
        self._inotify.close()

    # --- a rescan -----------------------------------------------------------------------------------------------------

    def _begin_rescan(self) -> bool:
        """Clear the errors of the last rescan; return whether there was an overflow."""
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
        """Look at the root, which may be missing, or another directory than before (faults 1, 14 to 16)."""
        self._inotify.watch_parent()
        try:
            # First of all: a user who may replace the root may also remove it.
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
            # The other node registers these sockets, and no plugin may be registered by two (fault 96).
            self._observe(self._root, None, 0)
            await self._flush()
            return self._cannot_use_root(str(error))
        except ConfigError as error:
            # What is registered stays registered, and nothing new is taken, until the root can be used (fault 3).
            self._insecure = isinstance(error, InsecureRootError)
            return self._cannot_use_root(str(error))
        marks = self._watches.take_path(self._root)
        if found is None or found.kind is not EntryKind.DIRECTORY:
            # Left to a scheduled rescan: the program that removed the root may be about to remove the parent, or to
            # make it again.
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
        # Marks on the root cause a rescan at once. If they stayed, they would cause one after the other.
        self._watches.postpone(self._root, self._watches.take_path(self._root))
        return False

    async def _scan_tree(self, *, deep: bool) -> int:
        """Scan the root and everything below it, then settle; return how many directories could not be read."""
        failures = 0
        waiting, large = deque([self._root]), deque[str]()
        self._scanned.clear()
        while (waiting or large) and self._unavailable is None:
            is_large = not waiting
            path = large.popleft() if is_large else waiting.popleft()
            if path in self._scanned or not self._discovery.may_scan(path):
                continue  # It was removed, or became insecure, during the scan of others.
            # The root is never put off: plugins directly in it do not wait for thousands of directories.
            result = await self._scan(path, deep=deep, may_put_off=not is_large and path != self._root)
            if result is _Result.PUT_OFF:
                self._close_unless_judged(path)
                large.append(path)
            else:
                self._scanned.add(path)
                failures += result is _Result.FAILED
            waiting.extend(self._discovery.subdirectories(path))
            if self._watches.pending and not self._watches.need_rescan:
                # A tree of thousands of directories takes seconds, and a new plugin must not wait for that.
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

        A large directory can be put off, so that its thousands of entries do not delay plugins in other directories.
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
                    # The opened directory may have another mode or owner than the one that was looked at.
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
        # Events since the listing belong to the next look, but an overflow among them counts now.
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
        """Take nothing new below an unread directory unless a look shows who may write to it (fault 3)."""
        if not self._judge_directory(path):
            self._discovery.cannot_judge(path)

    # --- where something happened -------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Look wherever something happened, until nothing more follows or a rescan is needed."""
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
        """Look at the paths that events named, with their marks.

        Missing paths are judged first, since a rename is a missing and a new path (fault 9). ``early`` means that the
        present rescan may not have scanned their directories yet.
        """
        looks: list[tuple[str, int, Found | None]] = []
        for path, found in self._directory.look_at_all(taken):
            if isinstance(found, OSError):
                self._postpone(path, taken[path], found)
            elif not self._is_left_out(path, found):
                looks.append((path, taken[path], found))
        self._inotify.read()
        for path, _, found in looks:
            # Directories first: one that others may write to by now keeps what it has.
            if found is not None and found.kind is EntryKind.DIRECTORY:
                self._discovery.allows(path, found.access)
        if early:
            looks = self._with_judged_directories(looks)
        looks.sort(key=lambda look: look[2] is not None)
        for count, (path, marks, found) in enumerate(looks, 1):
            self._observe(path, found, marks)
            # Enter a directory again that lost its watch or could not be read.
            if self._discovery.may_scan(path) and not self._watches.trusts(path):
                self._scanned.discard(path)
                self._enter.append(path)
            if count % CHUNK == 0:
                await self._flush()

    def _with_judged_directories(
        self, looks: list[tuple[str, int, Found | None]]
    ) -> list[tuple[str, int, Found | None]]:
        """Judge the directories of ``looks`` as they are now, and return the looks whose directories could be judged.

        The event of a chmod may be lost although that of a new socket is not (fault 3). The marks of the other looks
        stay until their directories were scanned.
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
        """Judge ``path`` and those directories above it that are not ``judged``; return whether that succeeded."""
        if not self._discovery.knows_directory(path):
            return True  # Nothing in it is taken.
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
        """Whether to skip a link because its directory has too many new ones (fault 48)."""
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
        """Keep ``path`` and its marks for the next rescan: without handles only a removal tells two sockets apart."""
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
        """Judge the other path of this very socket first: after a rename it is gone (fault 9)."""
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
        """Return what a symbolic link counts as and perhaps why it is refused (behaviour 7, fault 7).

        A link that leads to no socket counts as a plain file: no event reports a change of its target, but each rescan
        looks.
        """
        if self._follow_symlinks:
            target = self._directory.follow(path, self._root)
            if target is not None and target.kind is EntryKind.SOCKET:
                return target, None
        if not self._directory.leads_to_socket(path):
            return attrs.evolve(link, kind=EntryKind.OTHER), None
        return link, "a symbolic link that leads to no socket inside the root" if self._follow_symlinks else None

    async def _flush(self) -> None:
        """Send what follows from the looks so far, end unneeded watches, and let other tasks run."""
        changes = self._discovery.take()
        for path in changes.leave:
            self._inotify.unwatch(path)
            # Another directory may be there by now, which the present rescan has not read.
            self._scanned.discard(path)
        self._enter.extend(changes.enter)
        self._again.extend(changes.again)
        await self._send(changes.messages)
