"""The directory of device plugins: its lock, ``kubelet.sock``, and the plugins' own sockets.

The start is made so that every plugin notices it, and none meets a refused connection. Some plugins call Register when
their own socket is gone, so these sockets are deleted; others when ``kubelet.sock`` is created, so it is removed and
made again. The socket is bound under another name, and linked to its own by link(2) once it answers. inotify reports a
link as CREATE, unlike a rename.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol, Self

import attrs
import trio
from grpclib.exceptions import GRPCError

from ...protocol.devices.calls import CallRefusedError, RegisterCall
from ...protocol.discovery import device_directory as rules
from ...protocol.discovery.device_directory import KUBELET_SOCKET, TEMPORARY_SOCKET
from ...protocol.errors import ConfigError
from ...protocol.identity import Identity
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.proto.deviceplugin_v1beta1_grpc import RegistrationBase
from ...protocol.proto.deviceplugin_v1beta1_pb2 import Empty, RegisterRequest
from ...protocol.registration.crashes import in_one_line
from ...protocol.settings.config import DevicePluginDirectory
from ..discovery.roots import RootBusyError, RootLock, make
from ..grpc.server.serve import (
    ConnectionEnded,
    ConnectionEnding,
    EndReason,
    HandlerFailed,
    ServerLimits,
    ServerStream,
    serve_listener,
)
from ..io.connecting import connect, stream_socket
from ..io.file_identity import identity_at
from ..io.file_watch import FileWatch
from ..io.unix_socket import Credentials, listen, peer_credentials
from ..trust.directories import check_above_root

#: The limits of a caller. A call is one small message.
LIMITS: Final = ServerLimits(
    max_message=64 * 1024,
    max_header_list=16 * 1024,
    max_streams=8,
    max_connections=256,
    max_connections_per_process=16,
    idle_timeout=60.0,
)

#: Endings of a connection that are the fault of the caller.
_HOSTILE: Final = frozenset({EndReason.FLOOD, EndReason.PROTOCOL, EndReason.NOT_READING, EndReason.TOO_MANY})

#: Registers a device plugin; raises CallRefusedError.
Register = Callable[[RegisterCall], Awaitable[None]]


class SocketTakenError(ConfigError):
    """Another process serves the socket of the directory."""

    def __init__(self, text: str, pid: int | None) -> None:
        super().__init__(text)
        #: The process id, if it is known.
        self.pid = pid


class KubeletSocket(enum.Enum):
    """The state of the path of ``kubelet.sock``."""

    OURS = "ours"
    MISSING = "missing"
    ANOTHER = "another"


class DirectoryWatch(Protocol):
    """A context manager that watches the names in a directory."""

    def __enter__(self) -> Self:
        """Return the watch."""

    def __exit__(self, *_: object) -> None:
        """Stop watching."""

    async def wait(self) -> None:
        """Wait until a name has changed; wait forever if the directory cannot be watched."""


class DeviceSocket(Protocol):
    """A socket on which device plugins call. It answers from the start, and gets its name in :meth:`publish`."""

    async def serve(self, register: Register, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer calls until :meth:`retire`. After a cancellation, this can be called again."""

    def publish(self, *, delete_sockets: bool) -> set[str]:
        """Delete all other sockets of the directory, if asked to, and give this socket its name; return the deleted
        names.

        Raises:
          OSError: if that is not possible.
        """

    def place(self) -> KubeletSocket:
        """Return whether the socket is at its path."""

    def retire(self) -> None:
        """Stop serving once the calls under way are answered."""

    def close(self) -> None:
        """Stop serving. Can be repeated."""


class DeviceDirectory(Protocol):
    """The port to the directory of device plugins: :class:`RealDeviceDirectory`, or a simulated one in tests."""

    def hold(self) -> None:
        """Create the directory if it is missing, check that plugind may use it, and lock it.

        Raises:
          SocketTakenError: if another process serves its socket.
          ConfigError: if plugind may not use it for another reason.
          OSError: if it cannot be made or read.
        """

    def listen(self) -> DeviceSocket:
        """Return a new socket, which has no name yet. Raises OSError."""

    def who_serves(self) -> int | None:
        """Return the pid of the process that serves the socket: 0 if it has none here, None if there is no process."""

    def identify(self, name: str) -> Identity | None:
        """Return the identity of the socket ``name`` in the directory; None if there is none. Raises OSError."""

    def watch(self) -> DirectoryWatch:
        """Watch the names in the directory from now on."""

    def release(self) -> None:
        """Unlock the directory."""


class _RegistrationService(RegistrationBase):
    """The service on the socket."""

    def __init__(self, register: Register) -> None:
        self._register = register

    async def Register(  # type: ignore[override]  # noqa: N802 - gRPC's name, and a stream of our own server
        self, stream: ServerStream[RegisterRequest, Empty]
    ) -> None:
        """Register the device plugin that calls.

        Raises:
          GRPCError: if the call is refused.
        """
        request = await stream.recv_message()
        peer = stream.peer.credentials
        assert request is not None, "a unary call has a message"
        assert peer is not None, "the kernel names the process of each connection"
        try:
            await self._register(_call_of(request, peer))
        except CallRefusedError as error:
            raise GRPCError(error.code, str(error)) from error
        await stream.send_message(Empty())


def _call_of(request: RegisterRequest, peer: Credentials) -> RegisterCall:
    said = request.options
    options = DeviceOptions(said.pre_start_required, said.get_preferred_allocation_available)
    named = options if request.HasField("options") else None
    return RegisterCall(request.version, request.endpoint, request.resource_name, peer.uid, peer.pid, named)


