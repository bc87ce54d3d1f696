"""Requests to the status socket on plain sockets, without Trio, for programs that must start quickly."""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import time
from collections.abc import Iterator
from typing import Final

from ..io.connecting import connect
from ..io.silence import CHECK, QUESTION, UnreachableError, user_of, why_silent
from .asking import Asking, NotHttpError

__all__ = ["NotHttpError"]  # what is defined elsewhere

#: Bytes of the largest answer that :func:`request` reads.
MAX_ANSWER: Final = 1024 * 1024
#: Seconds of the longest timeout that a socket takes: its milliseconds are a C int.
_LONGEST: Final = 2**31 // 1000
#: Seconds between two tries while the daemon's backlog is full, of which nothing tells the end.
_PAUSE: Final = 0.02


class SilentError(TimeoutError):
    """Nothing came in time; the text says what is known of the daemon."""

    #: In how many seconds nothing came, if they are others than those of the request.
    seconds: float | None = None


def no_answer(path: str, error: OSError | NotHttpError, seconds: float) -> UnreachableError:
    """Return why the daemon at ``path`` has not answered a request within ``seconds``."""
    match error:
        case SilentError():
            return UnreachableError(path, f"{error} within {error.seconds or seconds:g} s", errno.ETIMEDOUT)
        case TimeoutError():
            return UnreachableError(path, f"nothing came within {seconds:g} s", errno.ETIMEDOUT)
        case OSError():
            return UnreachableError(path, error.strerror or str(error), error.errno)
        case NotHttpError():
            return UnreachableError(path, str(error))


class Reply:
    """An answer whose body has still to be read."""

    def __init__(self, received: _Received) -> None:
        """Read the head.

        Raises:
          TimeoutError: if it does not come in time.
          OSError: if the daemon goes away.
          NotHttpError: if it is no head, or that of a daemon that cannot be asked.
        """
        self._received = received
        #: The user of the daemon.
        self.uid = received.uid
        while (head := received.asking.head()) is None:
            received.more()
        self.status, self.headers, self.version = head.status, head.headers, head.version

    def may_be_silent(self) -> None:
        """Limit no longer how long each part may take."""
        self._received.silence = math.inf

    def wait_for_ever(self) -> None:
        """Wait for the rest of the body for as long as the daemon keeps the connection."""
        self._received.deadline = self._received.silence = self._received.patience = math.inf

    def hang_up(self) -> None:
        """End the connection; another thread that waits for more has the end of the answer."""
        self._received.hang_up()

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
          TimeoutError: if nothing comes in time.
          OSError: if the daemon goes away.
          NotHttpError: if the body is not whole.
        """
        while (piece := self._received.asking.piece()) != b"":
            if piece is None:
                self._received.more()
            else:
                yield piece

    def body(self, most: int) -> bytes:
        """Return the whole body, of at most so many bytes.

        Raises:
          TimeoutError: if nothing comes in time.
          OSError: if the daemon goes away.
          NotHttpError: if the body is not whole, or too large.
        """
        whole = bytearray()
        for piece in self.pieces():
            whole += piece
            if len(whole) > most:
                raise NotHttpError(f"the answer is over {most} bytes")
        return bytes(whole)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body as they arrive, without their ends; raises as :meth:`pieces` does."""
        rest = b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines


@contextlib.contextmanager
def asked(
    path: str,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    seconds: float,
    silence: float | None = None,
    total: float = math.inf,
    patience: float = math.inf,
) -> Iterator[Reply]:
    """Send a request to the daemon whose status socket is at ``path``; the block reads the answer.

    All of it has ``seconds``. With ``silence``, only the head has, each later part may take that long, and all of it
    ``total``. After ``patience`` seconds without any part of the answer, and again after as many, the daemon is asked
    on another connection whether it answers at all.

    Raises:
      TimeoutError: if it takes longer.
      OSError: if the daemon cannot be reached, or goes away.
      NotHttpError: if the answer is of no use.
    """
    began = time.monotonic()
    deadline = began + min(seconds, total)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, deadline)
        asking = Asking(method, target, body)
        # A server that refuses early may close before it has read everything; its answer has still arrived.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _limit(connection, deadline)
            connection.sendall(asking.sent)
        received = _Received(connection, asking, path, deadline, patience)
        reply = Reply(received)
        if silence is not None:
            received.silence, received.deadline = silence, began + total
        yield reply


def request(path: str, method: str, target: str, body: bytes, *, seconds: float) -> tuple[int, bytes]:
    """Send a request to the daemon whose status socket is at ``path``; return the status and the body of the answer.

    Raises:
      TimeoutError: if all of this takes longer than ``seconds``.
      OSError: if the daemon cannot be reached, or goes away.
      NotHttpError: if the answer is of no use.
    """
    with asked(path, method, target, body, seconds=seconds) as reply:
        return reply.status, reply.body(MAX_ANSWER)


def _limit(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise SilentError("nothing came")
    connection.settimeout(None if left == math.inf else min(left, _LONGEST))


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    while True:
        _limit(connection, deadline)
        try:
            return connect(connection, path)
        except BlockingIOError:
            time.sleep(_PAUSE)


class _Received:
    """The connection on which the answer comes."""

    def __init__(self, connection: socket.socket, asking: Asking, path: str, deadline: float, patience: float) -> None:
        self.asking = asking
        self._connection = connection
        self._path = path
        #: The user of the process at the other end.
        self.uid = user_of(connection)
        #: Until when all must be there, and how many seconds each part may take.
        self.deadline = deadline
        self.silence = math.inf
        #: After how many seconds without any part it is asked whether the daemon answers at all.
        self.patience = patience

    def more(self) -> None:
        """Wait for more of the answer, or for its end."""
        deadline = min(self.deadline, time.monotonic() + self.silence)
        while (piece := self._next(min(deadline, time.monotonic() + self.patience))) is None:
            if time.monotonic() >= deadline:
                raise SilentError(why_silent(self._connection))
            self._check()
        self.asking.receive(piece)

    def _check(self) -> None:
        """Ask whether the daemon answers at all."""
        try:
            with asked(self._path, *QUESTION, seconds=CHECK):
                return
        except SilentError as error:
            error.seconds = CHECK
            raise

    def _next(self, deadline: float) -> bytes | None:
        """Return what comes next, nothing at the end; None if that is not there in time."""
        try:
            _limit(self._connection, deadline)
            return self._connection.recv(65536)
        except TimeoutError:
            return None

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # The daemon may have done so before.
            self._connection.shutdown(socket.SHUT_RDWR)
