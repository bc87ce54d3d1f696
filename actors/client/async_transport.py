"""How :class:`Client` speaks to a daemon, on Trio and asyncio: each request has a connection of its own."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Self, TypeVar

import anyio

from ..http.client import Reply, UnreachableError, ask
from .calls import ClientRequest
from .errors import ClientError, NoDaemonError
from .reaching import WRITING

T = TypeVar("T")


@contextmanager
def _talking(path: str) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of the client.

    Raises:
      NoDaemonError: if the daemon does not answer.
    """
    try:
        yield
    except UnreachableError as error:
        raise NoDaemonError(path, error.reason, error.code) from error


async def answer(path: str, call: ClientRequest[T], *, timeout: float, patience: float = math.inf) -> T:
    """Send a request and return what the daemon says; for the seconds see :func:`plugind.actors.http.client.ask`.

    If nothing is taken of the answer, what was made for it is taken back.

    Raises:
      ClientError: if it does not answer, or refuses.
    """
    with _talking(path):
        async with ask(path, call.method, call.target, call.body, timeout=timeout, patience=patience) as reply:
            uid = reply.uid  # Before the end, when there is no socket any more.
            status, body, version = reply.status, await reply.body(), reply.version
    said = call.answer(status, body, version)
    try:
        return call.judge(said, uid)
    except ClientError:
        if (undoing := call.undoing(status, said)) is not None:
            # What is refused is told in any case.
            with suppress(ClientError), anyio.CancelScope(shield=True):
                await answer(path, undoing, timeout=WRITING)
        raise


@asynccontextmanager
async def lines(
    path: str, call: ClientRequest[T], *, timeout: float, patience: float = math.inf
) -> AsyncIterator[Lines]:
    """Open a stream of lines, of which an empty one is a heartbeat.

    Raises:
      ClientError: if the daemon does not answer, or refuses; also from the iterator.
    """
    async with AsyncExitStack() as opened:
        with _talking(path):
            asking = ask(path, call.method, call.target, call.body, timeout=timeout, patience=patience)
            reply = await opened.enter_async_context(asking)
            refused = None if reply.status in (200, 201) else await reply.body()
        if refused is not None:
            raise call.refusal(reply.status, refused, reply.version)
        found = Lines(path, reply)
        opened.callback(found.close)
        yield found


class Lines:
    """The lines of a stream. Unlike a generator, it need not be closed by a reader that stops early."""

    def __init__(self, path: str, reply: Reply) -> None:
        """Read the lines of ``reply``, the answer of the daemon at ``path``."""
        self._path = path
        self._reply = reply
        self._lines = reply.lines()
        self._is_closed = False
        #: The version of the status socket.
        self.version = reply.version
        #: The user of the daemon.
        self.uid = reply.uid

    def wait_for_ever(self) -> None:
        """Wait for further lines for as long as the daemon keeps the connection."""
        self._reply.wait_for_ever()

    def close(self) -> None:
        """End the connection; there are no further lines, also for another task or thread that waits for one."""
        self._is_closed = True
        self._reply.hang_up()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next line."""
        try:
            if not self._is_closed:
                with _talking(self._path):
                    return await anext(self._lines)
        except (ClientError, anyio.ClosedResourceError):
            if not self._is_closed:
                raise
        raise StopAsyncIteration
