"""The client of the status socket: each HTTP/1.1 request has a connection of its own."""

from __future__ import annotations

import errno
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

from ..io.connecting import connect, stream_socket
from ..io.silence import CHECK, QUESTION, UnreachableError, user_of, why_silent
from .asking import Asking, NotHttpError
from .backends import Backend

__all__ = ["UnreachableError"]  # what is defined elsewhere

#: Bytes of the largest answer that is kept in memory.
MAX_ANSWER: Final = 256 * 1024 * 1024
#: Seconds between two tries while the daemon's backlog is full, of which nothing tells the end.
_PAUSE: Final = 0.02


class Reply:
    """An answer whose body has still to be read; iterating it yields the lines of the body, without their ends.

    Each wait raises the error of :func:`ask`.
    """

    status: int
    headers: dict[str, str]
    #: The version of the status socket; None with a daemon that does not say it.
    version: str | None
    #: The user of the daemon.
    uid: int

    def __init__(
        self,
        backend: Backend,
        path: str,
        asking: Asking,
        limits: tuple[float, float, float],
        error: Callable[[str, str, int | None], Exception],
    ) -> None:
        self._backend = backend
        self._path = path
        self._asking = asking
        #: Seconds for each part of the answer, and for all of it; and after how many without any part it is asked
        #: whether the daemon answers at all.
        self._timeout, self._total, self._patience = limits
        self._end = backend.now() + self._total
        self._error = error
        self._connection = stream_socket()
        self._is_over = False
        self._lines: deque[bytes] = deque()
        #: The beginning of the next line.
        self._rest = b""

    async def begin(self) -> None:
        """Send the request, and wait for the head of the answer."""
        until = self._until()
        try:
            while not self._connected():
                if self._backend.now() >= until:
                    raise self._silence()
                await self._backend.sleep(_PAUSE)
            self.uid = user_of(self._connection)
            # A server that refuses early may close before it has read everything; its answer has still arrived.
            with suppress(BrokenPipeError, ConnectionResetError):
                if not await self._backend.send(self._connection, self._asking.sent, until):
                    raise self._silence()
            while (head := self._asking.head()) is None:
                await self._receive(until)
        except (OSError, NotHttpError) as error:
            raise self._unreachable(error) from error
        self.status, self.headers, self.version = head

    async def piece(self) -> bytes:
        """Wait for the next part of the body and return it; nothing at the end."""
        until = self._until()
        try:
            while not self._is_over:
                if (piece := self._asking.piece()) is not None:
                    return piece
                await self._receive(until)
        except (OSError, NotHttpError) as error:
            if not self._is_over:
                raise self._unreachable(error) from error
        return b""

    async def body(self, most: int = MAX_ANSWER) -> bytes:
        """Return the whole body; one of more than ``most`` bytes is an error."""
        whole = bytearray()
        while piece := await self.piece():
            whole += piece
            if len(whole) > most:
                raise self._error(self._path, f"the answer is over {most} bytes", None)
        return bytes(whole)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._lines and (piece := await self.piece()):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines.extend(lines)
        if self._is_over or not self._lines:
            raise StopAsyncIteration
        return self._lines.popleft()

    def may_be_silent(self, seconds: float = math.inf) -> None:
        """Let each further part take so long."""
        self._timeout = seconds

    def wait_for_ever(self) -> None:
        """Wait for the rest of the body for as long as the daemon keeps the connection."""
        self._timeout = self._patience = self._end = math.inf

    def hang_up(self) -> None:
        """End the answer, also for another task or thread that waits for more of it."""
        self._is_over = True
        with suppress(OSError):  # The daemon may have done so before.
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and close the connection."""
        self.hang_up()
        self._backend.close(self._connection)

    def _until(self) -> float:
        return min(self._backend.now() + self._timeout, self._end)

    def _connected(self) -> bool:
        try:
            connect(self._connection, self._path)
        except BlockingIOError:
            return False
        return True

    async def _receive(self, until: float) -> None:
        """Wait for more of the answer, or for its end."""
        while True:
            patient = min(until, self._backend.now() + self._patience)
            if (received := await self._backend.receive(self._connection, patient)) is not None:
                return self._asking.receive(received)
            if self._backend.now() >= until:
                raise self._silence()
            async with ask(self._backend, self._path, *QUESTION, timeout=CHECK, error=self._error):
                pass  # It answers.

    def _silence(self) -> TimeoutError:
        why = f"{why_silent(self._connection)} within {min(self._timeout, self._total):g} s"
        return TimeoutError(errno.ETIMEDOUT, why)

    def _unreachable(self, error: OSError | NotHttpError) -> Exception:
        if isinstance(error, NotHttpError):
            return self._error(self._path, str(error), None)
        return self._error(self._path, error.strerror or str(error), error.errno)


@asynccontextmanager
async def ask(
    backend: Backend,
    path: str,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    timeout: float = math.inf,
    total: float = math.inf,
    patience: float = math.inf,
    error: Callable[[str, str, int | None], Exception] = UnreachableError,
) -> AsyncIterator[Reply]:
    """Send one request to the daemon whose status socket is at ``path``; the block reads the answer.

    The head of the answer has ``timeout`` seconds, and then each part of its body, so a long list may take longer, for
    as long as it goes on. All of it has ``total``. After ``patience`` seconds without any part of the answer, and again
    after as many, the daemon is asked on another connection whether it answers at all.

    Raises:
      UnreachableError: if there is no answer in time, none in HTTP, or one of a daemon that cannot be asked. ``error``
        makes another one, of the path, the reason and the errno.
    """
    reply = Reply(backend, path, Asking(method, target, body), (timeout, total, patience), error)
    try:
        await reply.begin()
        yield reply
    finally:
        reply.close()
