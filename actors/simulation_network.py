"""Unix sockets in memory: the dialling port of a simulated node.

A listener belongs to an inode of a :class:`~plugind.actors.simulation_directory.MemoryDirectory`, not to a path, as in
the kernel: a renamed socket can still be dialled, and one that was unlinked and made again is another. Connections are
Trio's memory streams, so that what travels on them is the real wire. Errors and waits are those of
``plugind.actors.io.dialling``.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import attrs
import trio
import trio.testing

from plugind.actors.io.channel import Channel
from plugind.actors.io.transport import StreamTransport
from plugind.actors.simulation_directory import MemoryDirectory
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


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of a connection in memory. ``seconds_per_byte`` makes what this end sends arrive byte by byte."""

    def __init__(self, send: trio.testing.MemorySendStream, receive: trio.testing.MemoryReceiveStream) -> None:
        self._send = send
        self._receive = receive
        self.seconds_per_byte = 0.0
        self.was_reset = False
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See :class:`trio.abc.SendStream`."""
        self._check()
        if not self.seconds_per_byte:
            await self._send.send_all(data)
            return
        for byte in bytes(data):
            await trio.sleep(self.seconds_per_byte)
            self._check()
            await self._send.send_all(bytes((byte,)))

    async def wait_send_all_might_not_block(self) -> None:
        """See :class:`trio.abc.SendStream`."""
        await self._send.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """See :class:`trio.abc.HalfCloseableStream`."""
        await self._send.aclose()

    def half_close(self) -> None:
        """Send no more, and read on (fault 37)."""
        self._send.close()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        """See :class:`trio.abc.ReceiveStream`."""
        data = await self._receive.receive_some(max_bytes)
        self._check()
        return data

    def _check(self) -> None:
        if self.was_reset:
            raise trio.BrokenResourceError("Connection reset by peer")

    def close(self) -> None:
        """Close at once."""
        self.closed = True
        self._send.close()
        self._receive.close()

    async def aclose(self) -> None:
        """See :class:`trio.abc.AsyncResource`."""
        self.close()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Connection:
    """Both ends of one connection."""

    client: MemoryStream
    server: MemoryStream

    def reset(self) -> None:
        """Break it: both ends learn that it was reset, whatever was on its way is lost."""
        for end in (self.client, self.server):
            end.was_reset = True
        self.server.close()


def connection() -> Connection:
    """Return a new connection."""
    to_server, from_client = trio.testing.memory_stream_one_way_pair()
    to_client, from_server = trio.testing.memory_stream_one_way_pair()
    return Connection(MemoryStream(to_server, from_server), MemoryStream(to_client, from_client))


#: Serves one connection until it ends.
Serve = Callable[[MemoryStream], Awaitable[object]]


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
        self.opened: list[tuple[str, MemoryStream]] = []

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
    return Channel(StreamTransport(made.client), peer=peer)


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
