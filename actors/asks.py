"""The asks of a registration actor to the reconciler and to its handler, and the check of their answers.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..protocol import messages as m
from ..protocol.plugins import Plugin


class PromptHandler:
    """The address of a handler actor that calls methods in the task that asks, if they never wait.

    Such a call ends in the step in which it begins. So nothing can come in between: no withdrawal, no deadline, no
    crash of the handler actor, and no other call.
    """

    __slots__ = ()

    def send_nowait(self, message: m.HandlerMessage, /) -> None:
        """See :class:`~plugind.protocol.messages.Address`."""
        raise NotImplementedError

    def is_prompt(self, ask: type[m.Ask]) -> bool:
        """Whether the method for such an ask never waits."""
        raise NotImplementedError

    def call(self, ask: m.Ask) -> Awaitable[m.HandlerAnswered] | None:
        """Return the call of a method that never waits; None if the ask has to be sent, and take its turn."""
        raise NotImplementedError


class Asks:
    """The asks of one registration actor, one at a time.

    Each ask has a number, its ticket, and the answer carries the same one. An answer with any other ticket belongs to
    an ask that was abandoned or superseded, and is dropped.
    """

    __slots__ = ("_reply", "_ticket", "_under_way", "handler", "to_call", "wanted")

    def __init__(self, reply: m.Address[m.RegistrationMessage]) -> None:
        """Create asks whose answers are sent to ``reply``."""
        self._reply = reply
        self._ticket = 0
        #: The ask that the handler has not answered yet.
        self._under_way: m.Ask | None = None
        #: The handler that serves the plugin, once the reconciler has admitted it.
        self.handler: m.Address[m.HandlerMessage] | None = None
        #: The ask that :meth:`call_handler` has to make.
        self.to_call: m.Ask | None = None
        #: Whether another plugin waits for the name to which this one was admitted.
        self.wanted = False

    def new_ticket(self) -> int:
        """Return the ticket of a new ask."""
        self._ticket += 1
        return self._ticket

    def is_answered_by(self, ticket: int) -> bool:
        """Return whether an answer with this ticket belongs to the ask under way."""
        return ticket == self._ticket

    def ask_handler(
        self, ask: Callable[[Plugin, int, m.Address[m.RegistrationMessage]], m.Ask], plugin: Plugin
    ) -> None:
        """Send the handler an ask about ``plugin``: a Validate, a Register or a Deregister.

        If its method never waits, the ask is left to :meth:`call_handler`, which has to follow.
        """
        assert self.handler is not None, "a handler is asked only after the plugin was admitted"
        asked = ask(plugin, self.new_ticket(), self._reply)
        if isinstance(self.handler, PromptHandler) and self.handler.is_prompt(type(asked)):
            self.to_call = asked
        else:
            self._send(asked, self.handler)

    async def call_handler(self) -> m.HandlerAnswered | None:
        """Call the handler, and return its answer; None if the ask was sent instead, as the name is busy."""
        assert isinstance(self.handler, PromptHandler), "it was one when it was asked"
        assert self.to_call is not None, "it is called once for each ask"
        asked, self.to_call = self.to_call, None
        call = self.handler.call(asked)
        if call is None:
            self._send(asked, self.handler)
            return None
        return await call

    def _send(self, ask: m.Ask, handler: m.Address[m.HandlerMessage]) -> None:
        self._under_way = ask
        handler.send_nowait(ask)

    def withdraw(self) -> None:
        """Withdraw a Validate whose answer is no longer needed; if it hung, it would block the name."""
        if isinstance(self._under_way, m.Validate) and self.handler is not None:
            self.handler.send_nowait(m.Withdraw(self._under_way))

    def withdraw_register(self) -> None:
        """Withdraw a Register because the plugin's socket is gone; if it hung, it would block the plugin's next start.

        The Deregister that undoes it has to follow.
        """
        if isinstance(self._under_way, m.Register) and self.handler is not None:
            self.handler.send_nowait(m.Withdraw(self._under_way))

    def give_way(self) -> None:
        """Note that another plugin waits for the name, and tell the handler if it registers the plugin now."""
        self.wanted = True
        if isinstance(self._under_way, m.Register) and self.handler is not None:
            self.handler.send_nowait(m.GiveWay(self._under_way))

    def close(self) -> None:
        """End the current ask: any answer from now on is too late."""
        self._ticket += 1
        self._under_way = None
