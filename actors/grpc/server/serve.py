"""A gRPC server on Trio: serves grpclib's generated service bases over unix sockets and over any Trio stream.

The fake plugin, the example plugin and the simulated plugins use it. It is based on h2, because speed matters less
here, and adds frame budgets, a deadline for every wait, and handlers whose failures concern only their own call. Each
listener has a nursery, and each connection has a nursery within it.

* :func:`serve_unix` binds a path, serves until it is cancelled or stopped, and removes its own socket.
* :func:`serve_stream` serves one connection, for instance one end of ``trio.testing.memory_stream_pair()``. Lockstep
  streams deadlock, since both sides of HTTP/2 begin by sending.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Protocol

import trio
from grpclib.const import Handler

from ...io.unix_socket import UnixListener, listen, peer_credentials
from .budget import ServerLimits
from .connection import ServerConnection
from .reports import ConnectionEnded, ConnectionEnding, EndReason, HandlerFailed, Peer, Report
from .stream import ServerStream

__all__ = [
    "ConnectionEnded",
    "ConnectionEnding",
    "EndReason",
    "HandlerFailed",
    "Peer",
    "Report",
    "ServerLimits",
    "ServerStream",
    "Service",
    "log_report",
    "serve_listener",
    "serve_stream",
    "serve_unix",
]

_log = logging.getLogger("plugind.serving")
#: Endings that are only logged at the level DEBUG.
_USUAL = frozenset({EndReason.PEER_CLOSED, EndReason.STOPPED, EndReason.IDLE})
DEFAULT_LIMITS = ServerLimits()


class Service(Protocol):
    """The interface of grpclib's generated ``...Base`` classes: a mapping of paths to handlers."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return the handler of each method by path, with its cardinality and message types."""


def log_report(what: HandlerFailed | ConnectionEnded) -> None:
    """Log a report; the default of every ``report`` parameter."""
    match what:
        case HandlerFailed(method, error):
            _log.error("handler failed: method=%s", method, exc_info=error)
        case ConnectionEnded(peer, ConnectionEnding(reason, detail), error):
            level = logging.DEBUG if reason in _USUAL else logging.WARNING
            text = "connection ended: reason=%r detail=%r peer_pid=%s"
            pid = None if peer.credentials is None else peer.credentials.pid
            _log.log(level, text, reason.value, detail, pid, exc_info=error)


def _log_exhausted(error: OSError) -> None:
    _log.warning("cannot accept: error=%r", str(error))


async def serve_stream(
    services: Collection[Service],
    stream: trio.abc.Stream,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    report: Report = log_report,
    peer: Peer | None = None,
    stopping: trio.Event | None = None,
) -> ConnectionEnding:
    """Serve one connection until it ends, close ``stream``, and return how it ended.

    Setting ``stopping`` ends it gracefully: GOAWAY is sent, and the calls in progress have ``limits.grace`` to end.
    Nothing that the client does raises.
    """
    connection = ServerConnection(
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

    The socket is removed at the end if it is still ours. A cancellation stops at once, with a GOAWAY to each client.

    Raises:
      OSError: if the path cannot be bound; see :func:`~plugind.actors.io.unix_socket.listen`.
    """
    listener = listen(path, mode=mode, backlog=backlog, remove_stale=remove_stale)
    await serve_listener(services, listener, limits=limits, report=report, stopping=stopping, task_status=task_status)


async def serve_listener(
    services: Collection[Service],
    listener: UnixListener,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    report: Report = log_report,
    stopping: trio.Event | None = None,
    keep_open: bool = False,
    on_exhausted: Callable[[OSError], None] = _log_exhausted,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the connections of ``listener`` as :func:`serve_unix` does, and close it at the end.

    With ``keep_open`` it stays open, so that it can be served again; clients wait in its backlog meanwhile.
    ``on_exhausted`` is called with each error of accept() while there are no descriptors left.
    """
    stopping = trio.Event() if stopping is None else stopping
    async with trio.open_nursery() as nursery:
        with nullcontext() if keep_open else listener:
            accepting = trio.CancelScope()
            routes = _routes(services)
            nursery.start_soon(_accept_until, accepting, routes, listener, limits, report, stopping, on_exhausted)
            task_status.started()
            await stopping.wait()
            accepting.cancel()


async def _accept_until(
    scope: trio.CancelScope,
    routes: Mapping[str, Handler],
    listener: UnixListener,
    limits: ServerLimits,
    report: Report,
    stopping: trio.Event,
    on_exhausted: Callable[[OSError], None],
) -> None:
    by_process: collections.Counter[int] = collections.Counter()
    async with trio.open_nursery() as nursery:
        with scope:
            while True:
                accepted = await listener.accept(on_exhausted)
                if len(nursery.child_tasks) >= limits.max_connections:
                    _close_above(accepted, limits.max_connections, report)
                    continue
                nursery.start_soon(_serve_socket, routes, accepted, limits, report, stopping, by_process)


def _close_above(accepted: trio.socket.SocketType, limit: int, report: Report) -> None:
    """Close a connection beyond the limit."""
    with accepted:
        try:
            peer = Peer(peer_credentials(accepted))
        except OSError:
            peer = Peer()  # The client has left already.
    report(ConnectionEnded(peer, ConnectionEnding(EndReason.TOO_MANY, f"{limit} are open")))


async def _serve_socket(
    routes: Mapping[str, Handler],
    accepted: trio.socket.SocketType,
    limits: ServerLimits,
    report: Report,
    stopping: trio.Event,
    by_process: collections.Counter[int],
) -> None:
    with accepted:
        stream = trio.SocketStream(accepted)
        try:
            peer = Peer(peer_credentials(accepted))
        except OSError as error:
            _log.warning("a connection is closed, the kernel does not tell whose it is: error=%r", str(error))
            return
        with _counted(by_process, peer, limits.max_connections_per_process) as may_be_served:
            if may_be_served:
                await ServerConnection(routes, stream, limits, report, peer=peer, stopping=stopping).run()
                return
        most = limits.max_connections_per_process
        report(ConnectionEnded(peer, ConnectionEnding(EndReason.TOO_MANY, f"{most} of this process are open")))


@contextmanager
def _counted(by_process: collections.Counter[int], peer: Peer, limit: int | None) -> Iterator[bool]:
    """Count a connection of its process; yield whether the process is within its limit."""
    pid = 0 if peer.credentials is None else peer.credentials.pid
    if limit is None or not pid:
        yield True
        return
    by_process[pid] += 1
    try:
        yield by_process[pid] <= limit
    finally:
        by_process[pid] -= 1
        if not by_process[pid]:
            del by_process[pid]


def _routes(services: Collection[Service]) -> Mapping[str, Handler]:
    routes: dict[str, Handler] = {}
    for service in services:
        routes.update(service.__mapping__())
    return routes
