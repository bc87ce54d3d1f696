"""The asks of a registration actor to the reconciler and to its handler, and the check of their answers.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

from ..protocol import messages as m
from ..protocol.plugins import Plugin


class Asks:
    """The asks of one registration actor, one at a time.

    Each ask has a number, its ticket, and the answer carries the same one. An answer with any other ticket belongs to
    an ask that was abandoned or superseded, and is dropped.
    """

    __slots__ = ("_reply", "_ticket", "_under_way", "handler")

    def __init__(self, reply: m.Address[m.RegistrationMessage]) -> None:
        """Create asks whose answers are sent to ``reply``."""
        self._reply = reply
        self._ticket = 0
        #: The ask that the handler has not answered yet.
        self._under_way: m.Ask | None = None
        #: The handler that serves the plugin, once the reconciler has admitted it.
        self.handler: m.Address[m.HandlerMessage] | None = None

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
        """Send the handler an ask about ``plugin``: a Validate, a Register or a Deregister."""
        assert self.handler is not None, "a handler is asked only after the plugin was admitted"
        self._under_way = ask(plugin, self.new_ticket(), self._reply)
        self.handler.send_nowait(self._under_way)

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

    def close(self) -> None:
        """End the current ask: any answer from now on is too late."""
        self._ticket += 1
        self._under_way = None
