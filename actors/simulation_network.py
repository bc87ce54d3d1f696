"""Unix sockets in memory: the dialling port of a simulated node.

A listener belongs to an inode of a :class:`~plugind.actors.simulation_directory.MemoryDirectory`, not to a path, as in
the kernel: a renamed socket can still be dialled, and one that was unlinked and made again is another. Connections are
those of ``plugind.actors.simulation_streams``. Errors and waits are those of ``plugind.actors.io.dialling``.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import attrs
import trio

from plugind.actors.io.channel import Channel
from plugind.actors.simulation_directory import MemoryDirectory
from plugind.actors.simulation_streams import ClientEnd, Connection, ServerEnd, connection
from plugind.protocol.discovery import Kind
from plugind.protocol.wire_errors import DialError, DialFailure, Peer

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05


class Accepting(enum.Enum):
    """What becomes of those who connect to a socket."""

    #: They are served.
    SERVES = "serves"
    #: The connection stands, and no byte ever comes back (fault 32).
    SILENT = "silent"
    #: The connection is closed as soon as it stands (fault 33).
    CLOSES = "closes"
    #: The backlog is full: nobody gets in, whoever dials waits (fault 30).
    BACKLOG_FULL = "backlog full"
    #: The permissions of the socket forbid it (fault 29).
    DENIED = "denied"


#: Serves one connection until it ends.
Serve = Callable[[ServerEnd], Awaitable[object]]


@attrs.define(eq=False)
class Listener:
    """Somebody who listens on an inode. :meth:`close` is the end of that process."""

    serve: Serve
    peer: Peer
    accepting: Accepting = Accepting.SERVES
    seconds_per_byte: float = 0.0
    #: How many connections there have been.
    accepted: int = 0
    #: The process that serves: cancelled when it dies.
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    #: Those that are open now, in the order they came.
    connections: list[Connection] = attrs.Factory(list)
    _arrivals: trio.MemorySendChannel[Connection] = attrs.field(init=False)
    _waiting: trio.MemoryReceiveChannel[Connection] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._arrivals, self._waiting = trio.open_memory_channel[Connection](1024)

    async def run(self) -> None:
        """Serve those who connect until the process dies."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                async for accepted in self._waiting:
                    nursery.start_soon(self._serve_one, accepted)

    async def _serve_one(self, accepted: Connection) -> None:
        try:
            await self.serve(accepted.server)
        finally:
            accepted.server.close()
            if accepted in self.connections:
                self.connections.remove(accepted)

    def connect(self) -> Connection:
        """A client got in."""
        made = connection()
        made.server.seconds_per_byte = self.seconds_per_byte
        self.accepted += 1
        self.connections.append(made)
        if self.accepting is Accepting.CLOSES:
            self.connections.remove(made)
            made.server.close()
        elif self.accepting is Accepting.SERVES:
            self._arrivals.send_nowait(made)
        return made

    def reset(self) -> None:
        """Break every connection that is open."""
        connections, self.connections = self.connections, []
        for broken in connections:
            broken.reset()

    def close(self) -> None:
        """The process is gone: its connections end as the kernel ends them, without a word of HTTP/2."""
        connections, self.connections = self.connections, []
        for ended in connections:
            ended.server.close()
        self.scope.cancel()
        self._arrivals.close()


class MemoryNetwork:
    """Who listens on which inode of ``directory``."""

    def __init__(self, directory: MemoryDirectory) -> None:
        self._directory = directory
        self._listeners: dict[Hashable, Listener] = {}
        #: Tries to connect so far, refused ones included, with their virtual times.
        self.dials: list[tuple[float, str]] = []
        #: This many more connections fail for want of descriptors (fault 46).
        self.exhausted = 0
        #: The client's ends of all connections, with their paths, to see that none is left open.
        self.opened: list[tuple[str, ClientEnd]] = []

    def listen(self, path: str, listener: Listener) -> None:
        """Listen on the socket at ``path``. Raises FileNotFoundError if there is none."""
        self._listeners[self._directory.node(path)] = listener

    def end(self, listener: Listener) -> None:
        """Close ``listener``, if it is there still."""
        listener.close()
        for node, other in tuple(self._listeners.items()):
            if other is listener:
                del self._listeners[node]

    async def dial(self, path: str, *, timeout: float, refused_grace: float = 1.0) -> Channel:
        """Connect as :func:`plugind.actors.io.dialling.dial` does.

        Raises:
          DialError: of the same kinds, after the same waits.
        """
        began = trio.current_time()
        pause = _FIRST_PAUSE
        while True:
            self.dials.append((trio.current_time(), path))
            found = self._try(path)
            if isinstance(found, Listener):
                made = found.connect()
                self.opened.append((path, made.client))
                return _channel(made, found.peer)
            left, over = _patience(found, path, began, timeout, refused_grace)
            if left <= 0:
                raise over
            await trio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _try(self, path: str) -> Listener | int:
        """The listener that lets one in, or the errno of connect()."""
        if self.exhausted:
            self.exhausted -= 1
            return errno.EMFILE
        try:
            node = self._directory.node(path)
        except FileNotFoundError:
            return errno.ENOENT
        listener = self._listeners.get(node)
        if node.kind is not Kind.SOCKET or listener is None:
            return errno.ECONNREFUSED
        if listener.accepting is Accepting.BACKLOG_FULL:
            return errno.EAGAIN
        return errno.EACCES if listener.accepting is Accepting.DENIED else listener


def _channel(made: Connection, peer: Peer) -> Channel:
    return Channel(made.client, peer=peer)


_KINDS: Final = {
    errno.ENOENT: DialFailure.GONE,
    errno.EACCES: DialFailure.DENIED,
    errno.EMFILE: DialFailure.EXHAUSTED,
}


def _patience(number: int, path: str, began: float, timeout: float, refused_grace: float) -> tuple[float, DialError]:
    """For how many seconds more to try again after this errno, and the error when they are over."""
    now = trio.current_time()
    match number:
        case errno.EAGAIN:
            left = began + timeout - now
            return left, DialError(DialFailure.TIMED_OUT, path, f"the backlog of {path!r} was full for {timeout:g} s")
        case errno.ECONNREFUSED:
            left = began + min(refused_grace, timeout) - now
            return left, DialError(DialFailure.REFUSED, path, f"nobody listens on {path!r}")
        case _:
            return 0.0, DialError(_KINDS[number], path, f"cannot connect to {path!r}: {os.strerror(number)}")
