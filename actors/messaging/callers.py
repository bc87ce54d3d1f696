"""The calls of the program that embeds a node. They end at the latest when the node ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, Protocol, Self, TypeVar

import attrs
import trio

from ...protocol.messages.status import Lagged
from ...protocol.values import record, value

T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M")
N = TypeVar("N")

#: Makes a message from the address of a reader.
Subscription = Callable[[trio.MemorySendChannel[T | Lagged]], M]

#: The number of changes that can wait for one reader before it is dropped.
SUBSCRIBER_SIZE = 8192


class NodeEndedError(Exception):
    """The node ended while a caller waited for it."""


class LaggedError(Exception):
    """A reader of a watch was too slow, and was dropped so that the node need not wait."""


class _Closable(Protocol):
    def close(self) -> None: ...


@record
class Callers:
    """The calls that wait for an answer of one node, and the streams of its changes."""

    streams: set[_Closable] = attrs.Factory(set)
    _scopes: set[trio.CancelScope] = attrs.Factory(set)
    _began: bool = False
    _ended: bool = False

    def begin(self) -> None:
        """Note that the node starts, and will answer."""
        self._began = True

    def check_began(self) -> None:
        """Refuse a call to a node that was not started, which would never answer.

        Raises:
          RuntimeError: if the node was not started.
        """
        if not self._began:
            raise RuntimeError(
                "the node does not run: enter its block first, with 'async with Supervisor(...) as node'"
            )

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Wait for an answer in this block; ``what`` names the missing answer in an error.

        Raises:
          RuntimeError: if the node was not started.
          NodeEndedError: if the node has ended, or ends first.
        """
        self.check_began()
        with self._until_the_end(what):
            yield

    @contextmanager
    def _until_the_end(self, what: str) -> Iterator[None]:
        error = NodeEndedError(f"the node ended, and {what}")
        if self._ended:
            raise error
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            except trio.ClosedResourceError:
                raise error from None
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise error

    async def ask(
        self, send: Callable[[M], Awaitable[None]], question: Callable[[trio.MemorySendChannel[T]], M], what: str
    ) -> T:
        """Send a question made from the address of its answer, and return the answer; see :meth:`asking`."""
        reply, answer = trio.open_memory_channel[T](1)
        with self.asking(what):
            await send(question(reply))
            return await answer.receive()

    @asynccontextmanager
    async def stream(
        self, send: Callable[[M | N], Awaitable[None]], begin: Subscription[T, M], end: Subscription[T, N], what: str
    ) -> AsyncIterator[AsyncIterator[T]]:
        """Open a stream of changes. The messages ``begin`` and ``end`` are made from the address of its reader."""
        subscriber, stream = trio.open_memory_channel[T | Lagged](SUBSCRIBER_SIZE)
        self.streams.add(subscriber)
        try:
            # Works before the node starts, so that the reader misses nothing.
            with self._until_the_end(what):
                await send(begin(subscriber))
            with stream:
                yield Changes(stream)
        finally:
            self.streams.discard(subscriber)
            # The actor may have ended before its readers.
            with trio.move_on_after(1, shield=True), suppress(trio.ClosedResourceError):
                await send(end(subscriber))

    def end_streams(self) -> None:
        """End the streams after the changes that they already contain."""
        for stream in self.streams:
            stream.close()

    def end(self) -> None:
        """End the streams, and all waiting calls."""
        self.end_streams()
        self._ended = True
        for scope in self._scopes:
            scope.cancel()


@attrs.define(eq=False)
class Each(Generic[T, V]):
    """The values of a stream of messages, each of which has some."""

    _messages: AsyncIterator[T]
    _values_of: Callable[[T], Iterable[V]]
    _rest: Iterator[V] = attrs.field(factory=lambda: iter(()))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        while True:
            for found in self._rest:
                await trio.lowlevel.checkpoint()
                return found
            self._rest = iter(self._values_of(await anext(self._messages)))


@value
class Changes(Generic[T]):
    """A stream of changes. It is not a generator, so that a reader can stop at any time."""

    _stream: trio.MemoryReceiveChannel[T | Lagged]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        message = await self._stream.__anext__()
        if isinstance(message, Lagged):
            raise LaggedError("too many changes waited for this reader; open the stream again, and read it faster")
        return message
