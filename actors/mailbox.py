"""Inboxes, the subscribers to changes, and the waits of a registration actor.

Every inbox is a Trio memory channel. Asks flow down with ``send_nowait`` into inboxes whose size the protocol bounds.
Reports flow up with :func:`report`, which waits while the inbox is full: back-pressure, never a silent loss (fault 86).

A registration actor makes its calls to the plugin in its one task, and a message may have to end such a call. So the
actor names these messages (:meth:`Wait.for_call`), and its :class:`RegistrationInbox` cancels the actor's scope when
one of them is sent. There is no second task that reads the inbox, since in a storm of thousands of sockets it would
cost more than the call itself.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

import attrs
import trio

from ..protocol.health import Reading
from ..protocol.logs import Level, Logger
from ..protocol.messages import Address, RegistrationMessage
from ..protocol.values import record

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Whether a message is one that interrupts.
Rule = Callable[[RegistrationMessage], bool]


async def report(channel: trio.MemorySendChannel[T], message: T) -> None:
    """Send ``message`` up; waits only while the inbox is full."""
    try:
        channel.send_nowait(message)
    except trio.WouldBlock:
        await channel.send(message)


def send_answer(reply: Address[T], answer: T) -> None:
    """Send ``answer`` to a caller, unless the caller has one or waits no more."""
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

    One whose inbox is full is dropped, and is sent ``last`` as soon as there is room for it (fault 86).
    """

    _last: T
    subscribers: list[Address[T]] = attrs.field(init=False, factory=list)
    #: Those that were dropped and are to be sent the last message.
    lagging: list[Address[T]] = attrs.field(init=False, factory=list)

    def add(self, subscriber: Address[T], first: T) -> None:
        """Send ``first``, and from now on each change."""
        (self.subscribers if offer(subscriber, first) else self.lagging).append(subscriber)

    def remove(self, subscriber: Address[T]) -> None:
        """Send it nothing more."""
        for addresses in (self.subscribers, self.lagging):
            if subscriber in addresses:
                addresses.remove(subscriber)

    def tell(self, change: T, log: Logger) -> None:
        """Send ``change`` to all; drop those whose inbox is full, and forget those that are gone."""
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
        """Send those that were dropped their last message, as far as there is room for it."""
        self.lagging[:] = [address for address in self.lagging if not offer(address, self._last)]


