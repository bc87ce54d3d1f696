"""Decides which messages end a try of a registration, and what follows."""

from __future__ import annotations

from typing import get_args

import trio

from ...protocol.errors import IllegalStepError
from ...protocol.messages.config import SettingsChanged
from ...protocol.messages.discovery import SocketAppeared, SocketTouched, SocketVanished
from ...protocol.messages.reconciler import ReportAsked, RetryAnswered, StopAsked, StopForced
from ...protocol.messages.registration import HandlerWithdrawn, ListenerLost, NameWanted, RegistrationMessage, TryNow
from ...protocol.plugins.status import Outcome
from ...protocol.registration import following
from ...protocol.registration.failures import CALL_AGAIN, kept
from ...protocol.registration.following import End, Next, Pause, Try
from ...protocol.registration.phases import SERVING, Phase, answer_to_retry, ends
from ...protocol.text import quoted
from ..messaging.mailbox import send_answer
from .reports import Reports

#: In these phases a request to try earlier has no effect: the try under way has read the same state.
_UP_TO_DATE = (Phase.CLAIM, Phase.VALIDATE, Phase.REGISTER)
#: The phases in which the actor only waits for messages. It answers a retry when it reads the request.
_PAUSES = (Phase.WAITING, Phase.STALE, Phase.PARKED, Phase.NOTIFY_PAUSE, Phase.REGISTERED, Phase.OBSERVED)
_MESSAGES: tuple[type[RegistrationMessage], ...] = get_args(RegistrationMessage)
#: The messages that decide what follows a Deregister or an interrupted try.
_DECISIVE = (SocketAppeared, SocketVanished, StopAsked, StopForced, *get_args(following.Trigger))


