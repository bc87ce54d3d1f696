"""The watchers of a node, one for each root, and the directories that hold the locks of the roots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

from ...protocol.settings.config import Root
from ..discovery.directory import Directory
from ..discovery.watcher import WatcherInbox
from ..io.beneath import root_of
from .supervision import Children, ChildSpec


class Watchers:
    """Starts and stops the watcher of each root. Inboxes and directories outlive a watcher that crashes."""

    def __init__(
        self,
        roots: Iterable[Root],
        open_directory: Callable[[Root], Directory],
        run: Callable[[Root], Awaitable[None]],
    ) -> None:
        """``run`` is the watcher of a root."""
        self._open_directory = open_directory
        self._run = run
        #: A directory has the lock of its root. It lives as long as the node, or until its root is removed and no
        #: plugin of it is left to deregister.
        self.directories: dict[Root, Directory] = {}
        self.inboxes: dict[Root, WatcherInbox] = {}
        #: The children of the last reconciler, and whether watchers may start among them: not while they end.
        self._children: Children | None = None
        self._may_start = False
        for root in roots:
            self.add(root)

    def hold(self) -> None:
        """Lock all roots that are there. A watcher tries the others again, and shows why they cannot be had (fault 4).

        Raises:
          ConfigError: if a root is no directory, or others may write to it (faults 2 and 3).
          RootBusyError: if another node has locked one (fault 96).
        """
        for root, directory in self.directories.items():
            with suppress(OSError):
                directory.check_above(root.path)
                directory.hold(root.path)

    def owner_above(self, path: str) -> int | None:
        """Return the trusted user who owns a directory on the way to the socket; None if only root and this user do."""
        directories = {root.path: directory for root, directory in self.directories.items() if not root.insecure}
        root = root_of(path, directories)
        return None if root is None else directories[root].owner_above(path, root)

    def start_all(self, children: Children, roots: Collection[Root]) -> None:
        """Start those of ``roots`` among ``children``, and from now on each that is added."""
        self._children, self._may_start = children, True
        for root in self.inboxes:
            if root in roots:
                self._start(root)

    def end(self) -> None:
        """Start no more of them: their children end."""
        self._may_start = False

    def add(self, root: Root) -> WatcherInbox:
        """Return the inbox of the watcher of another root, which is started if watchers may start."""
        if root not in self.directories:
            self.directories[root] = self._open_directory(root)
        inbox = self.inboxes[root] = WatcherInbox()
        self._start(root)
        return inbox

    def _start(self, root: Root) -> None:
        if self._children is not None and self._may_start:
            self._children.start(ChildSpec(f"watcher {root.path}", partial(self._run, root)))

    async def stop(self, root: Root) -> None:
        """Stop the watcher of a root, and return when it has ended."""
        if self._children is not None:
            await self._children.stop(f"watcher {root.path}")

    def leave(self, path: str, kept: Collection[Root]) -> None:
        """Release the lock of a root that was removed, unless it was added again and is one of those ``kept``."""
        for root in [root for root in self.directories if root.path == path and root not in kept]:
            self.directories.pop(root).release()

    def release(self) -> None:
        """Release the locks of all roots."""
        for directory in self.directories.values():
            directory.release()
