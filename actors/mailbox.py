"""How actors are addressed.

Every inbox is a Trio memory channel. Asks flow down with ``send_nowait`` into inboxes whose size the protocol bounds,
reports flow up with :func:`report`, which waits when the inbox is full: back-pressure, never a silent loss (fault 86).

A registration actor's inbox also has a bell. While a call of the actor is under way, the actor arms it with a cancel
scope of its own and a rule that says which messages end the call; so an actor of one task can wait for a peer and for
its inbox at once, and in a storm no second task has to be spawned to listen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import trio

from ..protocol.messages import RegistrationMessage

T = TypeVar("T")


async def report(channel: trio.MemorySendChannel[T], message: T) -> None:
    """Send ``message`` up; waits only when the inbox is full."""
    try:
        channel.send_nowait(message)
    except trio.WouldBlock:
        await channel.send(message)


Rule = Callable[[RegistrationMessage], bool]


class RegistrationInbox:
    """The inbox of a registration actor, with a bell. Senders see ``send_nowait`` alone.

    What can wait in it is bounded by those who write: the reconciler's messages are levels of one path, and an actor
    that asks again forgets its former ask.
    """

    __slots__ = ("_rang", "_receive", "_rule", "_scope", "_send", "waiting")

    def __init__(self) -> None:
        # Unbounded for Trio, bounded by the protocol: to block the reconciler on one plugin would block them all.
        send, receive = trio.open_memory_channel[RegistrationMessage](math.inf)
        self._send = send
        self._receive = receive
        self._rule: Rule | None = None
        self._scope: trio.CancelScope | None = None
        self._rang = False
        #: How many messages wait: cheaper to ask than to be told by an exception that there is none.
        self.waiting = 0

    def send_nowait(self, message: RegistrationMessage, /) -> None:
        """Put ``message`` in, and ring the bell if the actor asked to be interrupted by such a message."""
        self._send.send_nowait(message)
        self.waiting += 1
        if self._scope is not None and self._rule is not None and self._rule(message):
            self._rang = True
            self._scope.cancel()

    def receive_nowait(self) -> RegistrationMessage:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
        """
        message = self._receive.receive_nowait()
        self.waiting -= 1
        return message

    async def receive(self) -> RegistrationMessage:
        """Return the next message, once there is one."""
        message = await self._receive.receive()
        self.waiting -= 1
        return message

    def arm(self, scope: trio.CancelScope, rule: Rule) -> None:
        """From here on, a message for which ``rule`` holds cancels ``scope``."""
        self._scope, self._rule, self._rang = scope, rule, False

    def disarm(self) -> bool:
        """Ring no more; return whether the bell rang since it was armed."""
        self._scope = self._rule = None
        return self._rang
