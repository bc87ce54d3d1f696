"""A gRPC server on Trio: serves grpclib's generated service bases over unix sockets and over any Trio stream.

The plugin's half of every conversation stands on it: the fake plugin, the example plugin and the tests in memory. It
stands on h2, as it is not the hot half, and adds what h2 leaves open: frame budgets, deadlines for every wait, and
handlers whose failures are their caller's alone. One listener is one nursery, one connection is one nursery in it.

* :func:`serve_unix` binds a path, serves until it is cancelled or told to stop, and removes its own socket.
* :func:`serve_stream` serves one connection, for instance one end of ``trio.testing.memory_stream_pair()``.
  Lockstep streams deadlock, since both sides of HTTP/2 begin by sending.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import trio
from grpclib.const import Handler

from .connection import Connection
from .limits import ConnectionEnded, End, Ending, HandlerFailed, Report, ServerLimits
from .stream import Peer, ServerStream

__all__ = [
    "ConnectionEnded",
    "End",
    "Ending",
    "HandlerFailed",
    "Peer",
    "Report",
    "ServerLimits",
    "ServerStream",
    "Service",
    "bind_unix",
    "log_report",
    "owning",
    "serve_listener",
    "serve_stream",
    "serve_unix",
]

_log = logging.getLogger("plugind.serving")
_UCRED = struct.Struct("3i")
#: accept() failed for want of descriptors or memory: the next may succeed once something is closed (fault 46).
_CAPACITY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_CAPACITY_PAUSE = 0.1
DEFAULT_LIMITS = ServerLimits()


class Service(Protocol):
    """What grpclib's generated ``...Base`` classes are: a mapping of paths to handlers."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Path of each method, its handler, cardinality and message types."""


def log_report(what: HandlerFailed | ConnectionEnded) -> None:
    """Tell of failures through logging; the default of every ``report`` parameter."""
    match what:
        case HandlerFailed(method, error):
            _log.error("handler failed: method=%s", method, exc_info=error)
        case ConnectionEnded(peer, Ending(end, detail), error):
            level = logging.DEBUG if end in (End.PEER_CLOSED, End.STOPPED, End.IDLE) else logging.WARNING
            text = "connection ended: reason=%r detail=%r peer_pid=%s"
            _log.log(level, text, end.value, detail, peer.pid, exc_info=error)


async def serve_stream(
    services: Collection[Service],
    stream: trio.abc.Stream,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    report: Report = log_report,
    peer: Peer | None = None,
    stopping: trio.Event | None = None,
) -> Ending:
    """Serve one connection until it ends, close ``stream``, and say how it ended.

    Setting ``stopping`` ends it gracefully: GOAWAY, calls in progress within ``limits.grace``. Nothing that the
    client does raises.
    """
    connection = Connection(
        _routes(services),
        stream,
        limits,
        report,
        peer=peer or Peer(),
        stopping=trio.Event() if stopping is None else stopping,
    )
    return await connection.run()


async def serve_unix(
    services: Collection[Service],
    path: str,
    *,
    mode: int = 0o600,
    backlog: int = 128,
    remove_stale: bool = False,
    limits: ServerLimits = DEFAULT_LIMITS,
    report: Report = log_report,
    stopping: trio.Event | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Bind ``path``, listen, and serve until cancelled, or until ``stopping`` is set and all calls have ended.

    The socket is removed at the end if it still is ours. Cancellation stops at once, with a GOAWAY to whoever reads.
    Raises OSError where the path cannot be bound, as :func:`bind_unix` does.
    """
    listener = bind_unix(path, mode=mode, backlog=backlog, remove_stale=remove_stale)
    await serve_listener(
        services, listener, path, limits=limits, report=report, stopping=stopping, task_status=task_status
    )


def bind_unix(
    path: str, *, mode: int = 0o600, backlog: int = 128, remove_stale: bool = False
) -> trio.socket.SocketType:
    """A unix socket bound to ``path`` with ``mode`` and listening.

    With ``remove_stale`` a socket at ``path`` that refuses connections is removed first; one that answers never is.
    Raises OSError: ENAMETOOLONG for more than 107 bytes, EADDRINUSE where something lives at the path.
    """
    if len(os.fsencode(path)) > 107:
        raise OSError(errno.ENAMETOOLONG, "a unix socket path holds at most 107 bytes", path)
    if remove_stale:
        _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Linux makes the file with the mode of the descriptor, so that it is never wider than asked, not for a moment.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        sock.listen(backlog)
        if stat.S_IMODE(os.lstat(path).st_mode) != mode:
            os.chmod(path, mode)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, error.strerror, path) from error
    return trio.socket.from_stdlib_socket(sock)


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "something that is no socket is in the way", path)
    if not _is_stale(path):
        raise OSError(errno.EADDRINUSE, "another process listens there", path)
    os.unlink(path)


def _is_stale(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            # Its backlog is full, so it is alive.
            return False
    return False


async def serve_listener(
    services: Collection[Service],
    listener: trio.socket.SocketType,
    path: str,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    report: Report = log_report,
    stopping: trio.Event | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a listening socket that is bound to ``path``; closes it and removes the path at the end if it is ours."""
    stopping = trio.Event() if stopping is None else stopping
    async with trio.open_nursery() as nursery:
        with owning(listener, path):
            accepting = trio.CancelScope()
            nursery.start_soon(_accept_until, accepting, _routes(services), listener, limits, report, stopping)
            task_status.started()
            await stopping.wait()
            accepting.cancel()


@contextlib.contextmanager
def owning(listener: trio.socket.SocketType, path: str) -> Iterator[None]:
    """At exit remove ``path`` if it still is the socket that ``listener`` is bound to, and close the listener."""
    bound = os.lstat(path)
    try:
        yield
    finally:
        # While the listener is open its inode cannot be given to another socket, so the comparison is exact.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(path), bound):
                os.unlink(path)
        listener.close()


async def _accept_until(
    scope: trio.CancelScope,
    routes: Mapping[str, Handler],
    listener: trio.socket.SocketType,
    limits: ServerLimits,
    report: Report,
    stopping: trio.Event,
) -> None:
    async with trio.open_nursery() as nursery:
        with scope:
            while True:
                accepted = await _accept(listener)
                if accepted is None:
                    continue
                if len(nursery.child_tasks) >= limits.max_connections:
                    accepted.close()
                    continue
                nursery.start_soon(_serve_socket, routes, accepted, limits, report, stopping)


async def _accept(listener: trio.socket.SocketType) -> trio.socket.SocketType | None:
    try:
        accepted, _ = await listener.accept()
    except OSError as error:
        if error.errno not in _CAPACITY_ERRORS:
            raise
        _log.warning("cannot accept: error=%r", str(error))
        await trio.sleep(_CAPACITY_PAUSE)
        return None
    return accepted


async def _serve_socket(
    routes: Mapping[str, Handler],
    accepted: trio.socket.SocketType,
    limits: ServerLimits,
    report: Report,
    stopping: trio.Event,
) -> None:
    with accepted:
        stream = trio.SocketStream(accepted)
        await Connection(routes, stream, limits, report, peer=_peer(accepted), stopping=stopping).run()


def _peer(accepted: trio.socket.SocketType) -> Peer:
    pid, uid, gid = _UCRED.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, gid)


def _routes(services: Collection[Service]) -> Mapping[str, Handler]:
    routes: dict[str, Handler] = {}
    for service in services:
        routes.update(service.__mapping__())
    return routes
