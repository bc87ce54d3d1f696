"""What the inboxes share in which a newer message takes the place of an older one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from ...protocol.health.progress import Reading

MessageT = TypeVar("MessageT")


class Queued(Generic[MessageT]):
    """The reading side of an inbox; which message takes the place of which, a subclass decides."""

    def __init__(self) -> None:
        #: What waits, in the order in which it came; what has one key waits once.
        self._queue: OrderedDict[object, MessageT] = OrderedDict()
        self._lot = trio.lowlevel.ParkingLot()
        self._taken = 0
        #: Says what is wrong although the actor takes its messages.
        self.problem: Callable[[], str | None] = lambda: None

    async def wait(self) -> None:
        """Return once there is a message."""
        while not self._queue:
            await self._lot.park()

    async def receive(self) -> MessageT:
        """Return the next message, once there is one."""
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
        """Return how much waits, and how much was taken."""
        return Reading(len(self._queue), self._taken, wrong=self.problem())
