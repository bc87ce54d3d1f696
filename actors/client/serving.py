"""Serving a plugin type of a daemon from another process, on Trio or asyncio."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Self

import attrs

from ...protocol.client.asks_forms import AnswersBody, HealthBody, HeldBody
from ...protocol.client.asks_json import (
    Asked,
    HealthPosted,
    Hello,
    answer_to_json,
    event_from_json,
    health_to_json,
    held_to_json,
    hello_from_json,
)
from ...protocol.handlers.remote import AskKind, AskResult, Instance, RoleTold, Synced, Withdrawn
from ...protocol.plugins.health import Health
from ..http.backends import Backend, blocking, result_of
from ..http.client import Reply
from .calls import ClientRequest, understood
from .lease_calls import quoted
from .transport import answer, lines

#: How many heartbeats may be missing before the daemon counts as gone.
_MISSING = 3


@attrs.frozen(eq=False)
class HandlerAsk:
    """What a handler is asked. It has to be answered by :meth:`done` or :meth:`refuse`."""

    kind: AskKind
    #: The plugin; an instance of an earlier run of the daemon has only id, name and socket.
    instance: Instance
    #: How many seconds the answer may take; None if it has no deadline.
    seconds: float | None
    _id: int
    _serving: Serving

    async def done(self) -> bool:
        """Answer that all is well; return False if nobody waits for the answer any more.

        Raises:
          ClientError: if the session has ended, or the daemon does not answer.
        """
        return await self._serving.answer(self._id, AskResult())

    async def refuse(self, error: str, *, cause: str | None = None) -> bool:
        """Answer that it cannot be, and why; the plugin gets the text. See :meth:`done`.

        ``cause`` is the error in few words, which ``plugind ls``, ``wait`` and the log show in its place.
        """
        return await self._serving.answer(self._id, AskResult(error, cause))


@attrs.define(eq=False)
class Serving:
    """A handler's session; iterating it yields what the handler is asked, and the roles of what it follows."""

    _backend: Backend
    _path: str
    _type: str
    _timeout: float
    _reply: Reply
    _session: str = ""

    async def begin(self, held: Iterable[Instance]) -> None:
        """Say what the handler has.

        Raises:
          ClientError: if the daemon does not answer, or refuses.
        """
        hello: Hello = understood(hello_from_json, await anext(self._reply, b"{}"), self._reply.version)
        self._session = hello.session
        self._reply.may_be_silent(_MISSING * hello.heartbeat)
        for body in held_to_json(self._session, held):
            await self._post("held", body)

    def close(self) -> None:
        """End the session; another task may do so, and the iteration is over."""
        self._reply.hang_up()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HandlerAsk | RoleTold:
        while True:
            if not (line := await anext(self._reply)):
                continue  # It is a heartbeat.
            match understood(event_from_json, line, self._reply.version):
                case Asked(id=number, instance=None):
                    await self.answer(number, AskResult())
                case Asked() as asked:
                    assert asked.instance is not None, "the case before has those without"
                    return HandlerAsk(asked.kind, asked.instance, asked.seconds, asked.id, self)
                case RoleTold() as told:
                    return told
                case Withdrawn() | Synced() | None:
                    pass  # The answer to a withdrawn ask is dropped.

    async def answer(self, number: int, verdict: AskResult) -> bool:
        """Answer an ask; see :class:`HandlerAsk`."""
        return await self._post("answers", answer_to_json(self._session, number, verdict))

    async def report(
        self,
        instance: str,
        health: Health | None = None,
        reason: str = "",
        *,
        facts: Mapping[str, str] | None = None,
        warnings: Iterable[str] = (),
        usable: bool | None = None,
        gone: str | None = None,
    ) -> bool:
        """Report what is known of an instance that the handler follows; return False if it follows no such instance.

        What the words mean is said at :class:`plugind.Link`.

        Raises:
          ClientError: if the session has ended, or the daemon does not answer.
        """
        posted = HealthPosted(instance, health, reason, facts, tuple(warnings), usable, gone)
        return await self._post("health", health_to_json(self._session, posted))

    async def _post(self, what: str, body: HeldBody | AnswersBody | HealthBody) -> bool:
        call = ClientRequest("POST", f"{path_of(self._type)}/{what}", _taken, json.dumps(body).encode())
        return await answer(self._backend, self._path, call, timeout=self._timeout)


@attrs.frozen(eq=False)
class SyncHandlerAsk:
    """A :class:`HandlerAsk` for a program without an event loop. Any thread may answer it."""

    _inner: HandlerAsk

    @property
    def kind(self) -> AskKind:
        """What the handler is asked to do."""
        return self._inner.kind

    @property
    def instance(self) -> Instance:
        """The plugin; an instance of an earlier run of the daemon has only id, name and socket."""
        return self._inner.instance

    @property
    def seconds(self) -> float | None:
        """How many seconds the answer may take; None if it has no deadline."""
        return self._inner.seconds

    done = blocking(HandlerAsk.done)
    refuse = blocking(HandlerAsk.refuse)


@attrs.frozen(eq=False)
class SyncServing:
    """A :class:`Serving` for a program without an event loop."""

    _inner: Serving

    def close(self) -> None:
        """End the session; another thread may do so, and the iteration is over."""
        self._inner.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncHandlerAsk | RoleTold:
        try:
            told = result_of(anext(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None
        return SyncHandlerAsk(told) if isinstance(told, HandlerAsk) else told

    report = blocking(Serving.report)


def path_of(plugin_type: str) -> str:
    """Return the path of the stream of a type's handler."""
    return f"/v1/handlers/{quoted(plugin_type)}"


def _taken(content: object) -> bool:
    return isinstance(content, dict) and bool(content.get("taken"))


@asynccontextmanager
async def serving(
    backend: Backend, path: str, plugin_type: str, held: Iterable[Instance], timeout: float
) -> AsyncIterator[Serving]:
    """Serve a type for a block.

    Raises:
      ClientError: if the daemon does not answer, or refuses.
    """
    call = ClientRequest("GET", path_of(plugin_type), lambda content: content)
    async with lines(backend, path, call, timeout=timeout, total=math.inf) as reply:
        session = Serving(backend, path, plugin_type, timeout, reply)
        await session.begin(held)
        yield session