class _RealServing:
    """See :class:`DeviceSocket`."""

    def __init__(self, directory: str, mode: int, log: Logger) -> None:
        self._directory = directory
        self._log = log
        self._listener = listen(
            os.path.join(directory, TEMPORARY_SOCKET), mode=mode, remove_stale=True, any_length=True
        )
        self._stopping = trio.Event()

    async def serve(self, register: Register, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See :class:`DeviceSocket`."""
        service = _RegistrationService(register)
        await serve_listener(
            [service],
            self._listener,
            limits=LIMITS,
            report=self._report,
            on_exhausted=self._report_exhausted,
            stopping=self._stopping,
            keep_open=True,
            task_status=task_status,
        )
        self.close()

    def _report(self, what: HandlerFailed | ConnectionEnded) -> None:
        match what:
            case HandlerFailed(method, error):
                self._log.event(Level.ERROR, "a call of Register failed", method=method, error=in_one_line(error))
            case ConnectionEnded(peer, ConnectionEnding(reason, detail), _):
                level = Level.WARNING if reason in _HOSTILE else Level.DEBUG
                pid = None if peer.credentials is None else peer.credentials.pid
                message = "a connection to kubelet.sock ended"
                self._log.event(level, message, reason=reason.value, detail=detail, pid=pid)

    def _report_exhausted(self, error: OSError) -> None:
        self._log.event(Level.WARNING, "kubelet.sock cannot accept", reason=str(error))

    def publish(self, *, delete_sockets: bool) -> set[str]:
        """See :class:`DeviceSocket`."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            deleted = _delete_sockets(directory) if delete_sockets else set()
            os.link(TEMPORARY_SOCKET, KUBELET_SOCKET, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            os.unlink(TEMPORARY_SOCKET, dir_fd=directory)
        finally:
            os.close(directory)
        self._listener = attrs.evolve(self._listener, path=os.path.join(self._directory, KUBELET_SOCKET))
        return deleted

    def place(self) -> KubeletSocket:
        """See :class:`DeviceSocket`."""
        if self._listener.is_in_place():
            return KubeletSocket.OURS
        return KubeletSocket.ANOTHER if os.path.lexists(self._listener.path) else KubeletSocket.MISSING

    def retire(self) -> None:
        """See :class:`DeviceSocket`."""
        self._stopping.set()

    def close(self) -> None:
        """See :class:`DeviceSocket`."""
        self._listener.close()


def _delete_sockets(directory: int) -> set[str]:
    """Delete all sockets but the temporary one, ``kubelet.sock`` last; return their names."""
    deleted: set[str] = set()
    for name in sorted(os.listdir(directory), key=KUBELET_SOCKET.__eq__):
        if name != TEMPORARY_SOCKET:
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=directory)
                    deleted.add(name)
    return deleted


class RealDeviceDirectory:
    """See :class:`DeviceDirectory`."""

    def __init__(self, config: DevicePluginDirectory, others: bool = False, log: Logger = SILENT) -> None:
        """Use the directory of ``config``. With ``others``, the processes of all users can connect to the socket."""
        self._config = config
        self._path = config.directory
        self._mode = 0o666 if others else 0o600
        self._log = log
        self._lock = RootLock(insecure=config.insecure)

    def hold(self) -> None:
        """See :class:`DeviceDirectory`."""
        try:
            self._lock_it()
        except RootBusyError as error:
            raise ConfigError(rules.locked(self._path)) from error
        except ConfigError as error:
            # The rules and texts are those of a root, but this directory has another option.
            raise type(error)(str(error).replace("--root", "--device-plugins")) from error
        pid = self.who_serves()
        if pid is not None:
            raise SocketTakenError(rules.answered(self._path, pid), pid)

    def _lock_it(self) -> None:
        if not self._config.insecure:
            check_above_root(self._path)
        try:
            if self._config.is_usual:  # Nobody has misspelt that one, so the directory above it is made, too.
                make(os.path.dirname(self._path))
            make(self._path)
        except NotADirectoryError as error:
            raise ConfigError(rules.no_directory(self._path)) from error
        except OSError as error:
            raise OSError(error.errno, rules.not_made(self._path, error)) from error
        try:
            names = os.listdir(self._path)
        except NotADirectoryError as error:
            raise ConfigError(rules.no_directory(self._path)) from error
        # Checked before the lock is taken, because the lock file is the sign that plugind has used the directory.
        rules.check_names(self._path, names, take_over_kubelet=self._config.take_over_kubelet)
        self._lock.take(self._path)

    def listen(self) -> _RealServing:
        """See :class:`DeviceDirectory`."""
        return _RealServing(self._path, self._mode, self._log)

    def who_serves(self) -> int | None:
        """See :class:`DeviceDirectory`."""
        with stream_socket() as probe:
            try:
                connect(probe, os.path.join(self._path, KUBELET_SOCKET))
            except BlockingIOError:
                return 0  # The backlog is full.
            except OSError:
                return None
            return peer_credentials(probe).pid

    def identify(self, name: str) -> Identity | None:
        """See :class:`DeviceDirectory`."""
        path = os.path.join(self._path, name)
        try:
            status = os.lstat(path)
            return identity_at(status, path) if stat.S_ISSOCK(status.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def watch(self) -> FileWatch:
        """See :class:`DeviceDirectory`."""
        return FileWatch(self._path, names=True)

    def release(self) -> None:
        """See :class:`DeviceDirectory`."""
        self._lock.release()
