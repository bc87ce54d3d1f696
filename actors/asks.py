"""What a registration actor asks the reconciler and its handler, and which answers still count.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ..protocol import messages as m
from ..protocol.plugins import Plugin


class Asks:
    """The asks of one registration actor, one at a time.

    Each ask has a number, its ticket, and the answer carries the same one. An answer with any other ticket belongs to
    an ask that was given up or superseded, and is dropped.
    """

    __slots__ = ("_reply", "_ticket", "_under_way", "handler")

    def __init__(self, reply: m.Address[m.RegistrationMessage]) -> None:
        """Have the handler answer to ``reply``."""
        self._reply = reply
        self._ticket = 0
        #: The ask that the handler has not answered yet.
        self._under_way: m.Ask | None = None
        #: The handler that serves the plugin, once the reconciler has admitted it.
        self.handler: m.Address[m.HandlerMessage] | None = None

    def new_ticket(self) -> int:
        """Return the ticket of an ask that begins."""
        self._ticket += 1
        return self._ticket

    def is_answered_by(self, ticket: int) -> bool:
        """Return whether an answer with this ticket belongs to the ask under way."""
        return ticket == self._ticket

    def ask_handler(self, ask: type[m.Validate] | type[m.Register] | type[m.Deregister], plugin: Plugin) -> None:
        """Send the handler an ask about ``plugin``."""
        assert self.handler is not None, "a handler is asked after the plugin was admitted"
        self._under_way = ask(plugin, self.new_ticket(), self._reply)
        self.handler.send_nowait(self._under_way)

    def withdraw(self) -> None:
        """Withdraw a Validate whose answer nobody waits for; if it hung, it would keep the name busy."""
        if isinstance(self._under_way, m.Validate) and self.handler is not None:
            self.handler.send_nowait(m.Withdraw(self._under_way))

    def close(self) -> None:
        """End the ask under way: whatever is answered from now on comes too late."""
        self._ticket += 1
        self._under_way = None
