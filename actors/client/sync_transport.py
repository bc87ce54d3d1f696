"""How the synchronous client speaks to a daemon: each request has a connection of its own, and a deadline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self, TypeVar

from ..http.plain import NotHttpError, Reply, asked, no_answer
from .calls import ClientRequest
from .errors import ClientError, NoDaemonError
from .reaching import MAX_ANSWER, WRITING

T = TypeVar("T")


@contextmanager
def _talking(path: str, seconds: float) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of the client.

    Raises:
      NoDaemonError: if the daemon does not answer.
    """
    try:
        yield
    except (OSError, NotHttpError) as error:
        why = no_answer(path, error, seconds)
        raise NoDaemonError(why.path, why.reason, why.code) from error


def answer(
    path: str, call: ClientRequest[T], *, seconds: float, silence: float | None = None, patience: float = math.inf
) -> T:
    """Send a request and return what the daemon says.

    All of it has ``seconds``. With ``silence``, only the head of the answer has, and each part of it may take that
    long: a long list may take longer, for as long as it goes on. After ``patience`` seconds in which nothing comes, the
    daemon is asked whether it answers at all. If nothing is taken of the answer, what was made for it is taken back.

    Raises:
      ClientError: if it does not answer, or refuses.
    """
    with (
        _talking(path, seconds),
        asked(path, call.method, call.target, call.body, seconds=seconds, silence=silence, patience=patience) as reply,
    ):
        status, body, version = reply.status, reply.body(MAX_ANSWER), reply.version
    said = call.answer(status, body, version)
    try:
        return call.judge(said, reply.uid)
    except ClientError:
        if (undoing := call.undoing(status, said)) is not None:
            with suppress(ClientError):  # What is refused is told in any case.
                answer(path, undoing, seconds=WRITING)
        raise


@contextmanager
def lines(
    path: str, call: ClientRequest[T], *, silence: float, total: float = math.inf, patience: float = math.inf
) -> Iterator[Lines]:
    """Open a stream of lines, of which an empty one is a heartbeat.

    Each may take ``silence`` to come, and all of them ``total``. For ``patience`` see :func:`answer`.

    Raises:
      ClientError: if the daemon does not answer, or refuses; also from the iterator.
    """
    with ExitStack() as opened:
        with _talking(path, min(silence, total)):
            asking = asked(
                path,
                call.method,
                call.target,
                call.body,
                seconds=silence,
                silence=silence,
                total=total,
                patience=patience,
            )
            reply = opened.enter_context(asking)
            refused = None if reply.status in (200, 201) else reply.body(MAX_ANSWER)
        if refused is not None:
            raise call.refusal(reply.status, refused, reply.version)
        found = Lines(path, reply, min(silence, total))
        opened.callback(found.close)
        yield found


class Lines:
    """The lines of a stream; what the reader of the stream raises is left alone."""

    def __init__(self, path: str, reply: Reply, silence: float) -> None:
        """Read the lines of ``reply``; each is to come within ``silence``."""
        self._path = path
        self._reply = reply
        #: The version of the status socket.
        self.version = reply.version
        #: The user of the daemon.
        self.uid = reply.uid
        self._lines = reply.lines()
        self._silence = silence
        self._is_closed = False

    def wait_for_ever(self) -> None:
        """Wait for further lines for as long as the daemon keeps the connection."""
        self._reply.wait_for_ever()

    def close(self) -> None:
        """End the connection; there are no further lines, also for another thread that waits for one."""
        self._is_closed = True
        self._reply.hang_up()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next line."""
        try:
            if not self._is_closed:
                with _talking(self._path, self._silence):
                    return next(self._lines)
        except NoDaemonError:
            if not self._is_closed:
                raise
        raise StopIteration
