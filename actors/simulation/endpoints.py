"""The files of endpoints in memory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ...protocol.endpoints import FoundFile
from ..io.unix_socket import Credentials
from .directory import MemoryDirectory
from .network import MemoryNetwork


@attrs.frozen
class MemoryConnection:
    """A connection that is closed already; only the process that accepted it is of interest."""

    peer: Credentials

    def close(self) -> None:
        """Do nothing."""


@attrs.frozen
class MemoryEndpointFiles:
    """An :class:`~plugind.actors.io.endpoints.EndpointFiles` of a simulated node."""

    directory: MemoryDirectory
    network: MemoryNetwork

    def resolve(self, path: str) -> str:
        """See :class:`~plugind.actors.io.endpoints.EndpointFiles`. Directories in memory have no links to others."""
        return path

    def look(self, path: str) -> FoundFile:
        """See :class:`~plugind.actors.io.endpoints.EndpointFiles`."""
        try:
            inode = self.directory.inode(path)
        except FileNotFoundError:
            return FoundFile(path)
        return FoundFile(path, inode.kind, self.directory.identity(inode))

    def connect(self, path: str, check: Callable[[FoundFile], None]) -> MemoryConnection:
        """See :class:`~plugind.actors.io.endpoints.EndpointFiles`."""
        check(self.look(path))
        return MemoryConnection(self.network.look(path).credentials)
