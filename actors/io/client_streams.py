"""The connections of clients to the status socket, and a watch for clients that leave."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import attrs
import trio

_PIECE = 65536


class AcceptedStream(trio.abc.Stream):
    """The connection of a client, for one task. Its socket is non-blocking.

    ``trio.SocketStream`` sets options of TCP and guards against a second task; for a request that is answered at once
    it costs three times as much.
    """

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self.socket = connection
        self._descriptor = connection.fileno()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for data and return it; empty at the end.

        Raises:
          trio.BrokenResourceError: if the client has left unexpectedly.
        """
        while True:
            try:
                return os.read(self._descriptor, max_bytes or _PIECE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._descriptor)
            except OSError as error:
                raise trio.BrokenResourceError(f"the client left: {error}") from error

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """Send as much as there is room for; return the number of bytes.

        Raises:
          trio.BrokenResourceError: if the client has left.
        """
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"the client left: {error}") from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything, and wait for a slow client.

        Raises:
          trio.BrokenResourceError: if the client has left.
        """
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while rest:
            sent = self.send_now(rest)
            rest = rest[sent:]
            if not sent:
                await trio.lowlevel.wait_writable(self._descriptor)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until there is room."""
        await trio.lowlevel.wait_writable(self._descriptor)

    def close(self) -> None:
        """Close the connection at once, without waiting."""
        self._descriptor = -1
        self.socket.close()

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class _Awaited:
    stream: AcceptedStream
    left: Callable[[], object]
    #: The most bytes that are read before the client counts as gone.
    most: int


class ClientWatch:
    """Notices that clients leave while their answers are made. One task waits for all of them, in one epoll."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._is_made = trio.Event()
        self._awaited: dict[int, _Awaited] = {}

    def add(self, stream: AcceptedStream, most: int, left: Callable[[], object]) -> None:
        """Call ``left`` when the client has closed the connection, or has sent more than ``most`` bytes.

        A client that has only closed its own half still waits for the answer.

        Raises:
          OSError: if the client cannot be watched.
        """
        if self._epoll is None:
            self._epoll = select.epoll()
            self._is_made.set()
        descriptor = stream.socket.fileno()
        self._epoll.register(descriptor, select.EPOLLIN)
        self._awaited[descriptor] = _Awaited(stream, left, most)

    def remove(self, stream: AcceptedStream) -> None:
        """Stop watching a client."""
        descriptor = stream.socket.fileno()
        if self._awaited.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Look at clients with events, until cancelled."""
        await self._is_made.wait()
        assert self._epoll is not None
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, events in self._epoll.poll(0):
                self._look(self._epoll, descriptor, events)

    def _look(self, epoll: select.epoll, descriptor: int, events: int) -> None:
        client = self._awaited[descriptor]
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._end(client)
            return
        piece = os.read(descriptor, _PIECE)
        client.most -= len(piece)
        if not piece:
            epoll.modify(descriptor, 0)  # The end of the other half is reported in any case.
        elif client.most < 0:
            self._end(client)

    def _end(self, client: _Awaited) -> None:
        self.remove(client.stream)
        client.left()

    def close(self) -> None:
        """Close the epoll."""
        if self._epoll is not None:
            self._epoll.close()
