"""The conversation with a plugin that called Register: its info was in the call, and the answer is the notification.

There is nothing to dial. The consumer of its type connects to its socket, which is its endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from ...protocol.identity import Identity
from ...protocol.messages.discovery import CallAnswered, Called
from ...protocol.plugins.info import PluginInfo
from ...protocol.plugins.status import Outcome
from ...protocol.registration.failures import Refusal
from ...protocol.registration.settings import RegistrationSettings

#: What a caller is told whose registration ends before it is complete: its socket was removed, or called again.
CUT_SHORT = "the registration ended before it was complete: call Register again"


class CalledConversation:
    """Stands for :class:`~plugind.actors.registration.conversation.Conversation` where the plugin has called."""

    __slots__ = ("_reply", "dialed_at", "endpoint", "peer", "reached_at", "settings")

    def __init__(self, call: Called, settings: RegistrationSettings) -> None:
        #: See :class:`~plugind.actors.registration.conversation.Conversation`.
        self.settings = settings
        #: Where the answer goes, until it is given.
        self._reply = call.reply
        #: Its endpoint is its own socket.
        self.endpoint = None
        #: The process that called.
        self.peer: Called = call
        self.dialed_at = trio.current_time()
        #: No dial: its life counts from the answer on.
        self.reached_at: float | None = None

    async def dial(
        self,
        identity: Identity,  # noqa: ARG002 - as Conversation
        root: str,  # noqa: ARG002 - as Conversation
        begins: Callable[[float], None],
        *,
        patient: bool,  # noqa: ARG002 - as Conversation
        held_up: bool = False,  # noqa: ARG002 - as Conversation
        uid: int | None = None,  # noqa: ARG002 - as Conversation
    ) -> bool:
        """Return at once: the plugin has dialed."""
        begins(trio.current_time())
        return True

    async def get_info(self, on_heard: Callable[[], None]) -> PluginInfo:  # noqa: ARG002 - as Conversation
        """Return the info that was in the call."""
        return self.peer.info

    async def notify(self, refusal: Refusal | None = None) -> None:
        """Answer the call. A caller that waits no more has no part in this: it is registered, or it calls again."""
        if refusal is None:
            self._answer(CallAnswered())
            self.peer = self.peer.as_answered()
        else:
            self._answer(CallAnswered(refusal.reason, refusal.outcome))

    def hang_up(self) -> None:
        """Answer the call if it was not answered: the registration ended on its way."""
        self._answer(CallAnswered(CUT_SHORT, Outcome.SUPERSEDED))

    def leave(self) -> None:
        """Leave the answer to the successor of an actor that has crashed."""
        self._reply = None

    def is_privileged(self, uid: int | None) -> bool:
        """Whether a plugin of this user may succeed any of another user (fault 80)."""
        return self.settings.users.is_privileged(uid)

    def _answer(self, answer: CallAnswered) -> None:
        if self._reply is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                self._reply.send_nowait(answer)
            self._reply = None
