"""Endpoints: the files at their paths, and connections to them after checks of the file and the listening process.

Consumers must connect to an endpoint with :meth:`Endpoints.connect`. The file can be replaced or created after the
registration. So it is opened without following a link, judged, and connected to through its descriptor; then the
process that listens is judged (faults 40 and 43).
"""

from __future__ import annotations

import os
import socket as sockets
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, Self

import attrs

from ...protocol.discovery.endpoints import FoundFile, refusal
from ...protocol.discovery.sockets import EntryKind
from ...protocol.errors import ValidationError
from ...protocol.identity import Identity
from ...protocol.values import value
from ..discovery.directory import describe
from ..io.connecting import connect, stream_socket
from ..io.exact_connect import can_connect_to_descriptors, connect_to
from ..io.file_identity import AT_FDCWD, identity_at, identity_of
from ..io.unix_socket import Credentials, peer_credentials
from .client.transport import LARGE_READ_BYTES, SocketTransport, Transport

_KINDS = {stat.S_IFSOCK: EntryKind.SOCKET, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.SYMLINK}


class EndpointConnection(Protocol):
    """A connection to an endpoint."""

    @property
    def peer(self) -> Credentials:
        """The process that listens."""

    def close(self) -> None:
        """Close it."""

    def transport(self) -> Transport:
        """Return the transport for a channel, which owns the connection from now on."""


class EndpointFiles(Protocol):
    """The port to the files of endpoints: :class:`RealEndpointFiles`, or a simulated one in tests.

    All methods raise OSError.
    """

    def resolve(self, path: str) -> str:
        """Return ``path`` without symbolic links. It need not exist."""

    def look(self, path: str) -> FoundFile:
        """Return the file at ``path``. Links are followed only in its directory."""

    def connect(self, path: str, check: Callable[[FoundFile], None]) -> EndpointConnection:
        """Connect to the socket at ``path`` if ``check`` accepts it, and to no other, without waiting.

        Raises:
          BlockingIOError: if the backlog of the listener is full.
        """

    def below(self, roots: tuple[str, ...]) -> EndpointFiles:
        """Return a copy for other ``roots``, below which no directory on the way to a plugin's socket may be a link."""

    def connect_exactly(self, path: str, identity: Identity) -> EndpointConnection:
        """Connect to the socket with this ``identity`` at ``path``, and to no other (fault 41).

        Raises:
          BlockingIOError: if the backlog of the listener is full.
          OSError: ESTALE if another file is at ``path``.
        """


class EndpointRefusedError(Exception):
    """An endpoint may not be used; the text is the reason."""


@value
class Endpoints:
    """Judges the endpoints of plugins by their files, when they are announced and at each connection."""

    files: EndpointFiles
    #: The directories in which endpoints may lie.
    directories: tuple[str, ...]
    #: The path of plugind's own status socket, if it has one.
    status_socket: str | None = None
    #: Returns why the process that listens on an endpoint is not trusted, or None.
    distrust: Callable[[Credentials], str | None] = lambda _: None

    def trusting(self, distrust: Callable[[int, int], str | None]) -> Self:
        """Return a copy for other trusted users: ``distrust`` returns why a uid and a process are not trusted."""
        return attrs.evolve(self, distrust=lambda peer: distrust(peer.uid, peer.pid))

    def within(self, directories: tuple[str, ...]) -> Self:
        """Return a copy for endpoints in other ``directories``."""
        return attrs.evolve(self, directories=directories)

    def judge(self, endpoint: str, socket: str, identity: Identity) -> FoundFile | None:
        """Return the file at ``endpoint``, or None if that is the path of the plugin's own ``socket``.

        The socket is the file ``identity``, which is accepted under any name.

        Raises:
          ValidationError: if the plugin may not use the endpoint (faults 43 and 45).
        """
        if endpoint == socket:
            return None
        try:
            found = self.files.look(endpoint)
            if found.identity is None or not found.identity.is_same(identity):
                self._check(endpoint, found)
        except OSError as error:
            raise ValidationError(f"cannot look at the endpoint {endpoint!r}: {describe(error)}") from error
        return found

    def connect(self, endpoint: str) -> EndpointConnection:
        """Connect to an endpoint that is not the plugin's own socket.

        Raises:
          EndpointRefusedError: if its file, or the process that listens on it, may not be used.
          OSError: if there is no connection.
        """
        try:
            connection = self.files.connect(endpoint, partial(self._check, endpoint))
        except ValidationError as error:
            raise EndpointRefusedError(str(error)) from error
        return self._trusted(connection, endpoint)

    def connect_own(self, socket: str, identity: Identity) -> EndpointConnection:
        """Connect to a plugin's own ``socket``, which is the file ``identity`` and also its endpoint.

        Raises:
          EndpointRefusedError: if the process that listens on it may not be used.
          OSError: if there is no connection, or another file is there.
        """
        return self._trusted(self.files.connect_exactly(socket, identity), socket)

    def _trusted(self, connection: EndpointConnection, endpoint: str) -> EndpointConnection:
        distrust = self.distrust(connection.peer)
        if distrust is not None:
            connection.close()
            raise EndpointRefusedError(f"the endpoint {endpoint!r} is not used: {distrust}")
        return connection

    def _check(self, endpoint: str, found: FoundFile) -> None:
        if self._is_status_socket(found):
            wrong: str | None = (
                f"the endpoint {endpoint!r} is plugind's own status socket; give the path of the plugin's socket"
            )
        else:
            wrong = refusal(endpoint, found, self.directories, self.files.resolve)
        if wrong is not None:
            raise ValidationError(wrong)

    def _is_status_socket(self, found: FoundFile) -> bool:
        return found.identity is not None and self.is_status_socket(found.identity)

    def is_status_socket(self, identity: Identity) -> bool:
        """Whether this file is plugind's own status socket, under any name (fault 45)."""
        if self.status_socket is None:
            return False
        try:
            own = os.lstat(self.status_socket)
        except OSError:
            return False
        return own.st_ino == identity.inode and own.st_dev == identity.device


