"""One HTTP/1.1 request to the status socket, without Trio and h11, for programs that must start quickly.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Final

#: Bytes of the largest answer that is read.
MAX_ANSWER: Final = 1024 * 1024
#: Seconds between two tries while the daemon's backlog is full, of which nothing tells the end.
_PAUSE: Final = 0.02
#: Bytes of a path that a ``sockaddr_un`` holds.
_MAX_PATH: Final = 107


class NotHttpError(Exception):
    """The answer is not whole, too large, or not HTTP; the text says which."""


def request(path: str, method: str, target: str, body: bytes, *, seconds: float) -> tuple[int, bytes]:
    """Send a request to the daemon whose status socket is at ``path``; return the status and the body of the answer.

    Raises:
      TimeoutError: if all of this takes longer than ``seconds``.
      OSError: if the daemon cannot be reached, or goes away.
      NotHttpError: if the answer is of no use.
    """
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, deadline)
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: plugind\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        # A server that refuses early may close before it has read everything; its answer has still arrived.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _limit(connection, deadline)
            connection.sendall(head.encode("ascii") + body)
        return _parsed(_received(connection, deadline))


def _limit(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(left)


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


def _received(connection: socket.socket, deadline: float) -> bytes:
    """Return all that comes until the daemon closes the connection."""
    whole = bytearray()
    while True:
        _limit(connection, deadline)
        piece = connection.recv(65536)
        if not piece:
            return bytes(whole)
        whole += piece
        if len(whole) > MAX_ANSWER:
            raise NotHttpError(f"the answer is over {MAX_ANSWER} bytes")


def _parsed(answer: bytes) -> tuple[int, bytes]:
    head, ended, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if not ended or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not _is_number(words[1], 3):
        raise NotHttpError("the answer is not whole or not HTTP")
    if len(body) < _length(lines):
        raise NotHttpError("the answer is not whole")
    return int(words[1]), body


def _length(lines: list[bytes]) -> int:
    """Return how long the body has to be; the end of the connection is the end of one without a length."""
    for line in lines:
        name, _, text = line.partition(b":")
        if name.lower() == b"content-length" and _is_number(text.strip(), 9):
            return int(text)
        if name.lower() == b"transfer-encoding":
            raise NotHttpError("the answer has a transfer encoding, and none is known here")
    return 0


def _is_number(text: bytes, most: int) -> bool:
    return text.isdigit() and len(text) <= most
