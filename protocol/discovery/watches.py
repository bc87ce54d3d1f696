"""The directories of each watch descriptor, and the marks that events left, as pure bookkeeping.

inotify watches inodes, not paths. One descriptor may stand for several paths: a bind mount, or a directory that was
renamed and whose old path is still known. A path may get another descriptor at any time. What an event says is kept as
marks on a path until the scanner looks there.

A directory is *trusted* while it has been watched without a break since its last complete scan: if there was no event,
nothing has changed there.
"""

from __future__ import annotations

from .marks import Marks
from .sockets import ATTRIBUTES, LOOK, REMOVED, below

# The kernel's constants (include/uapi/linux/inotify.h).
ATTRIB = 0x4
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
ISDIR = 0x40000000

#: The name of the lock file in a root. It is no entry, but a rescan checks the lock (fault 96).
LOCK_FILE = ".plugind.lock"
_NAMES_CHANGE = CREATE | DELETE | MOVED_FROM | MOVED_TO

#: So many paths are looked at as soon as their attributes change, until the next release.
MOST_TOUCHED = 256

#: One event: watch descriptor, mask and name. The name is empty if the event is about the watched directory itself.
Notice = tuple[int, int, str]


def _marks(mask: int) -> int:
    removed = REMOVED if mask & (DELETE | MOVED_FROM | DELETE_SELF) else 0
    return LOOK | removed | (ATTRIBUTES if mask & ATTRIB else 0)


