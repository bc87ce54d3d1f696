"""The directories of each watch descriptor, and the marks of events: pure bookkeeping.

inotify watches inodes, not paths. One descriptor may stand for several paths, as with a bind mount, or a renamed
directory whose old path is still known. A path may get another descriptor at any time. An event leaves marks on a path
until the scanner looks there.

A directory is *trusted* while it has been watched without a break since its last complete scan: without an event,
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

#: The lock file in a root. It is no entry, but its events cause a rescan, which checks the lock (fault 96).
LOCK_FILE = ".plugind.lock"
_NAMES_CHANGE = CREATE | DELETE | MOVED_FROM | MOVED_TO

#: After so many looks because of attributes alone, others wait for the next release.
MOST_TOUCHED = 256

#: One event: watch descriptor, mask and name. An empty name means the watched directory itself.
Notice = tuple[int, int, str]


def _marks(mask: int) -> int:
    removed = REMOVED if mask & (DELETE | MOVED_FROM | DELETE_SELF) else 0
    return LOOK | removed | (ATTRIBUTES if mask & ATTRIB else 0)


class Watches:
    """The watches below one root, and the watch on the parent of the root (behaviour 11)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._marks = Marks()
        self._postponed: dict[str, int] = {}
        #: Paths that were looked at since the last release because of attributes, and marks that wait for the next one.
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
        """Note that the directory ``path`` is watched."""
        self._descriptors[path] = descriptor
        self._paths.setdefault(descriptor, set()).add(path)

    def add_parent(self, descriptor: int) -> None:
        """Note that the parent of the root is watched. Only its events with the name of the root count."""
        self._parent = descriptor

    def trust(self, path: str) -> None:
        """Note that a scan of ``path`` is complete. Trust it if it is watched and no events were dropped."""
        if path in self._descriptors and not self._overflowed:
            self._trusted.add(path)

    def drop(self, path: str) -> int | None:
        """End the watch on ``path``; return its descriptor for removal, or None if another path needs it."""
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
        """Whether the kernel has dropped events, so that no directory is trusted and a rescan is needed (fault 19)."""
        return self._overflowed

    def limit_marks(self, most: int) -> None:
        """Keep at most ``most`` marks while nobody takes them. More count as an overflow, so a rescan follows.

        Otherwise a program that writes to an unscanned root could fill the memory (fault 48).
        """
        if len(self._marks) + len(self._held) > most:
            self._marks.clear()
            self._held.clear()
            self._overflowed = True
            self._trusted.clear()

    def clear_overflow(self) -> None:
        """Clear the overflow, because a rescan begins."""
        self._overflowed = False

    @property
    def pending(self) -> bool:
        """Whether there are marks to take."""
        return len(self._marks) > 0

    @property
    def holds(self) -> bool:
        """Whether marks wait for :meth:`release` because only attributes have changed."""
        return len(self._held) > 0

    @property
    def touched(self) -> int:
        """The number of looks since the last release, and in it, that attributes alone have caused."""
        return len(self._touched)

    def release(self) -> None:
        """Release about :data:`MOST_TOUCHED` waiting marks. Later events of their paths wait for the next release."""
        released = self._held.take_in_turn(MOST_TOUCHED)
        self._touched = set(released)
        self._marks.add_all(released)

    @property
    def need_rescan(self) -> bool:
        """Whether only a rescan helps: events were dropped, or something happened to the root."""
        return self._overflowed or self.root in self._marks

    def note(self, notice: Notice) -> None:
        """Record an event. Events of unknown descriptors are ignored."""
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
        """Remove and return all marks, or about ``most``: the first ones of each directory, equally."""
        return self._marks.take() if most is None else self._marks.take_in_turn(most)

    def take_where_few(self, few: int) -> dict[str, int]:
        """Remove and return the marks in the directories that have no more than a ``few``."""
        return self._marks.take_where_few(few)

    def take_elsewhere(self, directory: str, few: int) -> dict[str, int]:
        """Do the same, except for the marks on ``directory``, above it and below it."""
        return self._marks.take_elsewhere(directory, few)

    def take_beside(self, directory: str) -> dict[str, int]:
        """Remove and return the marks on the paths directly in ``directory``, including waiting ones."""
        self._marks.add_all(self._held.take_beside(directory))
        return self._marks.take_beside(directory)

    def take_path(self, path: str) -> int:
        """Remove and return the marks on ``path``, including waiting ones; 0 if there are none."""
        return self._marks.take_path(path) | self._held.take_path(path)

    def put_back(self, marks: dict[str, int]) -> None:
        """Add marks that were taken but belong to a later look."""
        for path, bits in marks.items():
            self._urge(path, bits)

    def put_back_beside(self, directory: str, marks: dict[str, int]) -> None:
        """Do the same for the paths directly in ``directory``. The caller must not use ``marks`` again."""
        self._marks.add_all(self._held.take_beside(directory))
        self._marks.add_beside(directory, marks)

    def postpone(self, path: str, marks: int) -> None:
        """Keep marks until the next rescan, because the look at ``path`` failed (seed 982)."""
        self._postponed[path] = self._postponed.get(path, 0) | marks

    def begin_rescan(self) -> None:
        """Put the postponed marks back, for the rescan that begins."""
        postponed, self._postponed = self._postponed, {}
        self.put_back(postponed)

    def _mark(self, path: str, mask: int) -> None:
        if self._waits(path, mask):
            self._held.add(path, _marks(mask))
        else:
            self._urge(path, _marks(mask))

    def _waits(self, path: str, mask: int) -> bool:
        """Whether to hold back the mark of an event that is only about attributes, and not the first one."""
        if mask & ~ISDIR != ATTRIB or path == self.root or path in self._marks:
            return False
        if path in self._touched or len(self._touched) >= MOST_TOUCHED:
            return True
        self._touched.add(path)
        return False

    def _urge(self, path: str, marks: int) -> None:
        """Add marks that do not wait. Release those of the path and of its directory, whose mode may have changed."""
        self._marks.add(path, marks)
        if self.holds:
            for waiting in (path, path.rpartition("/")[0]):
                if bits := self._held.take_path(waiting):
                    self._marks.add(waiting, bits)

    def _lose(self, descriptor: int) -> None:
        """The kernel ended this watch (fault 20): mark its paths, since the directories may be gone."""
        if descriptor == self._parent:
            self._parent = None
            self._mark(self.root, 0)
        for path in self._paths.pop(descriptor, ()):
            del self._descriptors[path]
            self._trusted.discard(path)
            self._mark(path, 0)