@value
class RealConnection:
    """A real :class:`EndpointConnection`."""

    _socket: sockets.socket
    peer: Credentials

    @classmethod
    def from_socket(cls, connection: sockets.socket) -> Self:
        """Take over a connected socket."""
        return cls(connection, peer_credentials(connection))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def transport(self) -> SocketTransport:
        """See :class:`EndpointConnection`."""
        return SocketTransport(self._socket, LARGE_READ_BYTES)


@value
class RealEndpointFiles:
    """The files of this machine."""

    #: Below these directories, no directory on the way to a plugin's own socket may be a link.
    roots: tuple[str, ...] = ()
    #: Whether a link can stand for the plugin's own socket.
    follow_symlinks: bool = False

    def below(self, roots: tuple[str, ...]) -> RealEndpointFiles:
        """See :class:`EndpointFiles`."""
        return attrs.evolve(self, roots=roots)

    def resolve(self, path: str) -> str:
        """See :class:`EndpointFiles`."""
        return os.path.realpath(path)

    def look(self, path: str) -> FoundFile:
        """See :class:`EndpointFiles`."""
        directory, name = os.path.split(path)
        real = os.path.join(_real_directory(directory), name)
        try:
            status = os.lstat(real)
        except (FileNotFoundError, NotADirectoryError):
            return FoundFile(real)
        return FoundFile(real, _kind(status), identity_at(status, real, AT_FDCWD))

    def connect(self, path: str, check: Callable[[FoundFile], None]) -> RealConnection:
        """See :class:`EndpointFiles`. Without ``/proc`` the path is judged and then connected to in two steps."""
        if not can_connect_to_descriptors():
            check(self.look(path))
            return self._connect(path)
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            name = f"/proc/self/fd/{descriptor}"
            check(FoundFile(os.readlink(name), _kind(os.fstat(descriptor)), identity_of(descriptor)))
            return self._connect(name)
        finally:
            os.close(descriptor)

    def connect_exactly(self, path: str, identity: Identity) -> RealConnection:
        """See :class:`EndpointFiles`."""
        return self._made(
            partial(connect_to, path=path, identity=identity, roots=self.roots, follow_symlinks=self.follow_symlinks)
        )

    def _connect(self, path: str) -> RealConnection:
        return self._made(partial(connect, path=path))

    def _made(self, connect: Callable[[sockets.socket], None]) -> RealConnection:
        connection = stream_socket()
        try:
            connect(connection)
            return RealConnection.from_socket(connection)
        except BaseException:
            connection.close()
            raise


def _real_directory(path: str) -> str:
    """Return the directory ``path`` without symbolic links; if it exists, that takes one system call."""
    if can_connect_to_descriptors():
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return os.readlink(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)
    return os.path.realpath(path)


def _kind(status: os.stat_result) -> EntryKind:
    return _KINDS.get(stat.S_IFMT(status.st_mode), EntryKind.OTHER)