class Watches:
    """The watches below one root, and the watch on the parent of the root (behaviour 11)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._marks = Marks()
        #: Marks on paths that could not be looked at; see :meth:`postpone`.
        self._postponed: dict[str, int] = {}
        #: The paths to look at because their attributes have changed since the last release, and the marks of those
        #: that wait for the next one.
        self._touched: set[str] = set()
        self._held = Marks()
        self._overflowed = False
        self._root_name = root.rpartition("/")[2]
        self._parent: int | None = None
        self._descriptors: dict[str, int] = {}
        self._paths: dict[int, set[str]] = {}
        self._trusted: set[str] = set()

    # --- which directories are watched --------------------------------------------------------------------------------

    def has(self, path: str) -> bool:
        """Whether the directory ``path`` is watched."""
        return path in self._descriptors

    def descriptor(self, path: str) -> int | None:
        """The descriptor of the watch on the directory ``path``; None if there is none."""
        return self._descriptors.get(path)

    def trusts(self, path: str) -> bool:
        """Whether no event of the directory ``path`` can have been lost since its last complete scan."""
        return path in self._trusted

    def add(self, path: str, descriptor: int) -> None:
        """The directory ``path`` is watched from now on."""
        self._descriptors[path] = descriptor
        self._paths.setdefault(descriptor, set()).add(path)

    def add_parent(self, descriptor: int) -> None:
        """The parent of the root is watched from now on. Only its events with the name of the root count."""
        self._parent = descriptor

    def trust(self, path: str) -> None:
        """A scan of ``path`` is complete. The directory becomes trusted if it is watched and no events were dropped."""
        if path in self._descriptors and not self._overflowed:
            self._trusted.add(path)

    def drop(self, path: str) -> int | None:
        """End the watch on ``path``; return its descriptor for removal, or None while another path needs it."""
        self._trusted.discard(path)
        descriptor = self._descriptors.pop(path, None)
        if descriptor is None:
            return None
        paths = self._paths[descriptor]
        paths.discard(path)
        if paths:
            return None
        del self._paths[descriptor]
        return None if descriptor == self._parent else descriptor

    # --- what events said ---------------------------------------------------------------------------------------------

    @property
    def overflowed(self) -> bool:
        """Whether the kernel has dropped events: no directory is trusted, and a rescan is needed (fault 19)."""
        return self._overflowed

    def limit_marks(self, most: int) -> None:
        """Keep no more than ``most`` marks, while nobody takes them: more count as an overflow, and a rescan follows.

        Otherwise a program that writes to a root that is not scanned could fill the memory (fault 48).
        """
        if len(self._marks) + len(self._held) > most:
            self._marks.clear()
            self._held.clear()
            self._overflowed = True
            self._trusted.clear()

    def clear_overflow(self) -> None:
        """Forget the overflow, because a rescan begins that recovers from it."""
        self._overflowed = False

    @property
    def pending(self) -> bool:
        """Whether there are marks to take."""
        return len(self._marks) > 0

    @property
    def holds(self) -> bool:
        """Whether there are marks that wait for :meth:`release`: they say no more than that attributes have changed."""
        return len(self._held) > 0

    @property
    def touched(self) -> int:
        """How many looks the last release, and events about attributes since then, have caused."""
        return len(self._touched)

    def release(self) -> None:
        """Let about :data:`MOST_TOUCHED` marks that wait be taken; later events about their paths wait for the next."""
        released = self._held.take_in_turn(MOST_TOUCHED)
        self._touched = set(released)
        self._marks.add_all(released)

    @property
    def need_rescan(self) -> bool:
        """Whether looking at the marked paths is not enough: events were dropped, or something happened to the root."""
        return self._overflowed or self.root in self._marks

    def note(self, notice: Notice) -> None:
        """Keep what one event says. Events of unknown descriptors are ignored."""
        descriptor, mask, name = notice
        if mask & Q_OVERFLOW:
            self._overflowed = True
            self._trusted.clear()
        elif mask & IGNORED:
            self._lose(descriptor)
        elif name:
            if descriptor == self._parent and name == self._root_name:
                self._mark(self.root, mask)
            if not name.startswith("."):
                for path in self._paths.get(descriptor, ()):
                    self._mark(below(path, name), mask)
            elif name == LOCK_FILE and mask & _NAMES_CHANGE and self.root in self._paths.get(descriptor, ()):
                self._mark(self.root, 0)
        else:
            for path in self._paths.get(descriptor, ()):
                self._mark(path, mask)

    def take(self, most: int | None = None) -> dict[str, int]:
        """Remove and return all marks, or about the ``most`` that have come first in each directory, by turns."""
        return self._marks.take() if most is None else self._marks.take_in_turn(most)

    def take_where_few(self, few: int) -> dict[str, int]:
        """Remove and return the marks in the directories that have no more than a ``few``."""
        return self._marks.take_where_few(few)

    def take_elsewhere(self, directory: str, few: int) -> dict[str, int]:
        """Do the same, but leave the marks on ``directory``, above it and below it."""
        return self._marks.take_elsewhere(directory, few)

    def take_beside(self, directory: str) -> dict[str, int]:
        """Remove and return the marks on the paths directly in ``directory``, also those that wait."""
        self._marks.add_all(self._held.take_beside(directory))
        return self._marks.take_beside(directory)

    def take_path(self, path: str) -> int:
        """Remove and return the marks on ``path``, also those that wait; 0 if there are none."""
        return self._marks.take_path(path) | self._held.take_path(path)

    def put_back(self, marks: dict[str, int]) -> None:
        """Add marks that were taken but belong to a later look."""
        for path, bits in marks.items():
            self._urge(path, bits)

    def put_back_beside(self, directory: str, marks: dict[str, int]) -> None:
        """Do the same for the paths directly in ``directory``. The caller gives up ``marks``."""
        self._marks.add_all(self._held.take_beside(directory))
        self._marks.add_beside(directory, marks)

    def postpone(self, path: str, marks: int) -> None:
        """Keep marks until the next rescan, because the look at ``path`` failed (seed 982)."""
        self._postponed[path] = self._postponed.get(path, 0) | marks

    def begin_rescan(self) -> None:
        """A rescan begins: put the postponed marks back."""
        postponed, self._postponed = self._postponed, {}
        self.put_back(postponed)

    def _mark(self, path: str, mask: int) -> None:
        if self._waits(path, mask):
            self._held.add(path, _marks(mask))
        else:
            self._urge(path, _marks(mask))

    def _waits(self, path: str, mask: int) -> bool:
        """Whether an event says no more than that attributes have changed, and the look at that was not the first."""
        if mask & ~ISDIR != ATTRIB or path == self.root or path in self._marks:
            return False
        if path in self._touched or len(self._touched) >= MOST_TOUCHED:
            return True
        self._touched.add(path)
        return False

    def _urge(self, path: str, marks: int) -> None:
        """Add marks that do not wait, nor do others on the path and on its directory: others may write to that now."""
        self._marks.add(path, marks)
        if self.holds:
            for waiting in (path, path.rpartition("/")[0]):
                if bits := self._held.take_path(waiting):
                    self._marks.add(waiting, bits)

    def _lose(self, descriptor: int) -> None:
        """The kernel ended this watch (fault 20). Mark its paths: the directories may be gone."""
        if descriptor == self._parent:
            self._parent = None
            self._mark(self.root, 0)
        for path in self._paths.pop(descriptor, ()):
            del self._descriptors[path]
            self._trusted.discard(path)
            self._mark(path, 0)
