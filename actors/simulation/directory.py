"""A directory tree in memory, with what inotify says of it: the directory port of a simulated node.

It keeps to the kernel's rules where they matter to a watcher: inodes and their change times, hard links, watches on
inodes rather than on paths, one queue that merges equal neighbours and overflows. The faults of real file systems can
be asked for: events that are lost or withheld, scans that fail, inotify used up, inodes used again, a coarse clock.

Everything happens at once and in order; nothing here waits but :meth:`MemoryEvents.wait`. Paths are absolute.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Mapping

import attrs
import trio

from ...protocol import watches as mask
from ...protocol.discovery import Found, Kind, below
from ...protocol.messages import Identity
from ...protocol.watches import Notice
from ..io.directory import CHUNK, Chunk, Events
from .faults import InjectedError


@attrs.define(eq=False)
class _Node:
    """An inode. ``children`` is used by directories, ``target`` by symbolic links."""

    kind: Kind
    number: int
    device: int
    changed_ns: int = 0
    links: int = 1
    children: dict[str, _Node] = attrs.Factory(dict)
    target: str = ""


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class MemoryEvents:
    """One instance of inotify on a :class:`MemoryDirectory`."""

    def __init__(self, directory: MemoryDirectory) -> None:
        self._directory = directory
        self._watched: dict[int, _Node] = {}
        self._names_only: set[int] = set()
        self._next = 1
        self._queue: list[Notice] = []
        #: How much of the queue was there before the rest was held back.
        self._before_delay = 0
        self._arrived = trio.Event()

    def watch(self, path: str) -> int:
        """See :class:`plugind.actors.io.directory.Events`. One inode gets one descriptor."""
        return self._add(path, names_only=False)

    def watch_parent(self, path: str) -> int:
        """See :class:`plugind.actors.io.directory.Events`."""
        return self._add(path, names_only=True)

    def _add(self, path: str, *, names_only: bool) -> int:
        node = self._directory.node(path)
        if node.kind is not Kind.DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        for descriptor, watched in self._watched.items():
            if watched is node:
                return descriptor
        if self._directory.watches_left is not None:
            if self._directory.watches_left == 0:
                raise _error(errno.ENOSPC, path)
            self._directory.watches_left -= 1
        descriptor, self._next = self._next, self._next + 1
        self._watched[descriptor] = node
        if names_only:
            self._names_only.add(descriptor)
        return descriptor

    def unwatch(self, descriptor: int) -> None:
        """See :class:`plugind.actors.io.directory.Events`."""
        if self._watched.pop(descriptor, None) is not None:
            self.put((descriptor, mask.IGNORED, ""))

    def read(self) -> list[Notice]:
        """See :class:`plugind.actors.io.directory.Events`. Nothing newer, while events are held back."""
        readable = self._before_delay if self._directory.delaying_events else len(self._queue)
        notices, self._queue = self._queue[:readable], self._queue[readable:]
        self._before_delay = 0
        self._arrived = trio.Event()
        return notices

    async def wait(self) -> None:
        """See :class:`plugind.actors.io.directory.Events`."""
        await self._arrived.wait()

    def close(self) -> None:
        """See :class:`plugind.actors.io.directory.Events`."""
        self._watched.clear()
        self._directory.instances.remove(self)

    def put(self, notice: Notice) -> None:
        """Queue one event, unless the one before it says the same."""
        if self._directory.dropping_events or (self._queue and self._queue[-1] == notice):
            return
        if len(self._queue) >= self._directory.queue_size:
            self.overflow()
            return
        self._queue.append(notice)
        self.wake()

    def overflow(self) -> None:
        """The queue is full: what it holds is delivered, what comes is lost, and that is said once."""
        notice = (-1, mask.Q_OVERFLOW, "")
        if notice not in self._queue:
            self._queue.append(notice)
        self.wake()

    def wake(self) -> None:
        """Wake who waits, if there is something to read."""
        if self._queue and not self._directory.delaying_events:
            self._arrived.set()

    def delay(self) -> None:
        """Events from now on are not readable before :meth:`MemoryDirectory.release_events`."""
        self._before_delay = len(self._queue)

    def about(self, node: _Node, bits: int, name: str = "") -> None:
        """Something happened to this inode, or to this name in it."""
        names = mask.CREATE | mask.DELETE | mask.MOVED_FROM | mask.MOVED_TO
        for descriptor, watched in tuple(self._watched.items()):
            if watched is node and (descriptor not in self._names_only or bits & names):
                self.put((descriptor, bits, name))
            if watched is node and bits & mask.DELETE_SELF:
                del self._watched[descriptor]
                self.put((descriptor, mask.IGNORED, ""))

    def lose_watch(self, node: _Node) -> None:
        """The kernel ends the watch of this inode by itself."""
        for descriptor, watched in tuple(self._watched.items()):
            if watched is node:
                self.unwatch(descriptor)


class MemoryDirectory:
    """A file system in memory, and the script that changes it.

    ``tick_ns`` is how coarse change times are; ``reuse_inodes`` gives an inode number that was freed to the next file,
    unless it was freed while that was not asked for. ``now`` tells the time in seconds.
    """

    def __init__(
        self, *, tick_ns: int = 4_000_000, reuse_inodes: bool = True, now: Callable[[], float] = trio.current_time
    ) -> None:
        self.tick_ns = tick_ns
        self.reuse_inodes = reuse_inodes
        #: A removed directory does not say so itself, as if somebody listened in it still (behaviour 11).
        self.withhold_self_events = False
        self.queue_size = 16_384
        #: How many more watches, and instances of inotify, are to be had; None: any number.
        self.watches_left: int | None = None
        self.instances_left: int | None = None
        #: The errno with which every look at a path, or every scan of it, fails.
        self.look_errors: dict[str, int] = {}
        self.scan_errors: dict[str, int] = {}
        #: How many scans and looks there were.
        self.scans = 0
        self.looks = 0
        self.instances: list[MemoryEvents] = []
        #: The next so many looks and scans crash the watcher; see :meth:`plugind.testing.SimulatedNode.crash`.
        self.crashes = 0
        self._now = now
        self._numbers = 1
        self._free: list[int] = []
        self._mounted: dict[str, _Node] = {}
        self._dropping_events = False
        self._delaying_events = False
        self._top = _Node(Kind.DIRECTORY, 1, 1)

    # --- the port -----------------------------------------------------------------------------------------------------

    def make(self, path: str) -> None:
        """See :class:`plugind.actors.io.directory.Directory`."""
        if path in self.look_errors:
            raise _error(self.look_errors[path], path)
        self.mkdir(path)

    def look(self, path: str) -> Found | None:
        """See :class:`plugind.actors.io.directory.Directory`."""
        self._crash()
        self.looks += 1
        if path in self.look_errors:
            raise _error(self.look_errors[path], path)
        node = self._find(path)
        return None if node is None else self._found(node)

    def follow(self, path: str, root: str) -> Found | None:
        """See :class:`plugind.actors.io.directory.Directory`."""
        node = self._find(path)
        for _ in range(8):
            if node is None or node.kind is not Kind.SYMLINK:
                break
            path = os.path.normpath(os.path.join(os.path.dirname(path), node.target))
            node = self._find(path)
        inside = path.startswith(root + "/")
        return self._found(node) if node is not None and inside and node.kind is not Kind.SYMLINK else None

    def scan(self, path: str, known: Mapping[str, int]) -> Generator[Chunk, None, None]:
        """See :class:`plugind.actors.io.directory.Directory`."""
        self.scans += 1
        node = self.node(path)
        if path in self.scan_errors:
            raise _error(self.scan_errors[path], path)
        names = [name for name in node.children if not name.startswith(".")]
        for start in range(0, len(names) or 1, CHUNK):
            yield self._chunk(path, node, names[start : start + CHUNK], known)
            self._crash()

    def _chunk(self, path: str, directory: _Node, names: list[str], known: Mapping[str, int]) -> Chunk:
        chunk = Chunk()
        for name in names:
            node = directory.children.get(name)
            if node is None or node.kind is Kind.OTHER:
                continue
            if known.get(name) == node.number and node.kind is Kind.SOCKET:
                chunk.unchanged.append(name)
            elif below(path, name) in self.look_errors:
                chunk.unreadable.append(name)
            else:
                chunk.found.append((name, self._found(node)))
        return chunk

    def _crash(self) -> None:
        if self.crashes:
            self.crashes -= 1
            raise InjectedError

    def events(self) -> Events:
        """See :class:`plugind.actors.io.directory.Directory`."""
        if self.instances_left is not None:
            if self.instances_left == 0:
                raise _error(errno.EMFILE, "inotify")
            self.instances_left -= 1
        instance = MemoryEvents(self)
        self.instances.append(instance)
        return instance

    # --- the script: what programs on the node do ---------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it, where they are missing."""
        node = self._top
        made = ""
        for name in path.strip("/").split("/"):
            made = f"{made}/{name}"
            if name not in node.children:
                self._put(node, name, self._new(Kind.DIRECTORY), mask.CREATE | mask.ISDIR)
            node = self._directory(made)

    def bind(self, path: str) -> Identity:
        """Make a socket, which nobody listens on yet. Raises OSError (EADDRINUSE) if something is there."""
        return self._create(path, Kind.SOCKET)

    def write(self, path: str) -> Identity:
        """Make a plain file."""
        return self._create(path, Kind.OTHER)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at ``path``."""
        self._create(path, Kind.SYMLINK)
        self.node(path).target = target

    def link(self, old: str, new: str) -> None:
        """Make a hard link; the change time of the inode is set, and no event tells of that."""
        node = self.node(old)
        parent, name = self._place(new)
        if node.kind is Kind.DIRECTORY:
            raise _error(errno.EPERM, old)
        if name in parent.children:
            raise _error(errno.EEXIST, new)
        node.links += 1
        self._touch(node)
        self._put(parent, name, node, mask.CREATE)

    def unlink(self, path: str) -> None:
        """Remove a name that is not a directory's."""
        parent, name = self._place(path)
        node = self.node(path)
        if node.kind is Kind.DIRECTORY:
            raise _error(errno.EISDIR, path)
        del parent.children[name]
        self._drop(node)
        self._tell(parent, mask.DELETE, name)

    def replace(self, path: str) -> Identity:
        """Unlink ``path`` and bind it anew, as a plugin that restarts does."""
        self.unlink(path)
        return self.bind(path)

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory, over what is there if it is a file."""
        node = self.node(old)
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        over = target.children.get(new_name)
        if over is node:
            return
        if new.startswith(f"{old}/"):
            raise _error(errno.EINVAL, new)
        if over is not None and Kind.DIRECTORY in (over.kind, node.kind):
            raise _error(errno.EISDIR, new)
        del source.children[old_name]
        if over is not None:
            self._drop(over)
        target.children[new_name] = node
        self._touch(node)
        directory = mask.ISDIR if node.kind is Kind.DIRECTORY else 0
        self._tell(source, mask.MOVED_FROM | directory, old_name)
        self._tell(target, mask.MOVED_TO | directory, new_name)
        self._tell(node, mask.MOVE_SELF)

    def chmod(self, path: str) -> None:
        """Change the attributes of what is at ``path``."""
        node = self.node(path)
        self._touch(node)
        parent, name = self._place(path)
        self._tell(parent, mask.ATTRIB | (mask.ISDIR if node.kind is Kind.DIRECTORY else 0), name)
        self._tell(node, mask.ATTRIB)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all beneath, from the leaves up, as ``rm -rf`` does."""
        node = self._directory(path)
        for name, child in tuple(node.children.items()):
            if child.kind is Kind.DIRECTORY:
                self.remove_tree(below(path, name))
            else:
                self.unlink(below(path, name))
        parent, name = self._place(path)
        del parent.children[name]
        if not self.withhold_self_events:
            self._drop(node)
            self._tell(node, mask.DELETE_SELF)
        self._tell(parent, mask.DELETE | mask.ISDIR, name)

    def mount(self, path: str) -> None:
        """Mount an empty file system over the directory ``path``: no event tells of it (fault 16)."""
        self.node(path)
        self._mounted[path] = _Node(Kind.DIRECTORY, 2, device=2)

    def unmount(self, path: str) -> None:
        """Take away what was mounted over ``path``."""
        del self._mounted[path]

    # --- the script: what goes wrong ----------------------------------------------------------------------------------

    def drop_events(self) -> None:
        """Lose all events from now on, without an overflow that says so."""
        self._dropping_events = True

    def resume_events(self) -> None:
        """End what :meth:`drop_events` began; the lost events stay lost."""
        self._dropping_events = False

    @property
    def dropping_events(self) -> bool:
        """Whether events are lost now."""
        return self._dropping_events

    def delay_events(self) -> None:
        """Keep events back from now on, so that those until :meth:`release_events` arrive as one batch."""
        self._delaying_events = True
        for instance in self.instances:
            instance.delay()

    def release_events(self) -> None:
        """Deliver the events that were delayed."""
        self._delaying_events = False
        for instance in self.instances:
            instance.wake()

    @property
    def delaying_events(self) -> bool:
        """Whether events are kept back now."""
        return self._delaying_events

    def overflow(self) -> None:
        """The event queue of every watcher overflows now."""
        for instance in self.instances:
            instance.overflow()

    def lose_watch(self, path: str) -> None:
        """The kernel ends the watches of the directory ``path`` (fault 20)."""
        for instance in self.instances:
            instance.lose_watch(self.node(path))

    def sockets(self, root: str) -> dict[str, tuple[int, int]]:
        """Every socket below ``root`` by its path, with device and inode; dot names are left out."""
        found: dict[str, tuple[int, int]] = {}
        top = self._find(root)
        waiting = [(root, top)] if top is not None else []
        while waiting:
            path, node = waiting.pop()
            if node.kind is Kind.SOCKET:
                found[path] = node.device, node.number
            waiting.extend((below(path, n), self.node(below(path, n))) for n in node.children if n[0] != ".")
        return found

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``."""
        return self._find(path) is not None

    def names(self, path: str) -> list[str]:
        """The names in the directory ``path``."""
        return list(self.node(path).children)

    # --- inodes -------------------------------------------------------------------------------------------------------

    def node(self, path: str) -> _Node:
        """The inode at ``path``. Raises FileNotFoundError."""
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._top
        walked = ""
        for name in path.strip("/").split("/") if path != "/" else ():
            node = node.children.get(name) if node is not None else None
            walked = f"{walked}/{name}"
            node = self._mounted.get(walked, node)
        return node

    def _place(self, path: str) -> tuple[_Node, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent or "/"), name

    def _directory(self, path: str) -> _Node:
        node = self.node(path)
        if node.kind is not Kind.DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        return node

    def _found(self, node: _Node) -> Found:
        return Found(node.kind, self._identity(node))

    def _identity(self, node: _Node) -> Identity:
        return Identity(node.device, node.number, node.changed_ns)

    def _create(self, path: str, kind: Kind) -> Identity:
        parent, name = self._place(path)
        if name in parent.children:
            raise _error(errno.EADDRINUSE, path)
        node = self._new(kind)
        self._put(parent, name, node, mask.CREATE)
        return self._identity(node)

    def _new(self, kind: Kind) -> _Node:
        if self.reuse_inodes and self._free:
            number = self._free.pop()
        else:
            self._numbers += 1
            number = self._numbers
        node = _Node(kind, number, 1)
        self._touch(node)
        return node

    def _touch(self, node: _Node) -> None:
        node.changed_ns = int(self._now() * 1e9) // self.tick_ns * self.tick_ns

    def _put(self, parent: _Node, name: str, node: _Node, bits: int) -> None:
        parent.children[name] = node
        self._tell(parent, bits, name)

    def _drop(self, node: _Node) -> None:
        node.links -= 1
        if node.links:
            self._touch(node)
        elif node.device == 1 and self.reuse_inodes:
            # Or what went while events are lost would be taken for what comes when they are heard again (seed 3369).
            self._free.append(node.number)

    def _tell(self, node: _Node, bits: int, name: str = "") -> None:
        for instance in self.instances:
            instance.about(node, bits, name)