class Mail(Reports):
    """Serves the messages of the inbox: at once in the sender's task, or when the actor reads them."""

    __slots__ = ()

    def _serve(self, message: RegistrationMessage) -> bool:
        """Serve a message in the sender's task, as the rule of the inbox; return whether nothing of it is left to do.

        Otherwise the message stays in the inbox until the actor reads it.
        """
        match message:
            case SettingsChanged():
                self._take_settings(message)
                return True
            case ReportAsked():
                self._show_again()
                return True
            case NameWanted():
                self._give_way()
                return True
            case TryNow() if self._phase not in _PAUSES:
                self._answer_retry(message)
            case SocketTouched():
                self._note_owner(message)
            case _:
                pass
        if self._phase is Phase.LEAVE and isinstance(message, _DECISIVE):
            self._then = self._after_leaving(message, self._then)
            return True
        if self._scope is not None and self._ends(message):
            self._end_try(message)
        return False

    def _ends(self, message: RegistrationMessage) -> bool:
        """Whether a message ends the present phase. A message that is not meant for the actor is a bug, and ends it."""
        return ends(self._phase, message, self._socket.generation, self._type) or not isinstance(message, _MESSAGES)

    def _end_try(self, message: RegistrationMessage) -> None:
        """Cancel the try under way because of ``message``. The actor reads the message again after that."""
        if self._ender is None:
            assert self._scope is not None, "a try is under way"
            self._ender = message
            self._scope.cancel()

    def _receive(self) -> RegistrationMessage:
        message = self._inbox.receive_nowait()
        if isinstance(message, TryNow):
            self._answer_retry(message)  # The rule of the inbox may have answered already: the first answer counts.
        return message

    def _next_message(self) -> RegistrationMessage:
        if self._pending:
            message, *rest = self._pending
            self._pending = tuple(rest)
        else:
            message = self._receive()
        if isinstance(message, _MESSAGES):
            return message
        raise IllegalStepError(f"{message} cannot happen in {self._phase.name}")

    def _forget_triggers(self) -> None:
        """Drop messages that ask for a try, since one begins now: ten requested retries are one try."""
        self._pending += tuple(self._receive() for _ in range(self._inbox.waiting))
        self._hurried = self._hurried or any(isinstance(message, following.HURRYING) for message in self._pending)
        self._pending = tuple(message for message in self._pending if not isinstance(message, following.Trigger))

    def _sort_all(self) -> None:
        """Read the pending messages, at the beginning of a phase of a try."""
        pending, self._pending = self._pending, ()
        for message in pending:
            self._sort(message)
        while self._inbox.waiting:
            self._sort(self._receive())

    def _sort_what_came_meanwhile(self) -> None:
        """Read the messages that came during a failed handler call, before the next phase begins."""
        if self._ender is None:
            self._sort_all()

    def _sort(self, message: RegistrationMessage) -> None:
        """Take a message that was read during a try. Keep it if its effect comes later."""
        if self._ends(message):
            self._end_try(message)
        elif isinstance(message, following.Trigger):
            if self._phase in _UP_TO_DATE:
                return
        elif isinstance(message, StopAsked) and not message.deregister:
            self._stopping = True
            return
        elif self._phase is not Phase.REGISTER:
            return
        self._pending += (message,)

    def _interrupted(self) -> Next:
        """Return what follows a try that messages have ended."""
        self._now = trio.current_time()
        if self._phase is Phase.REFUSE and self._silent_until is not None:
            self._show()  # The plugin may exit because of the refusal, and nothing else would show why.
        self._finish(Outcome.SUPERSEDED)
        then: Next | None = None
        while self._pending or self._inbox.waiting:
            message = self._next_message()
            if then is not None:
                then = self._after_leaving(message, then)
            elif message is self._ender or self._ends(message):
                then = self._after(message)
            elif isinstance(message, StopAsked):
                self._stopping = True  # The stop waited for a Register that another message has ended.
        assert then is not None, "a message has ended the try"
        return then

    def _after(self, message: RegistrationMessage) -> Next | None:
        """Note why a message ends the present phase, and return what follows."""
        match message:
            case SocketAppeared():
                self._why = self._why_replaced(message)
                self._newest = message
                return following.first(message)
            case SocketVanished():
                self._why = message.reason
                return End()
            case StopAsked() | StopForced():
                return self._after_stop(message)
            case HandlerWithdrawn():
                self._why = f"the handler for {message.type} was removed"
                # The next try looks for another handler. Without one it tells the plugin and parks it.
                return Try(1, kept(self._cause))
            case ListenerLost():
                self._why = message.reason
                if self._info is not None and self._info.called:
                    # A dial would find out nothing: the plugin has to call.
                    return following.park(f"{message.reason}: {CALL_AGAIN}", self._attempt)
                return Try()
            case _:
                return None

    def _after_stop(self, message: StopAsked | StopForced) -> End:
        deregister = isinstance(message, StopAsked) and message.deregister
        if self._phase is Phase.REGISTERED and not deregister:
            self._owed = None  # The plugin stays registered (behaviour 42).
        anew = isinstance(message, StopAsked) and message.anew
        self._why = "plugind starts anew" if anew else "plugind stops"
        return End(stopped=True)

    def _after_leaving(self, message: RegistrationMessage, then: Next) -> Next:
        """Return what follows the Deregister under way, given a message that came meanwhile."""
        match message:
            case SocketAppeared():
                self._newest = message
                after: Next = following.first(message)
            case SocketVanished():
                after = End()
            case StopAsked() | StopForced():
                after = End(stopped=True)
            case _:
                return self._brought_forward(then, message, later=True)
        return then if isinstance(then, End) and then.stopped else after

    def _brought_forward(self, then: Next, message: RegistrationMessage, *, later: bool = False) -> Next:
        if not isinstance(then, Pause) or not isinstance(message, following.Trigger):
            return then
        brought = following.brought_forward(then, message, hurried=self._hurried, later=later)
        self._hurried = brought.hurried
        return brought.then

    def _why_replaced(self, appeared: SocketAppeared) -> str:
        """Return why a generation ends: it has a new socket, or the same socket under another resource name."""
        before, call = self._owed, appeared.call
        if before is None or call is None or call.info.name == before.info.name:
            return "a newer socket is in its place"
        return f"another call of Register (pid {call.pid}) has named its socket for {quoted(call.info.name)}"

    def _answer_retry(self, message: TryNow) -> None:
        if message.reply is not None:
            then = self._then if self._phase is Phase.LEAVE else End(stopped=True) if self._stopping else None
            answer = answer_to_retry(self._socket.path, self._phase, then)
            send_answer(message.reply, RetryAnswered((answer,)))

    def _give_way(self) -> None:
        self._wanted = True
        if self._phase is Phase.REGISTER and self._owed is not None:
            self._owed.handler.give_way(self._plugin(self._owed.info, self._owed.generation))

    def _take_settings(self, message: SettingsChanged) -> None:
        """Use new settings from the next step on."""
        if message.settings.number > self._settings.number:
            self._settings = message.settings
            self._judge_again()

    def _judge_again(self) -> None:
        """Deregister a plugin whose user is no longer trusted, or try one that was parked because of its user."""
        peer, phase, settings = self.conversation.peer, self._phase, self._settings
        if peer is None:
            return
        distrust = settings.trust.refusal(peer.uid, peer.pid, settings.users)
        if phase is Phase.PARKED:
            before = self.conversation.settings
            if distrust is None and not before.trust.includes(peer.uid, before.users):
                self._inbox.send_nowait(TryNow())
        elif phase in SERVING and distrust is not None:
            self._inbox.send_nowait(ListenerLost(self._socket.path, self._socket.generation, distrust))
