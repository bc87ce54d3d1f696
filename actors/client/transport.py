"""How both clients speak to a daemon: each request has a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, TypedDict, TypeVar, Unpack

from ..http.backends import BLOCKING, Backend, result_of
from ..http.client import Reply, ask
from .calls import ClientRequest
from .errors import ClientError, NoDaemonError
from .reaching import WRITING, error_in

T = TypeVar("T")

#: The status of an answer that is the last line of a stream, and those that such a line stands for.
_LATER: Final = 202
_MADE: Final = 201
_NOT_MADE: Final = 409


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
        status, body = await _answer_in(reply, call)
    said = call.answer(status, body, reply.version)
    try:
        return call.judge(said, reply.uid)
    except ClientError:
        if (undoing := call.undoing(status, said)) is not None:
            with suppress(ClientError), backend.shielded():  # What is refused is told in any case.
                await answer(backend, path, undoing, timeout=WRITING)
        raise


async def _answer_in(reply: Reply, call: ClientRequest[T]) -> tuple[int, bytes]:
    """Return the status and the body of an answer; one that comes later is the last line of a stream."""
    if reply.status != _LATER:
        return reply.status, await reply.body()
    async for line in reply:
        if not call.note(line):
            return _MADE if error_in(line) is None else _NOT_MADE, line
    return _NOT_MADE, b""


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
