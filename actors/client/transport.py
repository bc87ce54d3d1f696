"""How both clients speak to a daemon: each request has a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypedDict, TypeVar, Unpack

from ..http.backends import BLOCKING, Backend, result_of
from ..http.client import Reply, ask
from .calls import ClientRequest
from .errors import ClientError, NoDaemonError
from .reaching import WRITING

T = TypeVar("T")


class Limits(TypedDict, total=False):
    """The seconds of a request, as :func:`plugind.actors.http.client.ask` takes them."""

    timeout: float
    total: float
    patience: float


async def answer(backend: Backend, path: str, call: ClientRequest[T], **limits: Unpack[Limits]) -> T:
    """Send a request and return what the daemon says.

    If nothing is taken of the answer, what was made for it is taken back.

    Raises:
      ClientError: if it does not answer, or refuses.
    """
    async with ask(backend, path, call.method, call.target, call.body, error=NoDaemonError, **limits) as reply:
        body = await reply.body()
    said = call.answer(reply.status, body, reply.version)
    try:
        return call.judge(said, reply.uid)
    except ClientError:
        if (undoing := call.undoing(reply.status, said)) is not None:
            with suppress(ClientError), backend.shielded():  # What is refused is told in any case.
                await answer(backend, path, undoing, timeout=WRITING)
        raise


def asked(path: str, call: ClientRequest[T], **limits: Unpack[Limits]) -> T:
    """Block for :func:`answer`."""
    return result_of(answer(BLOCKING, path, call, **limits))


@asynccontextmanager
async def lines(backend: Backend, path: str, call: ClientRequest[T], **limits: Unpack[Limits]) -> AsyncIterator[Reply]:
    """Open a stream of lines, of which an empty one is a heartbeat.

    Raises:
      ClientError: if the daemon does not answer, or refuses; also from the iterator.
    """
    async with ask(backend, path, call.method, call.target, call.body, error=NoDaemonError, **limits) as reply:
        if reply.status not in (200, 201):
            raise call.refusal(reply.status, await reply.body(), reply.version)
        yield reply
