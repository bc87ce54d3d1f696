"""HTTP/1.1 requests to the status socket, without Trio and h11, for programs that must start quickly."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Final

from ...protocol.version import STATUS_HEADER, STATUS_VERSION, incompatibility
from ..io.silence import CHECK, QUESTION, UnreachableError, user_of, why_silent

#: Bytes of the largest answer that :func:`request` reads.
MAX_ANSWER: Final = 1024 * 1024
#: Bytes of the head of an answer.
_MAX_HEAD: Final = 64 * 1024
#: Seconds between two tries while the daemon's backlog is full, of which nothing tells the end.
_PAUSE: Final = 0.02
#: Bytes of a path that a ``sockaddr_un`` holds.
_MAX_PATH: Final = 107
_NOT_HTTP: Final = "the answer is not whole or not HTTP"
_NOT_WHOLE: Final = "the answer is not whole"


class NotHttpError(Exception):
    """The answer is not whole, too large, not HTTP, or of a daemon that cannot be asked; the text says which."""


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
        first, *lines = received.until(b"\r\n\r\n", _MAX_HEAD).split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not _is_number(words[1], 3):
            raise NotHttpError(_NOT_HTTP)
        self.status = int(words[1])
        self.headers = _headers(lines)
        if self.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise NotHttpError("the answer has a transfer encoding, and chunked alone is known here")
        #: The version of the status socket; None with a daemon that does not say it.
        self.version = self.headers.get(STATUS_HEADER.lower())
        if (why := incompatibility(self.version)) is not None:
            raise NotHttpError(why)

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
        length = self.headers.get("content-length", "")
        if "transfer-encoding" in self.headers:
            return self._chunks()
        if _is_number(length.encode(), 12):
            return self._received.exactly(int(length))
        return iter(self._received.some, b"")

    def _chunks(self) -> Iterator[bytes]:
        while size := self._size():
            yield from self._received.exactly(size)
            self._received.until(b"\r\n", 0)
        while self._received.until(b"\r\n", _MAX_HEAD):
            pass  # A trailer.

    def _size(self) -> int:
        try:
            return int(self._received.until(b"\r\n", 256).partition(b";")[0], 16)
        except ValueError:
            raise NotHttpError(_NOT_HTTP) from None

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
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: plugind\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            f"{STATUS_HEADER}: {STATUS_VERSION}\r\n\r\n"
        )
        # A server that refuses early may close before it has read everything; its answer has still arrived.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _limit(connection, deadline)
            connection.sendall(head.encode("ascii") + body)
        received = _Received(connection, path, deadline, patience)
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
    connection.settimeout(None if left == math.inf else left)


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    with contextlib.ExitStack() as opened:
        if len(os.fsencode(path)) > _MAX_PATH:
            directory = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            path = f"/proc/self/fd/{directory}/{os.path.basename(path)}"
        while True:
            _limit(connection, deadline)
            try:
                return connection.connect(path)
            except BlockingIOError:
                time.sleep(_PAUSE)


class _Received:
    """What has come from the daemon and is not read yet."""

    def __init__(self, connection: socket.socket, path: str, deadline: float, patience: float) -> None:
        self._connection = connection
        self._path = path
        #: The user of the process at the other end.
        self.uid = user_of(connection)
        self._there = bytearray()
        #: Until when all must be there, and how many seconds each part may take.
        self.deadline = deadline
        self.silence = math.inf
        #: After how many seconds without any part it is asked whether the daemon answers at all.
        self.patience = patience

    def _more(self) -> bool:
        """Wait for more; return whether there is any."""
        deadline = min(self.deadline, time.monotonic() + self.silence)
        while (piece := self._next(min(deadline, time.monotonic() + self.patience))) is None:
            if time.monotonic() >= deadline:
                raise SilentError(why_silent(self._connection))
            self._check()
        self._there += piece
        return bool(piece)

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

    def until(self, end: bytes, most: int) -> bytes:
        """Return what stands before ``end``, at most so many bytes, and drop both."""
        while (found := self._there.find(end)) < 0:
            if len(self._there) > most + len(end) or not self._more():
                raise NotHttpError(_NOT_HTTP)
        if found > most:
            raise NotHttpError(_NOT_HTTP)
        before = bytes(self._there[:found])
        del self._there[: found + len(end)]
        return before

    def some(self, most: int = 65536) -> bytes:
        """Return what is there, or comes next, at most so many bytes; nothing at the end."""
        if not self._there:
            self._more()
        piece = bytes(self._there[:most])
        del self._there[:most]
        return piece

    def exactly(self, length: int) -> Iterator[bytes]:
        """Yield so many bytes in pieces."""
        while length:
            piece = self.some(min(length, 65536))
            if not piece:
                raise NotHttpError(_NOT_WHOLE)
            length -= len(piece)
            yield piece


def _headers(lines: list[bytes]) -> Mapping[str, str]:
    found = {}
    for line in lines:
        name, _, text = line.partition(b":")
        found[name.decode("latin-1").lower()] = text.strip().decode("latin-1")
    return found


def _is_number(text: bytes, most: int) -> bool:
    return text.isdigit() and len(text) <= most
