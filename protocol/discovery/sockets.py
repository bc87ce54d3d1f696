"""Which sockets are there, by generation. Only this module decides whether a socket is new.

The scanner looks at names and passes on what it found. A :class:`Discovery` returns the messages that follow, and the
directories to enter and to leave. It is level-triggered: an event never says what happened, only where to look. For a
path with a known socket the first of these rules that applies holds:

===============================================================  =====================================================
seen since the last look                                         what it means
===============================================================  =====================================================
another device, inode, file handle or birth time                 a new generation (fault 10)
the same file handle; its change time is another one             touched: a chmod or a hard link, the same generation
the same file handle                                             nothing: a duplicate report (behaviour 9)
no handle: a removal                                             a new generation (behaviour 13)
no handle: another change time, and no event was lost            touched
no handle: another change time, events may be lost, the same     touched
birth time
no handle: another change time, events may be lost, and no       a new generation
birth time
none of these                                                    nothing: a duplicate report
===============================================================  =====================================================

With a file handle the events make no difference. That matters at the start and after each replacement, when a scan
finds the new socket before the events come, of the removal of the old socket and of its own creation. Without a handle
a removal event counts, since file systems reuse inode numbers and times within one tick of their clock; then such an
event causes an unnecessary generation.

Nothing here waits, touches a file or reads a clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Set
from typing import Literal

import attrs

from ..identity import Identity, Key
from ..messages.discovery import EntryIgnored, EntryRefused, SocketAppeared, SocketTouched, SocketVanished
from ..trust.directories import Access, DirectoryCondition, DirectoryReport, Trusts, judge, trusted_owner, trusts_nobody
from ..values import record, value
from .quotas import Quota

#: Marks: what events said about a path since the last look. ``LOOK`` alone says only that there was an event.
LOOK = 1
REMOVED = 2
ATTRIBUTES = 4

Message = SocketAppeared | SocketVanished | SocketTouched | EntryRefused | EntryIgnored

_Counted = Literal["sockets", "directories", "refused entries"]
_SOCKET_ENDINGS = (".sock", ".socket")
#: The most entries of a root that are reported because they only look like sockets.
MAX_IGNORED = 100
#: The most new symbolic links of a directory that are examined in each rescan.
MAX_LINKS = 1000


class EntryKind(enum.Enum):
    """The kind of entry at a path.

    ``OTHER`` is a regular file, FIFO, device or a symbolic link that leads to no socket; it is never opened (faults 6
    and 7).
    """

    SOCKET = enum.auto()
    DIRECTORY = enum.auto()
    SYMLINK = enum.auto()
    OTHER = enum.auto()


@value
class Found:
    """The result of one look at a path."""

    kind: EntryKind
    identity: Identity
    #: Who may write to the directory; None for other kinds.
    access: Access | None = None


@record
class PathChanges:
    """What follows from the looks since the last :meth:`Discovery.take`, in order."""

    messages: list[Message] = attrs.Factory(list)
    #: Directories to watch and then to scan (fault 12).
    enter: list[str] = attrs.Factory(list)
    leave: list[str] = attrs.Factory(list)
    #: Paths to look at again, because another name of the inode is gone or another file has its number (fault 8).
    again: list[str] = attrs.Factory(list)


@record(eq=False)
class _Entry:
    """A path that was reported: a socket, or, with a reason, a refused entry."""

    generation: int
    identity: Identity
    refusal: str | None


@record(eq=False)
class _Directory:
    identity: Identity
    #: Whether the directory, or one above it, is insecure or unjudged, so that nothing changes below it.
    frozen: bool = False
    #: Whether it could neither be read nor looked at since it was judged.
    unjudged: bool = False
    #: The trusted user who owns it or a directory above it; None if only root and the daemon's user do.
    owner: int | None = None
    #: The known names directly below, with the identity of an accepted socket, or None.
    children: dict[str, Identity | None] = attrs.Factory(dict)


def looks_like_socket(name: str) -> bool:
    """Whether an entry with this name was probably meant to be a socket."""
    return name.endswith(_SOCKET_ENDINGS)


def below(directory: str, name: str) -> str:
    """Return the path of ``name`` in ``directory``."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _number(identity: Identity) -> tuple[int, int]:
    """Return device and inode number. If two files had the same, only the newer one still exists."""
    return identity.device, identity.inode


