"""What a fake plugin sends on one of its streams."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

import attrs
import trio
from grpclib.exceptions import GRPCError

T = TypeVar("T")

#: How many lists wait for a slow reader. Each list is complete, so the oldest ones are dropped beyond that.
MOST_WAITING: Final = 64


@attrs.define(eq=False)
class Feed(Generic[T]):
    """The lists that one stream must send, and then its end."""

    _lists: deque[T] = attrs.field(factory=lambda: deque(maxlen=MOST_WAITING))
    _end: GRPCError | None = None
    _news: trio.Event = attrs.field(factory=trio.Event)

    def put(self, content: T) -> None:
        """Queue a list, unless the stream must end."""
        if self._end is None:
            self._lists.append(content)
            self._news.set()

    def skip(self) -> None:
        """Drop the queued lists."""
        self._lists.clear()

    def finish(self, error: GRPCError) -> None:
        """End the stream after the queued lists."""
        self._end = self._end or error
        self._news.set()

    async def next(self) -> T | GRPCError:
        """Wait for the next list, or the end of the stream, and return it."""
        while not self._lists and self._end is None:
            self._news = trio.Event()
            await self._news.wait()
        if self._lists:
            return self._lists.popleft()
        assert self._end is not None
        return self._end
