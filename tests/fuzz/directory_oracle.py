"""What is dialed below directories that others may write to, checked while a script is played."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import attrs
import trio

from plugind.actors.simulation.directory import MemoryDirectory, access_of
from plugind.actors.simulation.inotify import Inode
from plugind.protocol.discovery.sockets import EntryKind
from plugind.protocol.trust.directories import insecurity

#: Seconds until the daemon looks again at a directory in which nothing happens: a rescan.
_RESCAN: Final = 45.0


@attrs.define(eq=False)
class DirectoryOracle:
    """No socket is dialed that was made below a directory while others could write to that (fault 3).

    A directory below the root may belong to a trusted user. It, and all below it, is for plugins of that user, and for
    those of root and of the user of the daemon.
    """

    _directory: MemoryDirectory
    _violated: Callable[[str, str], None]
    _root: str
    _privileged: Collection[int]
    _trusted: Collection[int]
    #: Seconds until the daemon has noticed who may write to a directory, at the latest.
    grace: float = 0.0
    #: From when on nothing that is new in a directory is taken, by the serial number of its inode.
    _since: dict[int, float] = attrs.field(init=False, factory=dict)

    def is_insecure(self, path: str) -> bool:
        """Whether others may write to the directory at ``path`` now."""
        if not self._directory.exists(path):
            return False
        access = access_of(self._directory.inode(path))
        return insecurity(path, access, self._trusted.__contains__, self._holder(path)) is not None

    def _holder(self, path: str) -> int | None:
        """Return the user who may remove what is at ``path``, of those who are not privileged, if there is one."""
        owners = [self._directory.inode(above).owner for above in self._above(path)]
        return next((owner for owner in owners if owner not in self._privileged), None)

    def _above(self, path: str) -> list[str]:
        """Return the directories below the root in which ``path`` lies, the highest first."""
        found, above = list[str](), path
        while (above := above.rpartition("/")[0]) and above != self._root:
            found.append(above)
        return [above for above in reversed(found) if self._directory.exists(above)]

    def changed(self, path: str) -> None:
        """The mode or the owner of the directory ``path`` has changed."""
        self._judge(path, self.grace)
        for name, child in self._directory.inode(path).children.items():
            if child.kind is EntryKind.DIRECTORY:
                # Whose it may be depends on the one above, of which alone the daemon was told.
                self._judge(f"{path}/{name}", _RESCAN)

    def _judge(self, path: str, grace: float) -> None:
        serial = self._directory.inode(path).serial
        if self.is_insecure(path):
            self._since.setdefault(serial, trio.current_time() + grace)
        else:
            self._since.pop(serial, None)

    def connected(self, path: str, socket: Inode, uid: int) -> None:
        """The daemon has dialed ``socket`` at ``path``, on which user ``uid`` listens."""
        above = path
        while (above := above.rpartition("/")[0]) and self._directory.exists(above):
            since = self._since.get(self._directory.inode(above).serial)
            if since is not None and socket.born_ns / 1e9 > since:
                self._violated("directory", f"{path} is dialed, which is new below {above}, to which others may write")
        holder = self._holder(path)
        if holder not in (None, uid) and uid not in self._privileged:
            self._violated("directory", f"{path} of user {uid} is called in a directory of user {holder}")
