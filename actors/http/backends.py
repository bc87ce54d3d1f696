"""How a client waits for its socket: by blocking its thread, or by letting other tasks run.

The requests are written once, with ``async def``. With :data:`BLOCKING` nothing in them suspends, so :func:`result_of`
needs no event loop.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Bytes that are received at once.
_MOST: Final = 65536
#: Seconds of the longest timeout that a socket takes: its milliseconds are a C int.
_LONGEST: Final = 2**31 // 1000


class Backend(Protocol):
    """What a request waits with."""

    def now(self) -> float:
        """Return the time, by the clock of the deadlines."""

    async def sleep(self, seconds: float, /) -> None:
        """Wait for some seconds."""

    async def send(self, connection: socket.socket, data: bytes, until: float) -> bool:
        """Send all of ``data``; return whether that was done in time."""

    async def receive(self, connection: socket.socket, until: float) -> bytes | None:
        """Return what comes next, nothing at the end; None if nothing comes in time."""

    def shielded(self) -> AbstractContextManager[object]:
        """Let nothing cancel the block."""

    def close(self, connection: socket.socket) -> None:
        """Close a socket, for which others may wait."""


class Blocking:
    """Blocks the thread, without Trio and anyio, for programs that must start quickly."""

    now = staticmethod(time.monotonic)

    async def sleep(self, seconds: float, /) -> None:
        """See :class:`Backend`."""
        time.sleep(seconds)  # noqa: ASYNC251 - it is what this class is for

    async def send(self, connection: socket.socket, data: bytes, until: float) -> bool:
        """See :class:`Backend`."""
        _limit(connection, until)
        try:
            connection.sendall(data)
        except (TimeoutError, BlockingIOError):
            return False
        return True

    async def receive(self, connection: socket.socket, until: float) -> bytes | None:
        """See :class:`Backend`."""
        _limit(connection, until)
        try:
            return connection.recv(_MOST)
        except (TimeoutError, BlockingIOError):
            return None

    def shielded(self) -> AbstractContextManager[object]:
        """See :class:`Backend`."""
        return nullcontext()

    def close(self, connection: socket.socket) -> None:
        """See :class:`Backend`."""
        connection.close()


def _limit(connection: socket.socket, until: float) -> None:
    left = max(0.0, until - time.monotonic())
    connection.settimeout(None if left == math.inf else min(left, _LONGEST))


BLOCKING: Final = Blocking()


class Tasks:
    """Lets other tasks run, by what Trio and anyio both have."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        sleep: Callable[[float], Coroutine[Any, Any, None]],
        scope: Callable[..., AbstractContextManager[Any]],
        readable: Callable[[socket.socket], Awaitable[None]],
        writable: Callable[[socket.socket], Awaitable[None]],
        closing: Callable[[socket.socket], None],
        closed: type[Exception],
    ) -> None:
        self.now = now
        self.sleep = sleep
        self._scope = scope
        self._readable = readable
        self._writable = writable
        self._closing = closing
        #: What is raised in a task that waits for a socket when another one closes it.
        self._closed = closed

    async def send(self, connection: socket.socket, data: bytes, until: float) -> bool:
        """See :class:`Backend`."""
        unsent = memoryview(data)
        with self._scope(deadline=until):
            while unsent:
                await self._writable(connection)
                unsent = unsent[connection.send(unsent) :]
        return not unsent

    async def receive(self, connection: socket.socket, until: float) -> bytes | None:
        """See :class:`Backend`."""
        with self._scope(deadline=until):
            with suppress(self._closed):  # The next call says so.
                await self._readable(connection)
            return connection.recv(_MOST)
        return None

    def shielded(self) -> AbstractContextManager[object]:
        """See :class:`Backend`."""
        return self._scope(shield=True)

    def close(self, connection: socket.socket) -> None:
        """See :class:`Backend`."""
        self._closing(connection)
        connection.close()


def result_of(waiting: Awaitable[T]) -> T:
    """Return the result of a coroutine that waits with :data:`BLOCKING` alone, which never suspends it."""
    try:
        next(waiting.__await__())
    except StopIteration as returned:
        result: T = returned.value
        return result
    raise RuntimeError("this needs an event loop")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that has the result of ``method`` of the asynchronous object ``_inner``."""

    @wraps(method)
    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> T:
        return result_of(method(self._inner, *args, **more))

    return called


class Entered(Generic[T]):
    """An asynchronous block that waits with :data:`BLOCKING` alone, for ``with``."""

    def __init__(self, block: AbstractAsyncContextManager[T]) -> None:
        self._block = block

    def __enter__(self) -> T:
        return result_of(self._block.__aenter__())

    def __exit__(self, *raised: Any) -> bool | None:
        return result_of(self._block.__aexit__(*raised))


def each(found: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an iterator yields that waits with :data:`BLOCKING` alone."""
    with suppress(StopAsyncIteration):
        while True:
            yield result_of(anext(found))
