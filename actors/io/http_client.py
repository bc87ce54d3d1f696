"""The asking side of the status socket: one HTTP/1.1 request on a connection of its own."""

from __future__ import annotations

import collections
import contextlib
import errno
from collections.abc import AsyncIterator

import attrs
import h11
import trio

from .unix_socket import connect, stream_socket

#: Bytes of a whole answer that is kept in memory.
MAX_ANSWER = 256 * 1024 * 1024


class UnreachableError(Exception):
    """Nobody answers at the status socket; ``code`` is the errno, None where the answer was no HTTP."""

    def __init__(self, path: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.code = code


@attrs.define
class Reply:
    """An answer whose body is still to be read."""

    status: int
    _stream: trio.SocketStream
    _connection: h11.Connection
    _path: str

    async def receive(self) -> bytes:
        """Return what has come of the body; empty at its end.

        Raises:
          UnreachableError: if the daemon leaves in the middle.
        """
        event = await _next_event(self._stream, self._connection, self._path)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def body(self) -> bytes:
        """Return the whole body."""
        whole = bytearray()
        while piece := await self.receive():
            whole += piece
            if len(whole) > MAX_ANSWER:
                raise UnreachableError(self._path, f"the answer is over {MAX_ANSWER} bytes")
        return bytes(whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, as it arrives; to be closed when it is left early."""
        while piece := await self.receive():
            yield piece

    def lines(self) -> Lines:
        """Return the body line by line, without the line ends."""
        return Lines(self)


@attrs.define
class Lines:
    """The lines of a body as they arrive. No generator, which would have to be closed when it is left early."""

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
    """Ask the daemon whose status socket is at ``path``; the deadline is the caller's.

    Raises:
      UnreachableError: if nobody answers, or something that speaks no HTTP.
    """
    stream = trio.SocketStream(await _connect(path))
    try:
        connection = h11.Connection(h11.CLIENT)
        headers = [("Host", "plugind"), ("Connection", "close"), ("Content-Length", str(len(body)))]
        asked = connection.send(h11.Request(method=method, target=target, headers=headers)) or b""
        asked += connection.send(h11.Data(data=body)) or b""
        asked += connection.send(h11.EndOfMessage()) or b""
        # A server that refuses early may have left before it took all; its answer is there all the same.
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