class Readable(Protocol[T_co]):
    """The receiving end of a memory channel, or an :class:`Inbox`."""

    async def receive(self) -> T_co:
        """Return the next message, once there is one.

        Raises:
          trio.EndOfChannel: if no more can come.
        """

    def receive_nowait(self) -> T_co:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
          trio.EndOfChannel: if no more can come.
        """


class Inbox(Generic[T]):
    """The inbox of an actor; it counts what the actor takes, so that one that hangs is found."""

    __slots__ = ("_channel", "_taken", "source")

    def __init__(self, channel: trio.MemoryReceiveChannel[T]) -> None:
        self._channel = channel
        self._taken = 0
        #: Where the messages come from; a test kit may put something in between.
        self.source: Readable[T] = channel

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
        """Return how many messages wait in it, and how many were taken."""
        found = self._channel.statistics()
        return Reading(found.current_buffer_used + found.tasks_waiting_send, self._taken)


class RegistrationInbox:
    """The inbox of a registration actor. Its messages can interrupt a call. Senders see ``send_nowait`` alone.

    The protocol bounds the number of messages in it: the reconciler sends levels of one path, and an answer follows an
    ask of the actor.

    Messages lie in a memory channel until the actor takes them, and it waits beside the channel, as the workers of a
    handler do: ``receive`` of Trio takes some 800 bytes for as long as it waits, which is nearly always.
    """

    __slots__ = ("_interrupted", "_receive", "_rule", "_scope", "_send", "_sleeper", "waiting")

    def __init__(self) -> None:
        # Trio sets no bound, but the protocol does. If one plugin blocked the reconciler, it would block all plugins.
        send, receive = trio.open_memory_channel[RegistrationMessage](math.inf)
        self._send = send
        self._receive = receive
        #: The scope that a message cancels for which the rule holds; None while no call is under way.
        self._scope: trio.CancelScope | None = None
        self._rule: Rule | None = None
        self._interrupted = False
        #: The actor's task while it waits for a message.
        self._sleeper: trio.lowlevel.Task | None = None
        #: The number of messages in the inbox. To read it costs less than to catch ``WouldBlock``.
        self.waiting = 0

    def send_nowait(self, message: RegistrationMessage, /) -> None:
        """Put ``message`` in, and interrupt the call under way if it is such a message."""
        self._send.send_nowait(message)
        self.waiting += 1
        if self._scope is not None and self._rule is not None and self._rule(message):
            self._interrupted = True
            self._scope.cancel()
        if (task := self._sleeper) is not None:
            self._sleeper = None
            trio.lowlevel.reschedule(task)

    def receive_nowait(self) -> RegistrationMessage:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
        """
        message = self._receive.receive_nowait()
        self.waiting -= 1
        return message

    def arrival(self) -> Awaitable[object]:
        """Return the actor's wait until there is a message. It is no coroutine of its own."""
        if self.waiting:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        self._sleeper = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._wake_up)  # noqa: ASYNC105 - the caller awaits it

    def _wake_up(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    def interrupt_on(self, rule: Rule, scope: trio.CancelScope) -> None:
        """From now on, cancel ``scope`` upon a message for which ``rule`` holds."""
        self._scope, self._rule, self._interrupted = scope, rule, False

    def interrupt_off(self) -> bool:
        """Cancel nothing any more; return whether a message has interrupted."""
        self._scope = self._rule = None
        return self._interrupted


#: Stands for the scope of an actor that needs none.
_NO_SCOPE = trio.CancelScope()


class Wait:
    """What the one task of a registration actor waits for: a message, a call or room in an inbox, until a deadline.

    ::

        while True:
            with wait.renew():
                while not wait.is_used_up(now):
                    ...  # wait.send(), wait.for_message(), wait.for_call() and wait.until_sent(), any number of them
            if wait.timed_out(): ...

    One cancel scope serves many waits, since in a storm a new one for each would cost more than the waits. A scope is
    used up once its deadline has passed or a message has interrupted a call; then the next one is opened.

    For the same reason the scope's deadline may lie before :attr:`deadline`: to set it costs more than to open a new
    scope on the rare occasion that it passes. Then :meth:`timed_out` is False, and the wait goes on in a new scope.
    """

    __slots__ = ("_inbox", "_interrupted", "_limited_to", "_scope", "deadline", "unsent")

    def __init__(self, inbox: RegistrationInbox) -> None:
        self._inbox = inbox
        #: The last scope.
        self._scope = _NO_SCOPE
        #: The deadline of the scope. To read it costs less than to ask the scope.
        self._limited_to = math.inf
        #: A message has interrupted a call, so that the scope is cancelled.
        self._interrupted = False
        #: ``trio.current_time()`` at which the wait is given up.
        self.deadline = math.inf
        #: What :meth:`send` has left to :meth:`until_sent`, in order: some messages of one step of the actor.
        self.unsent: tuple[Callable[[], Awaitable[None]], ...] = ()

    def renew(self) -> trio.CancelScope:
        """Return the scope for the next waits, to be entered."""
        self._interrupted = False
        self._scope, self._limited_to = trio.CancelScope(), math.inf
        return self._scope

    def is_used_up(self, now: float) -> bool:
        """Return whether the scope is cancelled, or will be at the next checkpoint.

        Whatever the actor begins under such a scope would be cancelled at once.
        """
        return self._interrupted or now >= self._limited_to

    def timed_out(self) -> bool:
        """Return whether the last scope was cancelled because :attr:`deadline` has passed."""
        return self._scope.cancelled_caught and trio.current_time() >= self.deadline

    def at_rest(self) -> Awaitable[object]:
        """Return the wait for a message while nothing is under way, outside of a scope; see :meth:`arrival`.

        A scope takes 700 bytes, and a registered plugin waits nearly always.
        """
        self._scope = _NO_SCOPE
        return self._inbox.arrival()

    async def for_message(self) -> RegistrationMessage:
        """Return the next message of the inbox, once there is one."""
        # A deadline left by a call may stay if this wait has one of its own. An actor without a deadline must not get a
        # spurious wake-up, however rare.
        if self.deadline == math.inf or self.deadline < self._limited_to:
            self._limit(self.deadline)
        await self._inbox.arrival()
        return self._inbox.receive_nowait()

    async def for_call(self, call: Awaitable[T], interrupts: Rule) -> T:
        """Return what ``call`` returns; a message for which ``interrupts`` holds cancels it."""
        self._limit(self.deadline)
        self._inbox.interrupt_on(interrupts, self._scope)
        try:
            return await call
        finally:
            self._interrupted = self._inbox.interrupt_off()

    def move_deadline(self, deadline: float) -> None:
        """Change the deadline of the call under way; the task that waits for it does that."""
        self.deadline = deadline
        self._limit(deadline)

    def send(self, channel: trio.MemorySendChannel[T], message: T) -> None:
        """Send ``message`` after those that were sent before; while an inbox is full, :meth:`until_sent` has to follow.

        That is no coroutine, since there is nearly always room.
        """
        if not self.unsent:
            try:
                channel.send_nowait(message)
            except trio.WouldBlock:
                pass
            else:
                return
        self.unsent += (partial(channel.send, message),)

    async def until_sent(self) -> None:
        """Send what there was no room for, without a deadline."""
        # The deadline on the scope is meant for what comes after.
        self._limit(math.inf)
        await self.send_rest()

    async def send_rest(self) -> None:
        """Send what there was no room for; also once the last scope has ended."""
        while self.unsent:
            await self.unsent[0]()
            self.unsent = self.unsent[1:]

    def _limit(self, deadline: float) -> None:
        """Set the scope's deadline; this is the only place that does."""
        if self._limited_to != deadline:
            self._limited_to = self._scope.deadline = deadline
