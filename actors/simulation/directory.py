"""A file system in memory: the directory port of a simulated node, and a script interface that changes it.

It follows the kernel's rules as far as a watcher needs them: inodes and their change times, hard links, mounts, and
events, which are in :mod:`plugind.actors.simulation.inotify`. It can also fail like a real one: scans and looks fail,
events are dropped or delayed, inotify runs out, inode numbers are used again, the clock is coarse.

Everything happens at once and in order; only :meth:`MemoryEvents.wait` waits. Paths are absolute.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

import trio

from ...protocol.discovery import watches as mask
from ...protocol.discovery.sockets import EntryKind, Found, below, looks_like_socket
from ...protocol.errors import ConfigError
from ...protocol.identity import Identity
from ...protocol.trust.directories import Access, between, root_insecurity, root_insecurity_above
from ..discovery.directory import CHUNK, Chunk, Events, LeaveOut, take_all
from ..discovery.roots import RootBusyError
from ..trust.directories import InsecureRootError, first_owner
from .faults import InjectedError
from .inotify import Inode, MemoryInotify, os_error


class Telling(enum.Enum):
    """How the file system distinguishes a file from a later one with the same inode number."""

    HANDLES = "file handles"
    BIRTHS = "birth times"
    NOTHING = "nothing"


class MemoryDirectory:
    """A file system in memory.

    Args:
      tick_ns: the resolution of its times.
      reuse_inodes: whether a new file gets an inode number that was freed, if it was freed while this was true.
      telling: whether it has file handles, as ext4 and tmpfs do, or only birth times, or neither.
      now: returns the time in seconds.
    """

    def __init__(
        self,
        *,
        tick_ns: int = 4_000_000,
        reuse_inodes: bool = True,
        telling: Telling = Telling.HANDLES,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        #: The open instances of inotify, and its limits.
        self.inotify = MemoryInotify()
        self.tick_ns = tick_ns
        self.reuse_inodes = reuse_inodes
        self.telling = telling
        #: Whether removing a directory causes no event on it, as while a process still listens in it (behaviour 11).
        self.withhold_self_events = False
        #: By path, the errno with which every look or every scan fails.
        self.look_errors: dict[str, int] = {}
        self.scan_errors: dict[str, int] = {}
        #: By path, why a root cannot be used: another node has it, or others may write to it (faults 3 and 96).
        self.refused_roots: dict[str, ConfigError | RootBusyError] = {}
        #: The roots that others may write to.
        self.insecure_roots: set[str] = set()
        #: Called once each, after the next directory is watched and before it is listed.
        self.before_scan: list[Callable[[], object]] = []
        self.scans = 0
        self.looks = 0
        #: How many of the next looks and scans crash the watcher; see :meth:`plugind.testing.SimulatedNode.crash`.
        self.crashes = 0
        self._now = now
        self._numbers = 1
        self._serials = itertools.count(1)
        self._free: list[int] = []
        self._mounted: dict[str, Inode] = {}
        self._top = Inode(EntryKind.DIRECTORY, 1, 1)

    # --- the port -----------------------------------------------------------------------------------------------------

    def make(self, path: str) -> None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        if path in self.look_errors:
            raise os_error(self.look_errors[path], path)
        if not self.exists(path.rpartition("/")[0] or "/"):
            raise os_error(errno.ENOENT, path)
        self.mkdir(path)

    def check_above(self, path: str) -> None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        above = path
        while above != "/":
            above = above.rpartition("/")[0] or "/"
            inode = self._find(above)
            problem = None if inode is None else root_insecurity_above(path, above, access_of(inode))
            if problem is not None and path not in self.insecure_roots:
                raise InsecureRootError(problem)

    def hold(self, path: str) -> None:
        """See ``Directory`` in ``plugind.actors.discovery``. There is no lock, since no other node can reach it."""
        if path in self.refused_roots:
            raise self.refused_roots[path]
        problem = root_insecurity(path, access_of(self.inode(path)))
        if problem is not None and path not in self.insecure_roots:
            raise InsecureRootError(problem)

    def release(self) -> None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""

    def look(self, path: str) -> Found | None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        self._crash()
        self.looks += 1
        if path in self.look_errors:
            raise os_error(self.look_errors[path], path)
        inode = self._find(path)
        return None if inode is None else self._found(inode)

    def look_at_all(self, paths: Iterable[str]) -> Iterator[tuple[str, Found | OSError | None]]:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        for path in paths:
            try:
                found: Found | OSError | None = self.look(path)
            except OSError as error:
                found = error
            yield path, found

    def follow(self, path: str, root: str) -> Found | None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        path, inode = self._resolve(path)
        inside = path.startswith(root + "/")
        return self._found(inode) if inode is not None and inside and inode.kind is not EntryKind.SYMLINK else None

    def leads_to_socket(self, path: str) -> bool:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        inode = self._resolve(path)[1]
        return inode is not None and inode.kind is EntryKind.SOCKET

    def owner_above(self, path: str, root: str) -> int | None:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        inodes = map(self._find, between(root, path))
        return first_owner(None if inode is None else access_of(inode) for inode in inodes)

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        self.scans += 1
        happening, self.before_scan = self.before_scan, []
        for happens in happening:
            happens()
        inode = self.inode(path)
        if path in self.scan_errors:
            raise os_error(self.scan_errors[path], path)
        names = [
            name
            for name, child in inode.children.items()
            if not name.startswith(".")
            and not (child.kind in (EntryKind.DIRECTORY, EntryKind.SYMLINK) and leave_out(name, child.kind))
        ]
        for start in range(0, len(names) or 1, CHUNK):
            chunk = self._chunk(path, inode, names[start : start + CHUNK], known_sockets, deep=deep)
            chunk.access = access_of(inode) if start == 0 else None
            yield chunk
            self._crash()

    def _chunk(
        self, path: str, directory: Inode, names: list[str], known_sockets: Mapping[str, Identity | None], *, deep: bool
    ) -> Chunk:
        chunk = Chunk()
        for name in names:
            inode = directory.children.get(name)
            if inode is None or inode.kind is EntryKind.OTHER:
                if inode is not None and looks_like_socket(name):
                    chunk.ignored.append(name)
                continue
            if not deep and _is_listed(inode, known_sockets.get(name)):
                chunk.unchanged.append(name)
            elif below(path, name) in self.look_errors:
                chunk.unreadable.append(name)
            elif _is_untouched(inode, known_sockets.get(name)):
                chunk.unchanged.append(name)
            else:
                chunk.found.append((name, self._found(inode)))
        return chunk

    def _crash(self) -> None:
        if self.crashes:
            self.crashes -= 1
            raise InjectedError

    def events(self) -> Events:
        """See :class:`plugind.actors.discovery.directory.Directory`."""
        return self.inotify.open(self.inode)

    # --- the script: what programs on the node do ---------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        """Make a directory and the missing ones above it."""
        inode = self._top
        made = ""
        for name in path.strip("/").split("/"):
            made = f"{made}/{name}"
            if name not in inode.children:
                self._put(inode, name, self._new_inode(EntryKind.DIRECTORY), mask.CREATE | mask.ISDIR)
            inode = self._directory(made)

    def bind(self, path: str) -> None:
        """Make a socket without a listener. Raises OSError (EADDRINUSE) if ``path`` exists."""
        self._create(path, EntryKind.SOCKET)

    def write(self, path: str) -> None:
        """Make a plain file."""
        self._create(path, EntryKind.OTHER)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at ``path``."""
        self._create(path, EntryKind.SYMLINK)
        self.inode(path).target = target

    def link(self, old: str, new: str) -> None:
        """Make a hard link. This sets the change time of the inode, which causes no event."""
        inode = self.inode(old)
        parent, name = self._place(new)
        if inode.kind is EntryKind.DIRECTORY:
            raise os_error(errno.EPERM, old)
        if name in parent.children:
            raise os_error(errno.EEXIST, new)
        inode.links += 1
        self._touch(inode)
        self._put(parent, name, inode, mask.CREATE)

    def unlink(self, path: str) -> None:
        """Remove a name that is not a directory."""
        parent, name = self._place(path)
        inode = self.inode(path)
        if inode.kind is EntryKind.DIRECTORY:
            raise os_error(errno.EISDIR, path)
        del parent.children[name]
        self._drop(inode)
        self.inotify.notify(parent, mask.DELETE, name)

    def replace(self, path: str) -> None:
        """Unlink ``path`` and bind it again, as a plugin that restarts does."""
        self.unlink(path)
        self.bind(path)

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory; a file at ``new`` is replaced."""
        inode = self.inode(old)
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        over = target.children.get(new_name)
        if over is inode:
            return
        if new.startswith(f"{old}/"):
            raise os_error(errno.EINVAL, new)
        if over is not None and EntryKind.DIRECTORY in (over.kind, inode.kind):
            raise os_error(errno.EISDIR, new)
        del source.children[old_name]
        if over is not None:
            self._drop(over)
        target.children[new_name] = inode
        self._touch(inode)
        directory = mask.ISDIR if inode.kind is EntryKind.DIRECTORY else 0
        self.inotify.notify(source, mask.MOVED_FROM | directory, old_name)
        self.inotify.notify(target, mask.MOVED_TO | directory, new_name)
        self.inotify.notify(inode, mask.MOVE_SELF)

    def chmod(self, path: str, mode: int | None = None) -> None:
        """Change the attributes of the file or directory ``path``, including its ``mode`` if given."""
        self.inode(path).mode = self.inode(path).mode if mode is None else mode
        self._change_attributes(path)

    def chown(self, path: str, owner: int) -> None:
        """Give the file or directory ``path`` to the user ``owner``."""
        self.inode(path).owner = owner
        self._change_attributes(path)

    def _change_attributes(self, path: str) -> None:
        inode = self.inode(path)
        self._touch(inode)
        parent, name = self._place(path)
        self.inotify.notify(parent, mask.ATTRIB | (mask.ISDIR if inode.kind is EntryKind.DIRECTORY else 0), name)
        self.inotify.notify(inode, mask.ATTRIB)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below it, leaves first, as ``rm -rf`` does."""
        inode = self._directory(path)
        for name, child in tuple(inode.children.items()):
            if child.kind is EntryKind.DIRECTORY:
                self.remove_tree(below(path, name))
            else:
                self.unlink(below(path, name))
        parent, name = self._place(path)
        del parent.children[name]
        if not self.withhold_self_events:
            self._drop(inode)
            self.inotify.notify(inode, mask.DELETE_SELF)
        self.inotify.notify(parent, mask.DELETE | mask.ISDIR, name)

    def mount(self, path: str) -> None:
        """Mount an empty file system over the directory ``path``, which causes no event (fault 16)."""
        self.inode(path)
        self._mounted[path] = Inode(EntryKind.DIRECTORY, 2, device=2)

    def unmount(self, path: str) -> None:
        """Unmount the file system at ``path``."""
        del self._mounted[path]

    # --- the script: what goes wrong ----------------------------------------------------------------------------------

    def drop_events(self) -> None:
        """Lose all events from now on, without an overflow event."""
        self.inotify.drop_events()

    def resume_events(self) -> None:
        """End :meth:`drop_events`; the lost events stay lost."""
        self.inotify.resume_events()

    @property
    def dropping_events(self) -> bool:
        """Whether events are lost now."""
        return self.inotify.dropping_events

    def delay_events(self) -> None:
        """Keep events back from now on; :meth:`release_events` delivers them as one batch."""
        self.inotify.delay_events()

    def release_events(self) -> None:
        """Deliver the events that were delayed."""
        self.inotify.release_events()

    @property
    def delaying_events(self) -> bool:
        """Whether events are kept back now."""
        return self.inotify.delaying_events

    def overflow(self) -> None:
        """Make the event queue of every instance overflow (fault 19)."""
        self.inotify.overflow()

    def lose_watch(self, path: str) -> None:
        """End all watches on the directory ``path``, as the kernel can (fault 20)."""
        self.inotify.lose_watch(self.inode(path))

    # --- questions ----------------------------------------------------------------------------------------------------

    def sockets(self, root: str) -> dict[str, tuple[int, int]]:
        """Return the device and inode number of every socket below ``root``, by path, without dot names."""
        found: dict[str, tuple[int, int]] = {}
        top = self._find(root)
        waiting = [(root, top)] if top is not None else []
        while waiting:
            path, inode = waiting.pop()
            if inode.kind is EntryKind.SOCKET:
                found[path] = inode.device, inode.number
            waiting.extend((below(path, n), self.inode(below(path, n))) for n in inode.children if n[0] != ".")
        return found

    def exists(self, path: str) -> bool:
        """Whether ``path`` exists."""
        return self._find(path) is not None

    def names(self, path: str) -> list[str]:
        """Return the names in the directory ``path``."""
        return list(self.inode(path).children)

    # --- inodes -------------------------------------------------------------------------------------------------------

    def inode(self, path: str) -> Inode:
        """Return the inode at ``path``. Raises FileNotFoundError."""
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def target(self, path: str) -> Inode:
        """Return the inode at ``path``, or the one that a symbolic link there leads to. Raises FileNotFoundError."""
        return self.inode(self._resolve(path)[0])

    def _resolve(self, path: str) -> tuple[str, Inode | None]:
        inode = self._find(path)
        for _ in range(8):
            if inode is None or inode.kind is not EntryKind.SYMLINK:
                break
            path = os.path.normpath(os.path.join(os.path.dirname(path), inode.target))
            inode = self._find(path)
        return path, inode

    def _find(self, path: str) -> Inode | None:
        inode: Inode | None = self._top
        walked = ""
        for name in path.strip("/").split("/") if path != "/" else ():
            inode = inode.children.get(name) if inode is not None else None
            walked = f"{walked}/{name}"
            inode = self._mounted.get(walked, inode)
        return inode

    def _place(self, path: str) -> tuple[Inode, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent or "/"), name

    def _directory(self, path: str) -> Inode:
        inode = self.inode(path)
        if inode.kind is not EntryKind.DIRECTORY:
            raise os_error(errno.ENOTDIR, path)
        return inode

    def _found(self, inode: Inode) -> Found:
        inode.looked_at = self._now()
        access = access_of(inode) if inode.kind is EntryKind.DIRECTORY else None
        return Found(inode.kind, self.identity(inode), access)

    def identity(self, inode: Inode) -> Identity:
        """Return the identity of ``inode``, as a look finds it."""
        handle = b"%d" % inode.serial if self.telling is Telling.HANDLES else None
        born = inode.born_ns if self.telling is Telling.BIRTHS else None
        return Identity(inode.device, inode.number, inode.changed_ns, handle, born, inode.owner)

    def _create(self, path: str, kind: EntryKind) -> None:
        parent, name = self._place(path)
        if name in parent.children:
            raise os_error(errno.EADDRINUSE, path)
        inode = self._new_inode(kind)
        self._put(parent, name, inode, mask.CREATE)

    def _new_inode(self, kind: EntryKind) -> Inode:
        if self.reuse_inodes and self._free:
            number = self._free.pop()
        else:
            self._numbers += 1
            number = self._numbers
        inode = Inode(kind, number, 1, serial=next(self._serials))
        self._touch(inode)
        inode.born_ns = inode.changed_ns
        return inode

    def _touch(self, inode: Inode) -> None:
        inode.changed_ns = int(self._now() * 1e9) // self.tick_ns * self.tick_ns

    def _put(self, parent: Inode, name: str, inode: Inode, bits: int) -> None:
        parent.children[name] = inode
        self.inotify.notify(parent, bits, name)

    def _drop(self, inode: Inode) -> None:
        inode.links -= 1
        if inode.links:
            self._touch(inode)
        elif inode.device == 1 and self.reuse_inodes:
            # A number freed while events are lost must not be used later: the new file would be taken for the old one
            # (seed 3369).
            self._free.append(inode.number)


def access_of(inode: Inode) -> Access:
    """Return who may write to a directory; the daemon runs as root."""
    return Access(inode.mode, inode.owner, inode.owner == 0)


def _is_listed(inode: Inode, before: Identity | None) -> bool:
    return before is not None and before.inode == inode.number and inode.kind is EntryKind.SOCKET


def _is_untouched(inode: Inode, before: Identity | None) -> bool:
    return (
        before is not None
        and _is_listed(inode, before)
        and (before.device, before.changed_ns) == (inode.device, inode.changed_ns)
    )
