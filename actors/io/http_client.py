"""The client of the status socket: each HTTP/1.1 request has a connection of its own.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
import contextlib
import errno
from collections.abc import AsyncIterator

import attrs
import h11
import trio

from .unix_socket import connect, stream_socket

#: Bytes of the largest answer that is kept in memory.
MAX_ANSWER = 256 * 1024 * 1024


class UnreachableError(Exception):
    """There is no daemon at the status socket; ``code`` is the errno, None if the answer was not HTTP."""

    def __init__(self, path: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.code = code


@attrs.define
class Reply:
    """An answer whose body has still to be read."""

    status: int
    _stream: trio.SocketStream
    _connection: h11.Connection
    _path: str

    async def receive(self) -> bytes:
        """Wait for the next part of the body and return it; empty at the end.

        Raises:
          UnreachableError: if the connection ends within the body.
        """
        event = await _next_event(self._stream, self._connection, self._path)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
          UnreachableError: if the connection ends within the body, or the body is over ``MAX_ANSWER`` bytes.
        """
        whole = bytearray()
        while piece := await self.receive():
            whole += piece
            if len(whole) > MAX_ANSWER:
                raise UnreachableError(self._path, f"the answer is over {MAX_ANSWER} bytes")
        return bytes(whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, as it arrives; a caller that stops early must close the generator."""
        while piece := await self.receive():
            yield piece

    def lines(self) -> Lines:
        """Return an iterator over the lines of the body, without their ends."""
        return Lines(self)


@attrs.define
class Lines:
    """The lines of a body as they arrive. Unlike a generator, it need not be closed by a caller that stops early."""

    _reply: Reply
    _whole: collections.deque[bytes] = attrs.field(factory=collections.deque)
    _rest: bytes = b""

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> bytes:
        while not self._whole:
            piece = await self._reply.receive()
            if not piece:
                raise StopAsyncIteration
            *whole, self._rest = (self._rest + piece).split(b"\n")
            self._whole.extend(whole)
        return self._whole.popleft()


@contextlib.asynccontextmanager
async def ask(path: str, method: str, target: str, body: bytes = b"") -> AsyncIterator[Reply]:
    """Send one request to the daemon whose status socket is at ``path``. The caller sets the deadline.

    Raises:
      UnreachableError: if there is no answer, or none in HTTP.
    """
    stream = trio.SocketStream(await _connect(path))
    try:
        connection = h11.Connection(h11.CLIENT)
        headers = [("Host", "plugind"), ("Connection", "close"), ("Content-Length", str(len(body)))]
        asked = connection.send(h11.Request(method=method, target=target, headers=headers)) or b""
        asked += connection.send(h11.Data(data=body)) or b""
        asked += connection.send(h11.EndOfMessage()) or b""
        # A server that refuses early may close before it has read everything; its answer has come all the same.
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(asked)
        head = await _next_event(stream, connection, path)
        if not isinstance(head, h11.Response):
            raise UnreachableError(path, "the answer is not HTTP")
        yield Reply(head.status_code, stream, connection, path)
    finally:
        await trio.aclose_forcefully(stream)


async def _connect(path: str) -> trio.socket.SocketType:
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(stream_socket())
        while True:
            try:
                connect(connection, path)
                break
            except BlockingIOError:
                # The backlog is full. There is no event to wait for when it no longer is.
                await trio.sleep(0.02)
            except OSError as error:
                raise UnreachableError(path, error.strerror or str(error), error.errno) from error
        undo.pop_all()
        return trio.socket.from_stdlib_socket(connection)


async def _next_event(
    stream: trio.SocketStream, connection: h11.Connection, path: str
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    try:
        while True:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            connection.receive_data(await stream.receive_some(65536))
    except trio.BrokenResourceError as error:
        raise UnreachableError(path, "the daemon left", errno.ECONNRESET) from error
    except h11.RemoteProtocolError as error:
        raise UnreachableError(path, f"the answer is not whole or not HTTP: {error}") from error
