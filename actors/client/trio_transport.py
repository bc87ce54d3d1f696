"""How the client for Trio speaks to a daemon: each request has a connection of its own, and a deadline."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import trio

from ..http.client import Lines, UnreachableError, ask
from .calls import ClientRequest
from .errors import ClientError, NoDaemonError
from .reaching import WRITING

T = TypeVar("T")


@contextmanager
def talking(path: str) -> Iterator[None]:
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
    with talking(path):
        async with ask(path, call.method, call.target, call.body, timeout=timeout, patience=patience) as reply:
            uid = reply.uid  # Before the end, when there is no socket any more.
            status, body, version = reply.status, await reply.body(), reply.version
    said = call.answer(status, body, version)
    try:
        return call.judge(said, uid)
    except ClientError:
        if (undoing := call.undoing(status, said)) is not None:
            # What is refused is told in any case.
            with suppress(ClientError), trio.CancelScope(shield=True):
                await answer(path, undoing, timeout=WRITING)
        raise


@asynccontextmanager
async def lines(
    path: str, call: ClientRequest[T], *, timeout: float, patience: float = math.inf
) -> AsyncIterator[Lines]:
    """Open a stream of lines, of which an empty one is a heartbeat.

    Raises:
      ClientError: if the daemon does not answer, or refuses.
    """
    async with AsyncExitStack() as opened:
        with talking(path):
            asking = ask(path, call.method, call.target, call.body, timeout=timeout, patience=patience)
            reply = await opened.enter_async_context(asking)
            refused = None if reply.status in (200, 201) else await reply.body()
        if refused is not None:
            raise call.refusal(reply.status, refused, reply.version)
        yield reply.lines()
