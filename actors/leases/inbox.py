"""The inbox of the lease actor, which also keeps what can be leased now.

Nobody waits to send, so the inbox is bounded by rules, one for each kind of message:

- Of the offers of a resource only the newest waits, in the place of the one before: what came after that one may rely
  on it.
- Of the rules by which devices are given only the newest wait, in the place of those before.
- A caller sends one message and waits for the answer. Callers are bounded by the places of the status socket, and by
  the tasks of the program that embeds the node. One that leaves sends one message more.
- What a plugin answers follows a call, and what the disk says follows a write or a file: there is one of each at most
  under way for a lease, or for each of its resources. The owner of a lease ends once. So all these are bounded by the
  number of leases (``plugind.protocol.leases.limits``).

When the actor has crashed, the next one is sent all offers again: the message that crashed it may have been one.
"""

from __future__ import annotations

from collections import OrderedDict

from ...protocol.leases.messages import LeaseRules, LeasesMessage, LeasesRead, OfferChanged, OfferEnded
from ..messaging.queued import Queued


class LeasesInbox(Queued[LeasesMessage]):
    """The inbox; it outlives the actor. Senders see ``send_nowait`` alone."""

    def __init__(self) -> None:
        super().__init__()
        #: What can be leased of each resource, as it was sent last.
        self._offers: dict[str, OfferChanged] = {}

    def send_nowait(self, message: LeasesMessage, /) -> None:
        """Put ``message`` in; never waits."""
        match message:
            case OfferChanged():
                self._offers[message.offer.resource] = message
                self._queue[message.offer.resource] = message
            case OfferEnded():
                self._offers.pop(message.resource, None)
                self._queue[message.resource] = message
            case LeaseRules():
                self._queue[LeaseRules] = message
            case _:
                self._queue[object()] = message
        self._lot.unpark()

    def start_again(self) -> list[LeasesRead]:
        """Let all offers wait again, before anything else.

        Returns what the store has said, which does not wait any more: whoever starts again asks for it.
        """
        read = [message for message in self._queue.values() if isinstance(message, LeasesRead)]
        others = [
            message
            for message in self._queue.values()
            if not isinstance(message, OfferChanged | OfferEnded | LeasesRead)
        ]
        self._queue = OrderedDict(self._offers)
        self._queue.update((object(), message) for message in others)
        self._lot.unpark_all()
        return read