def _is_replaced(identity: Identity, marks: int) -> bool:
    """Whether a removal was seen that may have been that of another file than this one (behaviour 13)."""
    return bool(marks & REMOVED) and not identity.is_exact


class Discovery:
    """The known entries below one root.

    Args:
      root: an absolute path without a slash at its end.
      generations: growing numbers, each given once.
      deprecated: whether plugins found here carry a warning (behaviour 16).
      max_depth: how many levels below the root directories are entered (fault 13).
      max_entries: how many sockets are kept in all; each directory may have its part of them (fault 48).
      max_directories: how many directories are kept, and so watched, likewise.
      max_refused: how many refused entries are kept, likewise.
      insecure: whether others may write to the root and to the directories below it (fault 3).
      trusts: which users may register plugins and own directories, besides root and the daemon's user.
    """

    def __init__(
        self,
        root: str,
        generations: Iterator[int],
        *,
        deprecated: bool = False,
        max_depth: int = 8,
        max_entries: int = 100_000,
        max_directories: int = 4_000,
        max_refused: int = 4_000,
        insecure: bool = False,
        trusts: Trusts = trusts_nobody,
    ) -> None:
        self.root = root
        self._sockets = 0
        self._generations = generations
        self._deprecated = deprecated
        self._max_depth = max_depth
        self._quotas: dict[_Counted, Quota] = {
            "sockets": Quota(root, max_entries),
            "directories": Quota(root, max_directories),
            "refused entries": Quota(root, max_refused),
        }
        #: By directory, the entries left out since :meth:`begin_rescan`, and the last quota that was exceeded.
        self._left_out: dict[str, tuple[int, str]] = {}
        #: By directory, the new links examined since :meth:`begin_rescan`.
        self._examined: dict[str, int] = {}
        self._allow_insecure = insecure
        #: Can be replaced; a deep scan then judges all directories again.
        self.trusts = trusts
        self._root_slashes = root.rstrip("/").count("/")
        self._entries: dict[str, _Entry] = {}
        self._directories: dict[str, _Directory] = {}
        self._conditions: dict[str, DirectoryReport] = {}
        #: By device and inode number, the path under which that file is an accepted socket.
        self._owners: dict[tuple[int, int], str] = {}
        #: The other paths of these files, refused as hard links.
        self._others: dict[Key, set[str]] = {}
        self._ignored: set[str] = set()
        self._changes = PathChanges()

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def sockets(self) -> int:
        """The number of known sockets, without refused entries."""
        return self._sockets

    @property
    def over_limit(self) -> int:
        """The number of entries left out since :meth:`begin_rescan` because of a limit (fault 48)."""
        return sum(number for number, _ in self._left_out.values())

    def paths(self) -> frozenset[str]:
        """Return all known paths, including refused entries."""
        return frozenset(self._entries)

    def knows_directory(self, path: str) -> bool:
        """Whether ``path`` is a known directory."""
        return path in self._directories

    def may_scan(self, path: str) -> bool:
        """Whether ``path`` is a known directory, and neither it nor one above it is insecure (fault 3).

        A directory that could not be judged is scanned again, which judges it; directories below it wait for that.
        """
        directory = self._directories.get(path)
        return directory is not None and (not directory.frozen or (directory.unjudged and not self._is_frozen(path)))

    def has_parent(self, path: str) -> bool:
        """Whether the directory of ``path`` is known. Otherwise a removal would go unnoticed (seed 3195)."""
        return path == self.root or _above(path) in self._directories

    def subdirectories(self, path: str) -> list[str]:
        """Return the known directories directly below ``path`` that may be scanned, sorted."""
        children = (below(path, name) for name, socket in self.children(path).items() if socket is None)
        return sorted(child for child in children if self.may_scan(child))

    def conditions(self) -> tuple[DirectoryReport, ...]:
        """Return the directories with problems."""
        # Being full matters less than being insecure.
        full = {path: self._full(path) for path in self._left_out if not self._is_insecure(path)}
        return tuple((self._conditions | full).values())

    def _full(self, path: str) -> DirectoryReport:
        number, used_up = self._left_out[path]
        entries = f"1 entry of {path} is" if number == 1 else f"{number} entries of {path} are"
        return DirectoryReport(path, DirectoryCondition.FULL, f"{entries} not taken: {used_up}")

    def children(self, path: str) -> Mapping[str, Identity | None]:
        """Return the known names directly below ``path``, with the identity of a socket, or None. A live view."""
        directory = self._directories.get(path)
        return directory.children if directory is not None else {}

    def missing(self, path: str, seen: Set[str]) -> list[str]:
        """Return the known paths directly below ``path`` whose names are not in ``seen``, sorted."""
        return sorted(below(path, name) for name in self.children(path).keys() - seen)

    def hard_link_of(self, path: str, found: Found) -> str | None:
        """Return another path where this socket is known, or an older socket with its inode number.

        Look there first: this socket may have been renamed, and the older one is gone, since its number was reused.
        """
        if found.kind is not EntryKind.SOCKET:
            return None
        owner = self._owners.get(_number(found.identity))
        return None if owner == path else owner

    def take(self) -> PathChanges:
        """Return what follows from the looks since the last call."""
        changes, self._changes = self._changes, PathChanges()
        return changes

    def begin_rescan(self) -> None:
        """Begin a rescan, which looks again at all entries that were left out."""
        self._left_out.clear()
        self._examined.clear()

    def scan_again(self, path: str) -> None:
        """Begin the unfinished scan of the directory ``path`` again."""
        self._examined.pop(path, None)
        self._left_out.pop(path, None)

    # --- looks --------------------------------------------------------------------------------------------------------

    def observe(
        self,
        path: str,
        found: Found | None,
        marks: int = 0,
        *,
        time: float,
        trusted: bool = True,
        first: bool = False,
        refusal: str | None = None,
    ) -> None:
        """Record a look at ``path``, which found ``found``, or nothing.

        Do not call this for a look that failed, which says nothing about the path (fault 26). An entry in an unknown or
        insecure directory is ignored.

        Args:
          path: where the scanner looked.
          found: what is there; None if there is nothing.
          marks: what events said about the path since the look before.
          time: the time of the look.
          trusted: whether no event of the directory can have been lost since the look before.
          first: whether this scanner has not completed a rescan yet, so that the socket may be known to others.
          refusal: why a symbolic link is refused, if the caller knows that.
        """
        if self._is_frozen(path):
            return
        if found is None or found.kind is EntryKind.OTHER:
            self._forget(path)
            if found is not None:
                self.ignore(path)
            return
        entry = self._entries.get(path) if found.kind is EntryKind.SOCKET else None
        if entry is not None and self._same(entry, found.identity, marks, trusted=trusted):
            self._seen_again(path, entry, found.identity, marks)
            return
        if not self.has_parent(path):
            return
        reason = self._refusal(path, found, refusal)
        if found.kind is EntryKind.DIRECTORY and reason is None:
            self._observe_directory(path, found, marks)
            return
        if path in self._directories:
            self._forget(path)
        self._observe_entry(
            path, found.identity, reason, time=time, first=first and not _is_replaced(found.identity, marks)
        )

    def leaves_out(self, directory: str, name: str, kind: EntryKind) -> bool:
        """Whether a scan of ``directory`` skips this link or directory, because there is no room for it (fault 48).

        Finding out where links lead takes the most time in a scan, so between two calls of :meth:`begin_rescan` only
        some new ones are examined in each directory.
        """
        if name in self.children(directory):
            return False
        if kind is EntryKind.DIRECTORY:
            return not self._has_room(below(directory, name), "directories")
        examined = self._examined[directory] = self._examined.get(directory, 0) + 1
        if examined <= MAX_LINKS:
            return False
        self._leave_out(directory, f"it has more than {MAX_LINKS} new links: remove some")
        return True

    def allows(self, path: str, access: Access | None) -> bool:
        """Note who may write to the known directory ``path``; return whether it may be scanned."""
        directory = self._directories.get(path)
        if directory is None or self._is_frozen(path):
            return False
        if access is not None:
            self._judge(path, directory, access)
        return not directory.frozen

    def cannot_judge(self, path: str) -> None:
        """Treat the known directory ``path``, which could not be read or looked at, as insecure until it is judged."""
        directory = self._directories.get(path)
        if directory is not None and not self._allow_insecure:
            directory.unjudged = True
            self._freeze(path, frozen=True)

    def ignore(self, path: str, *, directory: bool = False) -> None:
        """Report once that ``path`` only looks like a socket, such as a directory made to mount a missing socket.

        That changes nothing else: the entry is not recorded (fault 6), and a directory is treated like any other.
        """
        if path == self.root or not looks_like_socket(path) or not self.has_parent(path):
            return
        if path not in self._ignored and len(self._ignored) < MAX_IGNORED:
            self._ignored.add(path)
            self._changes.messages.append(EntryIgnored(path, self.root, directory))

    def _same(self, entry: _Entry, identity: Identity, marks: int, *, trusted: bool) -> bool:
        if entry.refusal is not None or _is_replaced(identity, marks):
            return False
        return entry.identity.is_same(identity) if trusted else entry.identity.is_same_unwatched(identity)

    def _seen_again(self, path: str, entry: _Entry, identity: Identity, marks: int) -> None:
        if marks & ATTRIBUTES or entry.identity.changed_ns != identity.changed_ns:
            entry.identity = identity
            self._adopt(path, identity)
            self._changes.messages.append(SocketTouched(path, entry.generation, identity))

    def _refusal(self, path: str, found: Found, given: str | None) -> str | None:
        if found.kind is EntryKind.SYMLINK:
            return given or "a symbolic link, and links are not followed"
        if found.kind is EntryKind.DIRECTORY:
            depth = path.count("/") - self._root_slashes
            return f"a directory more than {self._max_depth} levels below the root" if depth > self._max_depth else None
        owner = self._owners.get(_number(found.identity))
        if owner is None or owner == path or self._entries[owner].identity.key != found.identity.key:
            return None
        return f"a hard link of {owner}"

    def _observe_entry(self, path: str, identity: Identity, reason: str | None, *, time: float, first: bool) -> None:
        entry = self._entries.get(path)
        known_refusal = None if entry is None else entry.refusal
        if entry is not None and reason is not None and known_refusal == reason and entry.identity.is_same(identity):
            entry.identity = identity
            return
        is_new = entry is None or (known_refusal is None) is not (reason is None)
        counted: _Counted = "sockets" if reason is None else "refused entries"
        if is_new and not self._has_room(path, counted):
            self._forget(path)
            return
        if entry is not None and known_refusal is not None:
            self._retract(path, entry)
        elif entry is not None:
            self._release(path, entry)
            if reason is not None:
                self._changes.messages.append(SocketVanished(path, entry.generation))
        generation = next(self._generations)
        self._entries[path] = _Entry(generation, identity, reason)
        self._quotas[counted].add(_above(path))
        self._adopt(path, identity if reason is None else None)
        if reason is None:
            self._note_owner(path, identity)
            self._sockets += 1
            message: Message = SocketAppeared(path, generation, identity, self.root, time, self._deprecated, first)
        else:
            self._others.setdefault(identity.key, set()).add(path)
            message = EntryRefused(path, generation, self.root, reason, time, self._deprecated)
        self._changes.messages.append(message)

    def _observe_directory(self, path: str, found: Found, marks: int) -> None:
        identity, directory = found.identity, self._directories.get(path)
        if directory is not None:
            if directory.identity.is_same(identity) and not _is_replaced(identity, marks):
                directory.identity = identity
                self._judge(path, directory, found.access)
                return
            self._forget(path)
        elif path in self._entries:
            self._forget(path)
        if path != self.root:
            if not self._has_room(path, "directories"):
                return
            self._quotas["directories"].add(_above(path))
        self._adopt(path, None)
        self._directories[path] = directory = _Directory(identity, frozen=True)
        self.ignore(path, directory=True)
        self._judge(path, directory, found.access)

    def _judge(self, path: str, directory: _Directory, access: Access | None) -> None:
        """Judge who may write to ``directory``: freeze it and everything below it, or unfreeze them (fault 3)."""
        report = None if access is None or self._allow_insecure else self._report(path, directory, access)
        if report is None:
            self._conditions.pop(path, None)
        else:
            self._conditions[path] = report
        directory.unjudged = False
        if self._is_insecure(path) != directory.frozen:
            self._freeze(path, frozen=not directory.frozen)

    def _report(self, path: str, directory: _Directory, access: Access) -> DirectoryReport | None:
        is_root = path == self.root
        above = None if is_root else self._directories[_above(path)].owner
        directory.owner = trusted_owner(access, above)
        return judge(path, access, is_root=is_root, trusts=self.trusts, above=above)

    def _is_insecure(self, path: str) -> bool:
        report = self._conditions.get(path)
        return report is not None and report.condition is DirectoryCondition.INSECURE

    def _is_frozen(self, path: str) -> bool:
        """Whether ``path`` lies in a frozen directory."""
        directory = self._directories.get(_above(path)) if path != self.root else None
        return directory is not None and directory.frozen

    def _freeze(self, path: str, *, frozen: bool) -> None:
        """Leave the directory ``path`` and those below it, or enter again those that are judged and secure."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            directory = self._directories.get(path)
            if directory is None or directory.frozen is frozen:
                continue
            if not frozen and (directory.unjudged or self._is_insecure(path)):
                continue
            directory.frozen = frozen
            (self._changes.leave if frozen else self._changes.enter).append(path)
            waiting.extend(below(path, name) for name, socket in directory.children.items() if socket is None)

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _has_room(self, path: str, kind: _Counted) -> bool:
        """Whether the directory of ``path`` may have one more of its ``kind``; if not, note that (fault 48)."""
        quota, above = self._quotas[kind], _above(path)
        if quota.has_room(above):
            return True
        used = quota.used(above)
        self._leave_out(above, f"it has {used} {kind}, as many as it may have beside other directories: remove some")
        return False

    def _leave_out(self, directory: str, used_up: str) -> None:
        number, _ = self._left_out.get(directory, (0, ""))
        self._left_out[directory] = number + 1, used_up

    def _adopt(self, path: str, socket: Identity | None) -> None:
        parent = self._directories.get(_above(path))
        if parent is not None:  # The root has none.
            parent.children[path.rpartition("/")[2]] = socket

    def _note_owner(self, path: str, identity: Identity) -> None:
        """Note the path of a socket. Look again at the path of an older file with its inode number."""
        number = _number(identity)
        older = self._owners.get(number, path)
        self._owners[number] = path
        if older != path:
            self._changes.again.append(older)

    def _release(self, path: str, entry: _Entry) -> None:
        """Drop the path of a socket, and look at its other paths again."""
        number = _number(entry.identity)
        self._sockets -= 1
        self._quotas["sockets"].add(_above(path), -1)
        if self._owners.get(number) == path:
            del self._owners[number]
            self._changes.again.extend(sorted(self._others.get(entry.identity.key, ())))

    def _retract(self, path: str, entry: _Entry) -> None:
        """Drop a refused entry."""
        key = entry.identity.key
        self._quotas["refused entries"].add(_above(path), -1)
        self._changes.messages.append(SocketVanished(path, entry.generation))
        others = self._others[key]
        others.discard(path)
        if not others:
            del self._others[key]
        owner = self._owners.get(_number(entry.identity))
        if owner is not None and owner != path:
            self._changes.again.append(owner)

    def _forget(self, path: str) -> None:
        """Drop everything known at ``path`` and below, if there is anything (behaviour 8)."""
        above = self._directories.get(_above(path))
        if above is not None:
            above.children.pop(path.rpartition("/")[2], None)
        waiting = [path]
        while waiting:
            gone = waiting.pop()
            directory = self._directories.pop(gone, None)
            self._conditions.pop(gone, None)
            if directory is not None:
                if gone != self.root:
                    self._quotas["directories"].add(_above(gone), -1)
                self._left_out.pop(gone, None)
                self._changes.leave.append(gone)
                waiting.extend(below(gone, child) for child in sorted(directory.children, reverse=True))
            entry = self._entries.pop(gone, None)
            if entry is not None and entry.refusal is not None:
                self._retract(gone, entry)
            elif entry is not None:
                self._release(gone, entry)
                self._changes.messages.append(SocketVanished(gone, entry.generation))
