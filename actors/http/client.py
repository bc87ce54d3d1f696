"""The client of the status socket, for Trio and asyncio: each HTTP/1.1 request has a connection of its own."""

from __future__ import annotations

import collections
import contextlib
import errno
import math
import socket
from collections.abc import AsyncIterator, Iterator

import anyio
import attrs

from ..io.connecting import connect, stream_socket
from ..io.silence import CHECK, QUESTION, UnreachableError, user_of, why_silent
from .asking import Asking, Head, NotHttpError

__all__ = ["UnreachableError"]  # what is defined elsewhere

#: Bytes of the largest answer that is kept in memory.
MAX_ANSWER = 256 * 1024 * 1024


@attrs.define
class Reply:
    """An answer whose body has still to be read."""

    head: Head
    #: Seconds for the next part of the body to come.
    timeout: float
    _exchange: _Exchange

    @property
    def status(self) -> int:
        """The code of the answer."""
        return self.head.status

    @property
    def version(self) -> str | None:
        """The version of the status socket; None with a daemon that does not say it."""
        return self.head.version

    @property
    def uid(self) -> int:
        """The user of the daemon."""
        return self._exchange.uid

    async def receive(self) -> bytes:
        """Wait for the next part of the body and return it; empty at the end.

        Raises:
          UnreachableError: if the connection ends within the body, or nothing comes in time.
        """
        with self._exchange.limited(self.timeout):
            return await self._exchange.piece()

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
          UnreachableError: if the connection ends within the body, nothing comes in time, or the body is over
            ``MAX_ANSWER`` bytes.
        """
        whole = bytearray()
        while piece := await self.receive():
            whole += piece
            if len(whole) > MAX_ANSWER:
                raise UnreachableError(self._exchange.path, f"the answer is over {MAX_ANSWER} bytes")
        return bytes(whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, as it arrives; a caller that stops early must close the generator."""
        while piece := await self.receive():
            yield piece

    def wait_for_ever(self) -> None:
        """Wait for the rest of the body for as long as the daemon keeps the connection."""
        self.timeout = self._exchange.patience = math.inf

    def hang_up(self) -> None:
        """End the connection; another task or thread that waits for more has the end of the answer."""
        self._exchange.hang_up()

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
async def ask(
    path: str,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    timeout: float = math.inf,
    patience: float = math.inf,
) -> AsyncIterator[Reply]:
    """Send one request to the daemon whose status socket is at ``path``.

    ``timeout`` is in seconds, for the head of the answer and then for each part of its body. A long list may take
    longer, for as long as it goes on. After ``patience`` seconds without any part of the answer, and again after as
    many, the daemon is asked on another connection whether it answers at all.

    Raises:
      UnreachableError: if there is no answer in time, none in HTTP, or one of a daemon that cannot be asked.
    """
    exchange = _Exchange(path, Asking(method, target, body), patience)
    try:
        with exchange.limited(timeout):
            await exchange.connect()
            await exchange.send()
            head = await exchange.head()
        yield Reply(head, timeout, exchange)
    finally:
        exchange.close()


class _Exchange:
    """A request and its answer, on a connection of their own."""

    def __init__(self, path: str, asking: Asking, patience: float) -> None:
        self.path = path
        self._asking = asking
        self.patience = patience
        self._socket = stream_socket()

    @property
    def uid(self) -> int:
        return user_of(self._socket)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # The daemon may have done so before.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        anyio.notify_closing(self._socket)
        self._socket.close()

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Give the block so many seconds.

        Raises:
          UnreachableError: if they have passed.
        """
        with anyio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise UnreachableError(self.path, f"{why_silent(self._socket)} within {seconds:g} s", errno.ETIMEDOUT)

    async def connect(self) -> None:
        while True:
            try:
                connect(self._socket, self.path)
                return
            except BlockingIOError:
                # The backlog is full. There is no event for the moment when it has room again.
                await anyio.sleep(0.02)
            except OSError as error:
                raise UnreachableError(self.path, error.strerror or str(error), error.errno) from error

    async def send(self) -> None:
        unsent = memoryview(self._asking.sent)
        # A server that refuses early may close before it has read everything; its answer has still arrived.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while unsent:
                await anyio.wait_writable(self._socket)
                unsent = unsent[self._socket.send(unsent) :]

    async def head(self) -> Head:
        with self._unreachable():
            while (head := self._asking.head()) is None:
                self._asking.receive(await self._receive())
            return head

    async def piece(self) -> bytes:
        with self._unreachable():
            while (piece := self._asking.piece()) is None:
                self._asking.receive(await self._receive())
            return piece

    @contextlib.contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnreachableError(self.path, "the daemon left", errno.ECONNRESET) from error
        except NotHttpError as error:
            raise UnreachableError(self.path, str(error)) from error

    async def _receive(self) -> bytes:
        while True:
            with anyio.move_on_after(self.patience):
                await anyio.wait_readable(self._socket)
                return self._socket.recv(65536)
            async with ask(self.path, *QUESTION, timeout=CHECK):
                pass  # It answers.
