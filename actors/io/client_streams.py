"""The connections of clients to the status socket, and which of these clients have left."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import attrs
import trio

#: Bytes that are read at once.
_PIECE = 65536


class AcceptedStream(trio.abc.Stream):
    """The connection of a client, for one task. Its socket is non-blocking.

    ``trio.SocketStream`` sets options that only TCP has, and guards against a second task: for a request that is
    answered at once it costs three times as much.
    """

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self.socket = connection
        self._descriptor = connection.fileno()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what is there, once there is anything; nothing at the end.

        Raises:
          trio.BrokenResourceError: if the client has left in the midst of something.
        """
        while True:
            try:
                return os.read(self._descriptor, max_bytes or _PIECE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._descriptor)
            except OSError as error:
                raise trio.BrokenResourceError(f"the client left: {error}") from error

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """Send as much as there is room for; return how much that is.

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
        """Send everything; a client that reads too slowly is waited for.

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
        """End the connection at once; nobody waits for it."""
        self._descriptor = -1
        self.socket.close()

    async def aclose(self) -> None:
        """End the connection."""
        self.close()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class _Awaited:
    stream: AcceptedStream
    left: Callable[[], object]
    #: How many bytes are read at most before the client counts as one that has left.
    most: int


class ClientWatch:
    """Notices that clients leave while their answers are made: all of them in one epoll, on which one task waits."""

    def __init__(self) -> None:
        #: Made for the first client, which has a descriptor for certain.
        self._epoll: select.epoll | None = None
        self._is_made = trio.Event()
        #: Those that are watched, by descriptor.
        self._awaited: dict[int, _Awaited] = {}

    def add(self, stream: AcceptedStream, most: int, left: Callable[[], object]) -> None:
        """Call ``left`` once the client has closed the connection, or has sent more than ``most`` bytes.

        One that has only closed its own half of it still waits for the answer.

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
        """Watch a client no more."""
        descriptor = stream.socket.fileno()
        if self._awaited.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Look at those of which the kernel has something to tell, until cancelled."""
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
            epoll.modify(descriptor, 0)  # The end of the other half is told in any case.
        elif client.most < 0:
            self._end(client)

    def _end(self, client: _Awaited) -> None:
        self.remove(client.stream)
        client.left()

    def close(self) -> None:
        """Close the epoll."""
        if self._epoll is not None:
            self._epoll.close()
