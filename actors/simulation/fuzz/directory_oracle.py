"""What is dialed below directories that others may write to, checked while a script is played.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ....protocol.directories import insecurity
from ..directory import MemoryDirectory, access_of
from ..inotify import Inode


@attrs.define(eq=False)
class DirectoryOracle:
    """No socket is dialed that was made below a directory while others could write to that (fault 3)."""

    _directory: MemoryDirectory
    _violated: Callable[[str, str], None]
    #: Seconds until the daemon has noticed who may write to a directory, at the latest.
    grace: float = 0.0
    #: Since when others may write to a directory, by the serial number of its inode.
    _since: dict[int, float] = attrs.field(init=False, factory=dict)

    def is_insecure(self, path: str) -> bool:
        """Whether others may write to the directory at ``path`` now."""
        return self._directory.exists(path) and insecurity(path, access_of(self._directory.inode(path))) is not None

    def changed(self, path: str) -> None:
        """The mode or the owner of the directory ``path`` has changed."""
        serial = self._directory.inode(path).serial
        if self.is_insecure(path):
            self._since.setdefault(serial, trio.current_time())
        else:
            self._since.pop(serial, None)

    def connected(self, path: str, socket: Inode) -> None:
        """The daemon has dialed ``socket`` at ``path``."""
        above = path
        while (above := above.rpartition("/")[0]) and self._directory.exists(above):
            since = self._since.get(self._directory.inode(above).serial)
            if since is not None and socket.born_ns / 1e9 > since + self.grace:
                self._violated("directory", f"{path} is dialed, which is new below {above}, to which others may write")
