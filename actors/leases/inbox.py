"""The inbox of the lease actor, which also keeps what can be leased now.

Nobody waits to send, so the inbox is bounded by rules, one for each kind of message:

- Of the offers of a resource only the newest waits, in the place of the one before: what came after that one may rely
  on it.
- A caller sends one message and waits for the answer. Callers are bounded by the places of the status socket, and by
  the tasks of the program that embeds the node. One that leaves sends one message more.
- What a plugin answers follows a call, and what the disk says follows a write or a file: there is one of each at most
  under way for a lease, or for each of its resources. The owner of a lease ends once. So all these are bounded by the
  number of leases (``plugind.protocol.leases.limits``).

When the actor has crashed, the next one is sent all offers again: the message that crashed it may have been one.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from ...protocol.health import Reading
from ...protocol.leases.messages import LeasesMessage, OfferChanged, OfferEnded, StoreRead


class LeasesInbox:
    """The inbox; it outlives the actor. Senders see ``send_nowait`` alone."""

    def __init__(self) -> None:
        #: What waits, in order; the offer of a resource by its name.
        self._queue: OrderedDict[object, LeasesMessage] = OrderedDict()
        #: What can be leased of each resource, as it was sent last.
        self._offers: dict[str, OfferChanged] = {}
        self._lot = trio.lowlevel.ParkingLot()
        self._taken = 0
        #: Says what is wrong although the actor takes its messages.
        self.problem: Callable[[], str | None] = lambda: None

    def send_nowait(self, message: LeasesMessage, /) -> None:
        """Put ``message`` in; never waits."""
        match message:
            case OfferChanged():
                self._offers[message.offer.resource] = message
                self._queue[message.offer.resource] = message
            case OfferEnded():
                self._offers.pop(message.resource, None)
                self._queue[message.resource] = message
            case _:
                self._queue[object()] = message
        self._lot.unpark()

    def start_again(self) -> None:
        """Let all offers wait again, before anything else.

        What the store has said is not kept: whoever starts again asks it.
        """
        others = [it for it in self._queue.values() if not isinstance(it, OfferChanged | OfferEnded | StoreRead)]
        self._queue = OrderedDict(self._offers)
        self._queue.update((object(), message) for message in others)
        self._lot.unpark_all()

    async def receive(self) -> LeasesMessage:
        """Return the next message, once there is one."""
        while not self._queue:
            await self._lot.park()
        return self.receive_nowait()

    def receive_nowait(self) -> LeasesMessage:
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
