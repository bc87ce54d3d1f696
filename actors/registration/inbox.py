"""The inbox of a registration actor.

The actor calls the plugin and the handler in its one task, and a message may have to end such a call or be served
during it. So the inbox has a *rule*, which is applied in the sender's task when a message is sent. A second task that
reads the inbox would cost more than the call itself in a storm of thousands of sockets.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
import trio.lowlevel

from ...protocol.messages.registration import RegistrationMessage

#: Serves a message in the sender's task. Returns False if the message has to be put into the inbox.
Rule = Callable[[RegistrationMessage], bool]


class RegistrationInbox:
    """A memory channel with a rule. Senders see only ``send_nowait``.

    The protocol bounds the number of messages: the reconciler sends the state of one path, and answers a claim once.

    The actor does not wait in ``receive``, which would take 800 bytes for as long as it waits, but beside the channel.
    """

    __slots__ = ("_receive", "_send", "_sleeper", "look", "rule", "waiting")

    def __init__(self) -> None:
        # The protocol sets the bound. A reconciler that one plugin could block would block all plugins.
        send, receive = trio.open_memory_channel[RegistrationMessage](math.inf)
        self._send = send
        self._receive = receive
        self.rule: Rule | None = None
        #: Looks at a slow try, at a given time, and returns when to look again, if at all.
        self.look: Callable[[float], float | None] | None = None
        #: The actor's task while it waits for a message.
        self._sleeper: trio.lowlevel.Task | None = None
        #: The number of messages in the inbox. Reading it costs less than catching ``WouldBlock``.
        self.waiting = 0

    def send_nowait(self, message: RegistrationMessage, /) -> None:
        """Serve ``message`` by the rule, or put it into the inbox."""
        if self.rule is not None and self.rule(message):
            return
        self._send.send_nowait(message)
        self.waiting += 1
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
        """Return an awaitable that ends when there is a message, without a coroutine of its own."""
        if self.waiting:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        self._sleeper = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._wake_up)  # noqa: ASYNC105 - the caller awaits it

    def _wake_up(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
