"""The base of inboxes in which a newer message replaces an older one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from ...protocol.health.progress import Reading

MessageT = TypeVar("MessageT")


class Queued(Generic[MessageT]):
    """The reading side of an inbox. A subclass decides which message replaces which."""

    def __init__(self) -> None:
        #: The waiting messages, in the order of arrival. Of messages with the same key one waits.
        self._queue: OrderedDict[object, MessageT] = OrderedDict()
        self._lot = trio.lowlevel.ParkingLot()
        self._taken = 0
        #: Returns a problem of an actor that does take its messages.
        self.problem: Callable[[], str | None] = lambda: None

    async def wait(self) -> None:
        """Wait until there is a message."""
        while not self._queue:
            await self._lot.park()

    async def receive(self) -> MessageT:
        """Wait for the next message and return it."""
        while not self._queue:
            await self._lot.park()
        return self.receive_nowait()

    def receive_nowait(self) -> MessageT:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
        """
        if not self._queue:
            raise trio.WouldBlock
        self._taken += 1
        return self._queue.popitem(last=False)[1]

    def read(self) -> Reading:
        """Return how many messages wait, and how many were taken."""
        return Reading(len(self._queue), self._taken, wrong=self.problem())
