"""The conversation with a plugin that called Register: the call had its info, and the answer is the notification.

There is nothing to dial. The consumer of the plugin's type connects to its socket, which is its endpoint.
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

#: The answer to a call whose socket was removed, or called again, before the registration was complete.
CUT_SHORT = "the registration ended before it was complete: call Register again"


class CalledConversation:
    """The counterpart of :class:`~plugind.actors.registration.conversation.Conversation` for a plugin that called."""

    __slots__ = ("_reply", "dialed_at", "endpoint", "peer", "reached_at", "settings")

    def __init__(self, call: Called, settings: RegistrationSettings) -> None:
        self.settings = settings
        #: Where the answer is sent; None once it was sent.
        self._reply = call.reply
        #: None, as for each plugin whose endpoint is its own socket.
        self.endpoint = None
        self.peer: Called = call
        self.dialed_at = trio.current_time()
        #: None, since there is no dial: the life of the socket counts from the answer.
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
        """Return True at once: the plugin has already connected."""
        begins(trio.current_time())
        return True

    async def get_info(self, on_heard: Callable[[], None]) -> PluginInfo:  # noqa: ARG002 - as Conversation
        """Return the info that was in the call."""
        return self.peer.info

    async def notify(self, refusal: Refusal | None = None) -> None:
        """Answer the call. A caller that no longer waits stays registered, or calls again."""
        if refusal is None:
            self._answer(CallAnswered())
            self.peer = self.peer.as_answered()
        else:
            self._answer(CallAnswered(refusal.reason, refusal.outcome))

    def hang_up(self) -> None:
        """Answer a call whose registration has ended early."""
        self._answer(CallAnswered(CUT_SHORT, Outcome.SUPERSEDED))

    def leave(self) -> None:
        """Leave the answer to the successor of a crashed actor."""
        self._reply = None

    def is_privileged(self, uid: int | None) -> bool:
        """Whether a plugin of this user may take over the name of any other user's plugin (fault 80)."""
        return self.settings.users.is_privileged(uid)

    def _answer(self, answer: CallAnswered) -> None:
        if self._reply is not None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                self._reply.send_nowait(answer)
            self._reply = None
