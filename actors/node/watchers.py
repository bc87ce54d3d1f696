"""The watchers of a node, one for each root, and the directories that lock the roots."""

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
    """Starts and stops the watchers. Inboxes and directories outlive a watcher that crashes."""

    def __init__(
        self,
        roots: Iterable[Root],
        open_directory: Callable[[Root], Directory],
        run: Callable[[Root], Awaitable[None]],
    ) -> None:
        """``run`` runs the watcher of a root."""
        self._open_directory = open_directory
        self._run = run
        #: They lock the roots. Each lives as long as the node, or until its root is removed and all its plugins have
        #: left.
        self.directories: dict[Root, Directory] = {}
        self.inboxes: dict[Root, WatcherInbox] = {}
        #: The children of the last reconciler, and whether watchers may start among them.
        self._children: Children | None = None
        self._may_start = False
        for root in roots:
            self.add(root)

    def hold(self) -> None:
        """Lock all existing roots. For the others a watcher tries again, and shows the reason (fault 4).

        Raises:
          ConfigError: if a root is not a directory, or others may write to it (faults 2 and 3).
          RootBusyError: if another node has locked a root (fault 96).
        """
        for root, directory in self.directories.items():
            with suppress(OSError):
                directory.check_above(root.path)
                directory.hold(root.path)

    def owner_above(self, path: str) -> int | None:
        """Return the trusted user who owns a directory above the socket; None if only root and this user do."""
        directories = {root.path: directory for root, directory in self.directories.items() if not root.insecure}
        root = root_of(path, directories)
        return None if root is None else directories[root].owner_above(path, root)

    def start_all(self, children: Children, roots: Collection[Root]) -> None:
        """Start the watchers of ``roots`` among ``children``; watchers that are added later start at once."""
        self._children, self._may_start = children, True
        for root in self.inboxes:
            if root in roots:
                self._start(root)

    def end(self) -> None:
        """Start no more watchers, because their nursery ends."""
        self._may_start = False

    def add(self, root: Root) -> WatcherInbox:
        """Add a root and return the inbox of its watcher, which is started if watchers may start."""
        if root not in self.directories:
            self.directories[root] = self._open_directory(root)
        inbox = self.inboxes[root] = WatcherInbox()
        self._start(root)
        return inbox

    def _start(self, root: Root) -> None:
        if self._children is not None and self._may_start:
            self._children.start(ChildSpec(f"watcher {root.path}", partial(self._run, root)))

    async def stop(self, root: Root) -> None:
        """Stop the watcher of a root and wait for its end."""
        if self._children is not None:
            await self._children.stop(f"watcher {root.path}")

    def leave(self, path: str, kept: Collection[Root]) -> None:
        """Release the lock of a removed root, unless it was added again and is one of those ``kept``."""
        for root in [root for root in self.directories if root.path == path and root not in kept]:
            self.directories.pop(root).release()

    def release(self) -> None:
        """Release the locks of all roots."""
        for directory in self.directories.values():
            directory.release()
