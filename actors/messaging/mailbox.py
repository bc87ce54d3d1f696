"""Inboxes, and the subscribers to changes.

Every inbox is a Trio memory channel. Asks flow down with ``send_nowait`` into inboxes whose size the protocol bounds.
Reports flow up with :func:`report`, which waits while the inbox is full, so nothing is lost silently (fault 86).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import attrs
import trio

from ...protocol.health.progress import Reading
from ...protocol.logs.lines import Level, Logger
from ...protocol.messages.addresses import Address
from ...protocol.values import record

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


async def report(channel: trio.MemorySendChannel[T], message: T) -> None:
    """Send ``message`` up; waits only while the inbox is full."""
    try:
        channel.send_nowait(message)
    except trio.WouldBlock:
        await channel.send(message)


async def send(address: Address[T], message: T) -> None:
    """Send ``message`` to an inbox that is never full."""
    address.send_nowait(message)
    await trio.lowlevel.checkpoint()


def send_answer(reply: Address[T], answer: T) -> None:
    """Send ``answer`` to a caller, unless the caller already has one or no longer waits."""
    with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
        reply.send_nowait(answer)


def offer(address: Address[T], message: T) -> bool:
    """Send ``message``; return False if the inbox is full. A message to a reader that is gone counts as sent."""
    try:
        address.send_nowait(message)
    except trio.WouldBlock:
        return False
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return True
    return True


@record
class Audience(Generic[T]):
    """The subscribers to the changes of an actor.

    A subscriber whose inbox is full is dropped, and is sent ``last`` as soon as there is room (fault 86).
    """

    _last: T
    subscribers: list[Address[T]] = attrs.field(init=False, factory=list)
    #: Subscribers that were dropped and still wait for the last message.
    lagging: list[Address[T]] = attrs.field(init=False, factory=list)

    def add(self, subscriber: Address[T], first: T) -> None:
        """Send ``first`` to ``subscriber``, and from now on each change."""
        (self.subscribers if offer(subscriber, first) else self.lagging).append(subscriber)

    def remove(self, subscriber: Address[T]) -> None:
        """Send nothing more to ``subscriber``."""
        for addresses in (self.subscribers, self.lagging):
            if subscriber in addresses:
                addresses.remove(subscriber)

    def tell(self, change: T, log: Logger) -> None:
        """Send ``change`` to all. Drop subscribers whose inbox is full, and remove those that are gone."""
        kept = [subscriber for subscriber in self.subscribers if self._takes(subscriber, change, log)]
        if len(kept) != len(self.subscribers):
            self.subscribers[:] = kept

    def _takes(self, subscriber: Address[T], change: T, log: Logger) -> bool:
        try:
            subscriber.send_nowait(change)
        except trio.WouldBlock:
            self.lagging.append(subscriber)
            log.event(Level.WARNING, "a subscriber lags and is dropped")
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def tell_lagging(self) -> None:
        """Send dropped subscribers the last message, as far as their inboxes have room."""
        self.lagging[:] = [address for address in self.lagging if not offer(address, self._last)]


class Readable(Protocol[T_co]):
    """The receiving end of a memory channel, or an :class:`Inbox`."""

    async def receive(self) -> T_co:
        """Wait for the next message and return it.

        Raises:
          trio.EndOfChannel: if no more messages can come.
        """

    def receive_nowait(self) -> T_co:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
          trio.EndOfChannel: if no more messages can come.
        """


class Inbox(Generic[T]):
    """The inbox of an actor. It counts the messages that the actor takes, so that a hanging actor is found."""

    __slots__ = ("_channel", "_taken", "address", "source")

    def __init__(self, size: int) -> None:
        """Hold ``size`` messages before their writers wait."""
        #: The address for senders.
        self.address, self._channel = trio.open_memory_channel[T](size)
        self._taken = 0
        #: Where the messages come from; a test kit can intercept them here.
        self.source: Readable[T] = self._channel

    async def report(self, message: T) -> None:
        """Send ``message`` up, as :func:`report` does."""
        await report(self.address, message)

    async def receive(self) -> T:
        """See :class:`Readable`."""
        message = await self.source.receive()
        self._taken += 1
        return message

    def receive_nowait(self) -> T:
        """See :class:`Readable`."""
        message = self.source.receive_nowait()
        self._taken += 1
        return message

    def read(self) -> Reading:
        """Return how many messages wait, and how many were taken."""
        found = self._channel.statistics()
        return Reading(found.current_buffer_used + found.tasks_waiting_send, self._taken)
