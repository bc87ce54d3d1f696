"""How the synchronous client speaks to a daemon: each request has a connection of its own, and a deadline.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from ..io.plain_http import NotHttpError, asked
from .calls import Call
from .errors import NoDaemonError

T = TypeVar("T")

#: Bytes of the largest answer that is read.
MAX_ANSWER: Final = 256 * 1024 * 1024


@contextmanager
def _talking(path: str, seconds: float) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of the client.

    Raises:
      NoDaemonError: if the daemon does not answer.
    """
    try:
        yield
    except TimeoutError as error:
        raise NoDaemonError(path, f"nothing came within {seconds:g} s", errno.ETIMEDOUT) from error
    except OSError as error:
        raise NoDaemonError(path, error.strerror or str(error), error.errno) from error
    except NotHttpError as error:
        raise NoDaemonError(path, str(error)) from error


def answer(path: str, call: Call[T], *, seconds: float, silence: float | None = None) -> T:
    """Send a request and return what the daemon says.

    All of it has ``seconds``. With ``silence``, only the head of the answer has, and each part of it may take that
    long: a long list may take longer, for as long as it goes on.

    Raises:
      ClientError: if it does not answer, or refuses.
    """
    with (
        _talking(path, seconds),
        asked(path, call.method, call.target, call.body, seconds=seconds, silence=silence) as reply,
    ):
        status, body = reply.status, reply.body(MAX_ANSWER)
    return call.answer(status, body)


@contextmanager
def lines(path: str, call: Call[T], *, silence: float, total: float = math.inf) -> Iterator[Iterator[bytes]]:
    """Open a stream of lines, of which an empty one is a heartbeat.

    Each may take ``silence`` to come, and all of them ``total``.

    Raises:
      ClientError: if the daemon does not answer, or refuses; also from the iterator.
    """
    with ExitStack() as opened:
        with _talking(path, min(silence, total)):
            reply = opened.enter_context(
                asked(path, call.method, call.target, call.body, seconds=silence, silence=silence, total=total)
            )
            refused = None if reply.status == 200 else reply.body(MAX_ANSWER)
        if refused is not None:
            raise call.refused(reply.status, refused)
        yield _Lines(path, reply.lines(), min(silence, total))


class _Lines:
    """The lines of a stream; what the reader of the stream raises is left alone."""

    def __init__(self, path: str, lines: Iterator[bytes], silence: float) -> None:
        self._path = path
        self._lines = lines
        self._silence = silence

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with _talking(self._path, self._silence):
            found = next(self._lines, None)
        if found is None:
            raise StopIteration
        return found
