"""The files of endpoints in memory."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ...protocol.discovery.endpoints import FoundFile
from ...protocol.identity import Identity
from ..io.unix_socket import Credentials
from .directory import MemoryDirectory
from .network import MemoryNetwork
from .streams import ClientEnd


@attrs.frozen
class MemoryEndpoint:
    """A connection to an endpoint in memory."""

    peer: Credentials
    _path: str
    _end: ClientEnd
    _network: MemoryNetwork

    def close(self) -> None:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointConnection`."""
        self._end.close()

    def transport(self) -> ClientEnd:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointConnection`."""
        self._network.linked = [(path, end) for path, end in self._network.linked if not end.closed]
        self._network.linked.append((self._path, self._end))
        return self._end


@attrs.frozen
class MemoryEndpointFiles:
    """An :class:`~plugind.actors.grpc.endpoints.EndpointFiles` of a simulated node."""

    directory: MemoryDirectory
    network: MemoryNetwork

    def below(self, roots: tuple[str, ...]) -> MemoryEndpointFiles:  # noqa: ARG002 - the port's signature
        """See :class:`~plugind.actors.grpc.endpoints.EndpointFiles`."""
        return self

    def resolve(self, path: str) -> str:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointFiles`. Directories in memory are not reached by links."""
        return path

    def look(self, path: str) -> FoundFile:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointFiles`."""
        try:
            inode = self.directory.inode(path)
        except FileNotFoundError:
            return FoundFile(path)
        return FoundFile(path, inode.kind, self.directory.identity(inode))

    def connect(self, path: str, check: Callable[[FoundFile], None]) -> MemoryEndpoint:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointFiles`."""
        check(self.look(path))
        return self._connect(path)

    def connect_exactly(self, path: str, identity: Identity) -> MemoryEndpoint:
        """See :class:`~plugind.actors.grpc.endpoints.EndpointFiles`."""
        return self._connect(path, identity)

    def _connect(self, path: str, identity: Identity | None = None) -> MemoryEndpoint:
        process, end = self.network.connect(path, identity)
        return MemoryEndpoint(process.credentials, path, end, self.network)
