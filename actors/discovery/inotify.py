"""inotify for one tree: an instance, and the watches on the directories that the scanner enters.

inotify may be missing altogether, or run out of watches (faults 17, 18 and 24). Then :attr:`Inotify.unwatched` says
why, and only rescans find changes in the unwatched directories.
"""

from __future__ import annotations

import os

import trio

from ...protocol.discovery.watches import Watches
from .directory import Directory, Events, describe_inotify


class Inotify:
    """Watches directories below ``watches.root`` and records their events in ``watches``.

    The scanner takes the marks from ``watches``; nothing else changes them.
    """

    def __init__(self, directory: Directory, watches: Watches) -> None:
        self._directory = directory
        self._watches = watches
        self._events: Events | None = None
        self._unwatched: str | None = None
        self._waiting = trio.CancelScope()

    @property
    def unwatched(self) -> str | None:
        """Why part of the tree is unwatched, as found since :meth:`open`; None if all of it is watched."""
        return self._unwatched

    def open(self) -> None:
        """Begin a rescan: clear :attr:`unwatched`, and open an instance if there is none."""
        self._unwatched = None
        if self._events is not None:
            return
        try:
            self._events = self._directory.events()
        except OSError as error:
            self._unwatched = f"no inotify instance: {describe_inotify(error)}"

    def close(self) -> None:
        """Close the instance, which ends all watches."""
        if self._events is not None:
            self._events.close()

    def watch(self, path: str) -> None:
        """Watch the directory ``path``; do nothing if it is no longer a directory (fault 25).

        A watched directory is added again, since its watch may have ended with an event that was lost (fault 20).
        """
        if self._events is None:
            return
        previous = self._watches.descriptor(path)
        try:
            descriptor = self._events.watch(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if previous is None:
                self._unwatched = f"cannot watch {path}: {describe_inotify(error)}"
            return
        if descriptor != previous:
            self.unwatch(path)
            self._watches.add(path, descriptor)

    def watch_parent(self) -> None:
        """Watch the parent of the root (behaviour 11). Without that, only rescans notice that the root changes."""
        root = self._watches.root
        parent = os.path.dirname(root)
        if self._events is None or parent == root:
            return
        try:
            self._watches.add_parent(self._events.watch_parent(parent))
        except OSError:
            return

    def unwatch(self, path: str) -> None:
        """End the watch on the directory ``path``, if it has its own watch."""
        descriptor = self._watches.drop(path)
        if descriptor is not None and self._events is not None:
            self._events.unwatch(descriptor)

    def read(self) -> None:
        """Record the pending events in ``watches``; never wait."""
        if self._events is not None:
            for notice in self._events.read():
                self._watches.note(notice)

    async def wait(self, deadline: float) -> None:
        """Wait for events, for :meth:`wake`, or until ``deadline``."""
        with trio.CancelScope(deadline=deadline) as self._waiting:
            if self._events is None:
                await trio.sleep_forever()
            else:
                await self._events.wait()

    def wake(self) -> None:
        """End the present :meth:`wait`, if there is one."""
        self._waiting.cancel()
