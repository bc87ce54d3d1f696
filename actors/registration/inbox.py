"""The inbox of a registration actor.

The actor makes its calls to the plugin and to the handler in its one task. A message may have to end such a call, or
must be served while a call goes on. So the inbox has a *rule*, which is applied in the sender's task as soon as a
message is sent. There is no second task that reads the inbox, since in a storm of thousands of sockets it would cost
more than the call itself.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
import trio.lowlevel

from ...protocol.messages.registration import RegistrationMessage

#: Serves a message in the sender's task. It returns whether the message is done with; any other one is put in.
Rule = Callable[[RegistrationMessage], bool]


class RegistrationInbox:
    """A memory channel with a rule. Senders see ``send_nowait`` alone.

    The protocol bounds the number of messages in it: the reconciler sends levels of one path, and answers a claim once.

    Messages lie in the channel until the actor takes them, and it waits beside the channel: ``receive`` of Trio takes
    some 800 bytes for as long as it waits, which is nearly always.
    """

    __slots__ = ("_receive", "_send", "_sleeper", "look", "rule", "waiting")

    def __init__(self) -> None:
        # Trio sets no bound, but the protocol does. If one plugin blocked the reconciler, it would block all plugins.
        send, receive = trio.open_memory_channel[RegistrationMessage](math.inf)
        self._send = send
        self._receive = receive
        #: What is applied to each message; None for nothing.
        self.rule: Rule | None = None
        #: What looks at a try that takes long, at a given time, and returns when to look again, if at all.
        self.look: Callable[[float], float | None] | None = None
        #: The actor's task while it waits for a message.
        self._sleeper: trio.lowlevel.Task | None = None
        #: The number of messages in the inbox. To read it costs less than to catch ``WouldBlock``.
        self.waiting = 0

    def send_nowait(self, message: RegistrationMessage, /) -> None:
        """Serve ``message`` by the rule, or put it in."""
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
        """Return the actor's wait until there is a message. It is no coroutine of its own."""
        if self.waiting:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        self._sleeper = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._wake_up)  # noqa: ASYNC105 - the caller awaits it

    def _wake_up(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
