"""inotify in memory, by the kernel's rules as far as a watcher needs them, and its faults.

Watches are on inodes, not on paths. Each instance has one queue, which merges equal neighbours and overflows. Events
can be dropped or delayed, and instances and watches can run out.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable

import attrs
import trio

from ...protocol.discovery import watches as mask
from ...protocol.discovery.sockets import EntryKind
from ...protocol.discovery.watches import Notice

#: Events about a name in a watched directory, the only ones of a watch on the parent of a root.
_NAMES = mask.CREATE | mask.DELETE | mask.MOVED_FROM | mask.MOVED_TO


@attrs.define(eq=False)
class Inode:
    """An inode. Directories use ``children``, symbolic links ``target``."""

    kind: EntryKind
    number: int
    device: int
    changed_ns: int = 0
    born_ns: int = 0
    #: The content of its file handle, which no other inode ever has.
    serial: int = 0
    #: When the node last looked at it, in virtual seconds.
    looked_at: float = -math.inf
    links: int = 1
    #: The permissions, which only matter for directories, and the owner.
    mode: int = 0o755
    owner: int = 0
    children: dict[str, Inode] = attrs.Factory(dict)
    target: str = ""


def os_error(number: int, path: str) -> OSError:
    """Return the error with this errno for ``path``, as the kernel raises it."""
    return OSError(number, os.strerror(number), path)


class MemoryEvents:
    """One instance of inotify; see :class:`plugind.actors.discovery.directory.Events`."""

    def __init__(self, inotify: MemoryInotify, find: Callable[[str], Inode]) -> None:
        self._inotify = inotify
        self._find = find
        self._watched: dict[int, Inode] = {}
        self._names_only: set[int] = set()
        self._next = 1
        self._queue: list[Notice] = []
        #: How many events in the queue came before the delay.
        self._before_delay = 0
        self._arrived = trio.Event()

    # --- the port -----------------------------------------------------------------------------------------------------

    def watch(self, path: str) -> int:
        """See :class:`plugind.actors.discovery.directory.Events`. One inode gets one descriptor."""
        return self._add(path, names_only=False)

    def watch_parent(self, path: str) -> int:
        """See :class:`plugind.actors.discovery.directory.Events`."""
        return self._add(path, names_only=True)

    def _add(self, path: str, *, names_only: bool) -> int:
        inode = self._find(path)
        if inode.kind is not EntryKind.DIRECTORY:
            raise os_error(errno.ENOTDIR, path)
        for descriptor, watched in self._watched.items():
            if watched is inode:
                return descriptor
        self._inotify.use_watch(path)
        descriptor, self._next = self._next, self._next + 1
        self._watched[descriptor] = inode
        if names_only:
            self._names_only.add(descriptor)
        return descriptor

    def unwatch(self, descriptor: int) -> None:
        """See :class:`plugind.actors.discovery.directory.Events`."""
        if self._watched.pop(descriptor, None) is not None:
            self._put((descriptor, mask.IGNORED, ""))

    def read(self) -> list[Notice]:
        """See :class:`plugind.actors.discovery.directory.Events`. Delayed events are not returned."""
        readable = self._before_delay if self._inotify.delaying_events else len(self._queue)
        notices, self._queue = self._queue[:readable], self._queue[readable:]
        self._before_delay = 0
        self._arrived = trio.Event()
        return notices

    async def wait(self) -> None:
        """See :class:`plugind.actors.discovery.directory.Events`."""
        await self._arrived.wait()

    def close(self) -> None:
        """See :class:`plugind.actors.discovery.directory.Events`."""
        self._watched.clear()
        self._inotify.instances.remove(self)

    # --- the kernel's side --------------------------------------------------------------------------------------------

    def notify(self, inode: Inode, bits: int, name: str = "") -> None:
        """Queue an event about this inode, or about this name in it, for each watch that includes it."""
        for descriptor, watched in tuple(self._watched.items()):
            if watched is inode and (descriptor not in self._names_only or bits & _NAMES):
                self._put((descriptor, bits, name))
            if watched is inode and bits & mask.DELETE_SELF:
                del self._watched[descriptor]
                self._put((descriptor, mask.IGNORED, ""))

    def lose_watch(self, inode: Inode) -> None:
        """End the watch on this inode, as the kernel can."""
        for descriptor, watched in tuple(self._watched.items()):
            if watched is inode:
                self.unwatch(descriptor)

    def overflow(self) -> None:
        """Make the queue overflow: its events are delivered, newer ones are lost, and an event reports it."""
        notice = (-1, mask.Q_OVERFLOW, "")
        if notice not in self._queue:
            self._queue.append(notice)
        self.wake()

    def delay(self) -> None:
        """Keep newer events from being read until :meth:`MemoryInotify.release_events`."""
        self._before_delay = len(self._queue)

    def wake(self) -> None:
        """Wake the task that waits for events, if one can be read."""
        if self._queue and not self._inotify.delaying_events:
            self._arrived.set()

    def _put(self, notice: Notice) -> None:
        """Queue one event, unless it equals the one before it."""
        if self._inotify.dropping_events or (self._queue and self._queue[-1] == notice):
            return
        if len(self._queue) >= self._inotify.queue_size:
            self.overflow()
            return
        self._queue.append(notice)
        self.wake()


class MemoryInotify:
    """All instances of inotify on a :class:`~plugind.actors.simulation.directory.MemoryDirectory`, and their faults."""

    def __init__(self) -> None:
        #: The instances that are open.
        self.instances: list[MemoryEvents] = []
        #: How many events a queue holds.
        self.queue_size = 16_384
        #: How many more watches and instances can be made (faults 17 and 18); None means any number.
        self.watches_left: int | None = None
        self.instances_left: int | None = None
        self._dropping_events = False
        self._delaying_events = False

    @property
    def dropping_events(self) -> bool:
        """Whether events are lost now; see :meth:`drop_events`."""
        return self._dropping_events

    @property
    def delaying_events(self) -> bool:
        """Whether events are kept back now; see :meth:`delay_events`."""
        return self._delaying_events

    def open(self, find: Callable[[str], Inode]) -> MemoryEvents:
        """Open an instance, which finds the inode of a path with ``find``."""
        if self.instances_left is not None:
            if self.instances_left == 0:
                raise os_error(errno.EMFILE, "inotify")
            self.instances_left -= 1
        instance = MemoryEvents(self, find)
        self.instances.append(instance)
        return instance

    def use_watch(self, path: str) -> None:
        """Count one more watch. Raises OSError (ENOSPC) if there are none left."""
        if self.watches_left is not None:
            if self.watches_left == 0:
                raise os_error(errno.ENOSPC, path)
            self.watches_left -= 1

    def notify(self, inode: Inode, bits: int, name: str = "") -> None:
        """Queue an event about this inode, or about this name in it, in every instance."""
        for instance in self.instances:
            instance.notify(inode, bits, name)

    def lose_watch(self, inode: Inode) -> None:
        """End all watches on this inode, as the kernel can (fault 20)."""
        for instance in self.instances:
            instance.lose_watch(inode)

    def overflow(self) -> None:
        """Make the queue of every instance overflow (fault 19)."""
        for instance in self.instances:
            instance.overflow()

    def drop_events(self) -> None:
        """Lose all events from now on, without an overflow event."""
        self._dropping_events = True

    def resume_events(self) -> None:
        """End :meth:`drop_events`; the lost events stay lost."""
        self._dropping_events = False

    def delay_events(self) -> None:
        """Keep events back from now on; :meth:`release_events` delivers them as one batch."""
        self._delaying_events = True
        for instance in self.instances:
            instance.delay()

    def release_events(self) -> None:
        """Deliver the events that were delayed."""
        self._delaying_events = False
        for instance in self.instances:
            instance.wake()
