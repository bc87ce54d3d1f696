"""The conversation with a plugin that called Register: its info was in the call, and the answer is the notification.

There is nothing to dial. The consumer of its type connects to its socket, which is its endpoint.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

import trio

from ..protocol import messages as m
from ..protocol import states
from ..protocol.registration_settings import RegistrationSettings
from ..protocol.status import Outcome

#: What a caller is told whose registration ends before it is complete: its socket was removed, or called again.
CUT_SHORT = "the registration ended before it was complete: call Register again"


class CalledConversation:
    """Stands for :class:`~plugind.actors.conversation.Conversation` where the plugin has called."""

    __slots__ = ("_reply", "dialed_at", "endpoint", "peer", "reached_at", "settings")

    def __init__(self, call: m.Called, settings: RegistrationSettings) -> None:
        #: See :class:`~plugind.actors.conversation.Conversation`.
        self.settings = settings
        #: Where the answer goes, until it is given.
        self._reply = call.reply
        #: Its endpoint is its own socket.
        self.endpoint = None
        #: The process that called.
        self.peer: m.Called = call
        self.dialed_at = trio.current_time()
        #: No dial: its life counts from the answer on.
        self.reached_at: float | None = None

    async def perform(self, command: states.Dial | states.AskInfo | states.Notify) -> states.Event:
        """Return at once: the plugin has dialed, and given its info. Only the notification is left, as an answer."""
        match command:
            case states.Dial():
                return states.Dialed()
            case states.AskInfo():
                return states.InfoReceived(self.peer.info)
            case states.Notify():
                # A caller that waits no more has no part in this: it is registered, or it calls again.
                self._answer(_answer_of(command.refusal))
                if command.error is None:
                    self.peer = self.peer.as_answered()
                return states.Notified()
        assert_never(command)

    def hang_up(self) -> None:
        """Answer the call if it was not answered: the registration ended on its way."""
        self._answer(m.CallAnswered(CUT_SHORT, Outcome.SUPERSEDED))

    def leave(self) -> None:
        """Leave the answer to the successor of an actor that has crashed."""
        self._reply = None

    def is_privileged(self, uid: int | None) -> bool:
        """Whether a plugin of this user may succeed any of another user (fault 80)."""
        return self.settings.users.is_privileged(uid)

    def _answer(self, answer: m.CallAnswered) -> None:
        if self._reply is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                self._reply.send_nowait(answer)
            self._reply = None


def _answer_of(refusal: states.Refusal | None) -> m.CallAnswered:
    return m.CallAnswered() if refusal is None else m.CallAnswered(refusal.text, refusal.outcome)
