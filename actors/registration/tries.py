"""One try of a registration. :meth:`Tries._register_socket` goes through all of its steps."""

from __future__ import annotations

import math

import attrs
import trio

from ...protocol.messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerPort,
    PluginRefused,
    PluginRegistered,
    SocketReplaced,
)
from ...protocol.messages.registration import Admission, Admitted, ClaimRefused, NoHandler
from ...protocol.plugins.info import PluginInfo
from ...protocol.plugins.status import Ending, Finished, Outcome
from ...protocol.registration import following
from ...protocol.registration.failures import (
    REGISTRATION,
    REPLACED,
    Cause,
    PluginRefusedError,
    Refusal,
    Retry,
    StepFailedError,
    cause_after,
    refusal,
    refusal_before_register,
)
from ...protocol.registration.following import (
    NOT_TOLD_AGAIN,
    NOTIFY_TRIES,
    REST,
    AskAgain,
    End,
    Next,
    NotifyAgain,
    Observe,
    Pause,
    Try,
)
from ...protocol.registration.info_deadline import FIRST_LOOK, first_look
from ...protocol.registration.notices import Notice, notice_of
from ...protocol.registration.phases import NOT_DIALED, Phase, ends
from ...protocol.words import StateName
from ...protocol.world.effects import PendingDeregistration
from .conversation import Conversation
from .dial_slots import NO_DESCRIPTORS
from .mail import Mail

#: The first try of a generation is not shown for this many seconds from its dial slot.
SILENT_FOR = 0.2
_ASKING = (Phase.INFO, Phase.ASK_AGAIN)
#: The phases that are shown as soon as they begin, even during a silent first try.
_SHOWN_AT_ONCE = (
    Phase.NOTIFY_DIAL,
    Phase.NOTIFY_PAUSE,
    Phase.LEAVE,
    Phase.WAITING,
    Phase.STALE,
    Phase.PARKED,
    Phase.REGISTERED,
    Phase.OBSERVED,
    Phase.GONE,
)
_ANSWERS = (Admitted, NoHandler, ClaimRefused)
#: A claim waits this many deadlines of a handler: an earlier plugin of the name may take one for each of its calls.
_CLAIM_DEADLINES = 2


class Tries(Mail):
    """Tries to register the socket, to notify the plugin again, or to ask an observed plugin again."""

    __slots__ = ()

    def _enter(self, phase: Phase, reason: str | None = None) -> None:
        """Begin a phase: read pending messages, take over the present settings, and show the phase."""
        now = trio.current_time()
        if self._operation is not None:
            self._finished += (Finished(self._operation, Outcome.OK, now - self._began),)
        self._phase, self._now, self._began, self._operation = phase, now, now, phase.operation
        if self._settings.number:
            # The new settings may trust other users than those by which the process was judged.
            self._judge_again()
        if phase is not Phase.PARKED:
            self.conversation.settings = self._settings
        if self._scope is not None and self._ender is None and (self._pending or self._inbox.waiting):
            self._sort_all()
        self._reason = reason
        is_due = self._silent_until is None or phase in _SHOWN_AT_ONCE
        if phase is Phase.DIAL:
            is_due = reason is not None  # Otherwise it is shown once it has a slot.
        if is_due:
            self._show()
        if self._looked_at:
            self._look_later(self._deadline())
        if self._watched or phase in NOT_DIALED:
            self._watch_liveness()

    async def _try(self, then: Try | NotifyAgain | AskAgain) -> Next:
        """Try once, undo what the try began, except a Register, and return what follows."""
        after: Next = then
        if self._pending or self._inbox.waiting:
            self._forget_triggers()
        with trio.CancelScope() as self._scope:
            match then:
                case Try():
                    after = await self._register_socket(then)
                case NotifyAgain():
                    after = await self._notify_again(then.notify_try)
                case AskAgain():
                    after = await self._ask_again(then.observed)
        if self._ender is not None:
            after = self._interrupted()  # Also if the try ended by itself in the same instant.
        elif self._scope.cancelled_caught:
            after = self._timed_out()
        self._scope = self._ender = None
        if not self._life_reported:
            self._report_life()
        self.conversation.hang_up()
        if self._claims and self._owed is None:
            self._release()
        return End(stopped=True) if self._stopping else after

    async def _register_socket(self, this: Try) -> Next:
        """Dial, GetInfo, claim, Validate, Register, notify; return what follows."""
        self._attempt, self._cause = this.attempt, this.cause
        # Only the first try of a generation is silent.
        if self._shown is None or self._shown.generation != self._socket.generation:
            self._silent_until = math.inf
        try:
            await self._dial()
            info = await self._get_info()
            if self._config.observers is not None:
                return self._observe(info, None)
            handler = await self._claim(info)
            plugin = self._plugin(info, self._socket.generation)
            self._enter(Phase.VALIDATE)
            self._accept(await handler.validate(plugin))
            self._enter(Phase.REGISTER)
            ending = await handler.register(plugin, self._socket.identity, self._owe_deregister)
        except PluginRefusedError as failure:
            return await self._refuse(failure)
        except StepFailedError as failure:
            return self._failed(failure)
        if ending.outcome is not Outcome.OK:
            return await self._refuse_after_register(info, ending)
        return await self._notify_registered()

    async def _dial(self, *, to_notify: PluginInfo | None = None) -> None:
        """Connect. A first attempt waits for a socket that refuses; retries leave that to the backoff."""
        socket, phase = self._socket, Phase.DIAL if to_notify is None else Phase.NOTIFY_DIAL
        # A plugin in a crash loop is treated as a retry: it had time to listen, and new plugins go first.
        patient = self._attempt == 1 and to_notify is None and not socket.short_lives
        uid = None if to_notify is None else to_notify.uid
        held_up = False
        self._enter(phase)
        while not await self.conversation.dial(
            socket.identity, socket.root, self._note_slot, patient=patient, held_up=held_up, uid=uid
        ):
            held_up, self._operation = True, None
            self._enter(phase, NO_DESCRIPTORS)

    def _note_slot(self, since: float) -> None:
        """At the dial slot: show the dial, and have the timers look at the try if it takes long."""
        timeouts = self._settings.timeouts
        # A deadline before the first look needs a look of its own.
        self._looked_at = timeouts.get_info < FIRST_LOOK or timeouts.notify < FIRST_LOOK
        self._next_look = since + FIRST_LOOK
        self._now = self._began = since
        if self._silent_until is not None:
            self._silent_until = since + SILENT_FOR
        elif self._phase is Phase.DIAL:
            self._show()
        self._config.timers.begin(self._inbox, since)

    async def _get_info(self) -> PluginInfo:
        self._enter(Phase.INFO)
        return await self.conversation.get_info(self._on_heard)

    async def _claim(self, info: PluginInfo) -> HandlerPort:
        """Claim the (type, name) of the plugin; return the handler that serves it once it is admitted."""
        self._info = info
        self._enter(Phase.CLAIM)
        found = self.conversation.endpoint
        file = None if found is None else found.identity
        dialed = None if self._life_reported else self.conversation.reached_at
        self._life_reported = self._life_reported or dialed is not None
        claimed = Claimed(self._socket.path, self._socket.generation, info, file, dialed)
        self._claims, self._wanted = True, False
        self._send(self._config.reconciler, claimed)
        if self._unsent:
            await self._send_rest()
        return self._admitted(await self._answer_to(claimed))

    async def _answer_to(self, claimed: Claimed) -> Admission:
        while True:
            await self._inbox.arrival()
            message = self._receive()
            if not isinstance(message, _ANSWERS):
                self._sort(message)
            elif message.claimed is claimed:
                return message

    def _admitted(self, answer: Admission) -> HandlerPort:
        """Return the handler.

        Raises:
          PluginRefusedError: if the plugin is not admitted. The reconciler has then settled its claim.
        """
        match answer:
            case Admitted():
                self._handler, self._wanted = answer.handler, self._wanted or answer.wanted
                return answer.handler
            case NoHandler():
                self._claims = False
                raise PluginRefusedError(answer.reason, cause=answer.cause, no_handler=True, silent=answer.silent)
            case ClaimRefused():
                self._claims = False
                raise PluginRefusedError(answer.reason)

    def _accept(self, ending: Ending) -> None:
        """Go on if the handler accepts the plugin.

        Raises:
          PluginRefusedError: if it does not.
        """
        if ending.outcome is not Outcome.OK:
            self._sort_what_came_meanwhile()
            raise PluginRefusedError(ending.error, ending.outcome, ending.cause, silent=self._is_silent(ending))

    def _is_silent(self, ending: Ending) -> bool:
        """Whether the plugin is not told of this ending. A plugin that called Register waits for the answer."""
        return ending.away and self._info is not None and not self._info.called

    def _owe_deregister(self) -> bool:
        """Note that Register begins, so that Deregister has to follow; return whether another plugin waits."""
        assert self._handler is not None, "a handler was asked"
        assert self._info is not None, "a plugin was claimed"
        self._owed = PendingDeregistration(self._info, self._socket.generation, self._handler)
        return self._wanted

    def _failed(self, failure: StepFailedError) -> Pause:
        """Return the pause after a failed dial, GetInfo or claim. The plugin is not notified of such a failure."""
        self._finish(failure.outcome)
        if self._phase is Phase.CLAIM:
            cause = cause_after(self._cause, failure)
            return following.again(self._info, failure.reason, failure.reason, self._attempt, cause)
        self._pass_turn()
        if failure.retry is Retry.REPLACED:
            return self._pause_until_looked_at(self._attempt - 1)
        attempt, cause = self._attempt, cause_after(self._cause, failure)
        match failure.retry:
            case Retry.STALE:
                return Pause(StateName.STALE, failure.reason, attempt, cause, failures=attempt)
            case Retry.NEVER:
                return following.park(failure.reason, attempt, cause)
            case _:
                return following.wait(failure.reason, attempt, cause)

    def _pass_turn(self) -> None:
        """Let the next plugin try for the name if this one, tried because the name is free, makes no claim.

        If another event brought the try forward, there is no turn to pass, and the message does nothing.
        """
        if self._hurried:
            self._send(self._config.reconciler, ClaimReleased(self._socket.path, self._socket.generation))

    def _pause_until_looked_at(self, attempt: int, notify_try: int | None = None) -> Pause:
        """Wait until the watcher has looked at the path, where another file is now (fault 41).

        The try does not count, since no plugin was reached, and the backoff stays as it is. A report of the watcher
        ends the wait. If the socket of this generation is back, the timer ends it after the shortest delay.
        """
        self._send(self._config.reconciler, SocketReplaced(self._socket.path, self._socket.generation))
        return Pause(StateName.WAITING, REPLACED, attempt, self._cause, notify_try=notify_try)

    async def _refuse(self, failure: PluginRefusedError) -> Next:
        """Tell the plugin why it is refused; return the pause, or the wait for its next call."""
        self._finish(failure.outcome)
        if self._phase is Phase.INFO:
            self._info = failure.info
            if self._config.observers is not None:
                return self._reject(failure, self._attempt)
            self._pass_turn()
        if self._claims:
            self._release()
        if failure.silent:
            return self._wait_for_handler(failure)
        notice = refusal_before_register(failure)
        info = None if self._phase is Phase.INFO else self._info
        if failure.no_handler:
            assert info is not None, "it was claimed"
            then = following.park(notice.error, self._attempt, notice.cause, until_type=info.type)
        else:
            then = following.again(info, notice.error, notice.reason, self._attempt, notice.cause)
        return await self._tell_refusal(notice, then)

    def _wait_for_handler(self, failure: PluginRefusedError) -> Pause:
        """Return the pause of a plugin whose handler is away. Where that was known at the claim, its return ends it."""
        assert self._info is not None, "it was claimed"
        reason, cause = failure.cause or failure.reason, cause_after(self._cause, failure)
        if failure.no_handler:
            return following.park(reason, self._attempt, cause, until_type=self._info.type)
        return following.wait(reason, self._attempt, cause)

    async def _refuse_after_register(self, info: PluginInfo, ending: Ending) -> Next:
        """Tell the plugin that Register failed (behaviour 31). The caller then undoes the Register (behaviour 36)."""
        self._finish(ending.outcome)
        self._sort_what_came_meanwhile()
        for message in self._pending:
            # If the handler was removed or plugind stops, the try ends here, and the plugin is not told.
            if ends(Phase.NOTIFY, message, self._socket.generation, self._type):
                self._end_try(message)
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_silent(ending):
            return self._wait_for_handler(PluginRefusedError(ending.error, ending.outcome, silent=True))
        # The call was in order: the handler failed to do what the plugin asked for, so this is no refusal.
        outcome = Outcome.TIMED_OUT if ending.outcome is Outcome.TIMED_OUT else Outcome.FAILED
        notice = refusal(REGISTRATION, ending.error, ending.cause, outcome)
        then = following.again(info, notice.error, notice.reason, self._attempt, notice.cause)
        return await self._tell_refusal(notice, then)

    async def _tell_refusal(self, notice: Refusal, then: Next) -> Next:
        """Notify the plugin that it is not registered. A failure to notify it changes nothing (behaviour 32)."""
        self._cause, self._why, self._refused = notice.cause, notice.error, then
        # Sent before the call: a plugin that exits because of the refusal may be gone before it has answered.
        self._send(self._config.reconciler, PluginRefused(self._socket.path, self._socket.generation, self._info))
        self._enter(Phase.REFUSE, notice.error)
        try:
            if self._config.notices is not None:
                await self._config.notices.retract(self._socket.path)
            await self.conversation.notify(notice)
        except StepFailedError as failure:
            self._finish(failure.outcome)
        return then

    async def _notify_registered(self) -> Next:
        """Notify the plugin that it is registered. The reconciler already counts it as registered."""
        self._cause = None
        self._enter(Phase.NOTIFY)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._send(self._config.reconciler, PluginRegistered(self._socket.path, self._socket.generation))
        self._notify_try = 1
        return await self._notify()

    async def _notify_again(self, notify_try: int) -> Next:
        """Dial again, only to notify the plugin that it is registered (behaviour 33)."""
        assert self._owed is not None, "the handler has registered the plugin"
        self._notify_try = notify_try
        try:
            await self._dial(to_notify=self._owed.info)
        except StepFailedError as failure:
            return self._not_notified(failure)
        self._enter(Phase.NOTIFY)
        return await self._notify()

    async def _notify(self) -> Next:
        notices, path = self._config.notices, self._socket.path
        notice = None if notices is None else self._notice()
        is_told = notices is not None and notice is not None and notices.has(path, notice)
        if is_told:
            self._operation = None  # The call is left out, and is not counted.
        else:
            try:
                await self.conversation.notify()
            except StepFailedError as failure:
                return self._not_notified(failure)
            if notices is not None and notice is not None:
                notices.keep(path, notice)
        if self._stopping:
            self._owed = None  # The plugin stays registered (behaviour 42).
            return End(stopped=True)
        return NOT_TOLD_AGAIN if is_told else REST

    def _notice(self) -> Notice | None:
        """Return what a notification says to whom; None if that cannot be known."""
        info, peer = self._info, self.conversation.peer
        if info is None or info.called or peer is None:
            return None
        try:
            process = self._config.process_of(peer.pid)
        except (OSError, ValueError):
            return None
        if process is None:
            return None
        return notice_of(info, self._socket.identity, process.pid, process.start_ticks, process.boot_id)

    def _not_notified(self, failure: StepFailedError) -> Next:
        """Return what follows a failure to notify the plugin that it is registered.

        The second try is made at once (fault 36), later ones by backoff. After the last one the registration is rolled
        back (behaviour 33, fault 35). A plugin that does not implement the call is parked, since each try would fail
        (fault 71).
        """
        self._finish(failure.outcome)
        tries, attempt, self._why = self._notify_try, self._attempt, failure.reason
        if failure.retry is Retry.REPLACED:
            return self._pause_until_looked_at(attempt, tries - 1)
        self._cause = cause = cause_after(self._cause, failure)
        if failure.retry is Retry.NEVER:
            return following.park(failure.reason, attempt, cause)
        if tries >= NOTIFY_TRIES:
            return following.wait(failure.reason, attempt, cause)
        if tries == 1:
            return NotifyAgain(2)
        return attrs.evolve(following.wait(failure.reason, attempt, cause), notify_try=tries, failures=tries - 1)

    def _look(self, now: float) -> float | None:
        """Look at a slow try, in the task of the timers; return when to look again, if at all."""
        if self._scope is None or self._scope.cancel_called or now < self._next_look:
            return None
        self._looked_at, self._next_look = True, math.inf
        if self._phase is Phase.INFO and not self._life_reported:
            # Not left to the claim, which may never come: the next socket at the path waits for this life (fault 49).
            self._report_life()
        if self._silent_until is not None and now >= self._silent_until:
            self._now = now
            self._show()
        until = self._deadline()
        if until <= now:
            until = self._look_at_info(now) if self._phase in _ASKING else self._give_up()
        if self._silent_until is not None:
            until = min(until, self._silent_until)
        self._next_look = until
        return None if until == math.inf else until

    def _deadline(self) -> float:
        """Return the next look at the phase, or its deadline. Dials and handler calls have deadlines of their own."""
        match self._phase:
            case Phase.INFO | Phase.ASK_AGAIN:
                return self._began + first_look(self.conversation.settings.timeouts)
            case Phase.CLAIM:
                return self._began + self._seconds_to_claim
            case Phase.NOTIFY | Phase.REFUSE:
                return self._began + self.conversation.settings.timeouts.notify
            case _:
                return math.inf

    @property
    def _seconds_to_claim(self) -> float:
        return _CLAIM_DEADLINES * self.conversation.settings.timeouts.of_handler(self._type or "")

    def _look_at_info(self, now: float) -> float:
        """Look whether the plugin has read the request, and show it if not; return when to look again."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        until = self.conversation.look(self._began)
        if until is None:
            return self._give_up()
        why = self.conversation.why_idle()
        if self._phase is Phase.INFO and why != self._reason:
            self._now, self._reason = now, why
            self._show()
        return until

    def _on_heard(self) -> None:
        """Start the deadline for the rest of the plugin's answer."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        self._look_later(self.conversation.hear(self._began))

    def _look_later(self, time: float) -> None:
        if time < self._next_look:
            self._next_look = time
            self._config.timers.look_at(self._inbox, time)

    def _give_up(self) -> float:
        """Cancel the try, since its phase has passed its deadline."""
        assert self._scope is not None, "a try is under way"
        self._scope.cancel()
        return math.inf

    def _timed_out(self) -> Next:
        """Return what follows a try that was given up at a deadline."""
        if self._phase is Phase.REFUSE:
            self._finish(Outcome.TIMED_OUT)
            return self._refused
        if self._phase is Phase.CLAIM:
            waited = f"no answer in {self._seconds_to_claim:g} s"
            return self._failed(StepFailedError(waited, outcome=Outcome.TIMED_OUT))
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        if self._phase is Phase.NOTIFY:
            return self._not_notified(self.conversation.notify_timed_out())
        return self._failed(self.conversation.info_timed_out())

    def _observe(self, info: PluginInfo, before: str | None) -> Observe:
        """Follow a plugin that has sent its info; another consumer registers it (behaviour 45)."""
        assert self._config.observers is not None, "plugins are observed only in observe mode"
        self._info = info
        self._observed = self._plugin(info, self._socket.generation)
        self._config.observers.begin(self._observed, self._socket.identity)
        return Observe(info, before)

    def _stop_observing(self) -> None:
        observed, self._observed = self._observed, None
        if observed is not None and self._config.observers is not None:
            self._config.observers.end(observed)

    async def _ask_again(self, observed: Observe) -> Next:
        """Ask an observed plugin for its info again. If the info has changed, show it and follow the plugin anew."""
        self._phase, self._attempt = Phase.ASK_AGAIN, 1
        self.conversation.settings = self._settings
        socket = self._socket
        try:
            held_up = False
            while not await self.conversation.dial(
                socket.identity, socket.root, self._note_slot, patient=False, held_up=held_up
            ):
                held_up = True
            self._began = trio.current_time()
            info = await self.conversation.get_info(self._on_heard)
        except PluginRefusedError as failure:
            self._info = failure.info
            return self._reject(failure, 1)
        except StepFailedError as failure:
            return self._failed(failure)
        change = following.changed(observed.info, info)
        if not change:
            return attrs.evolve(observed)
        self._stop_observing()
        return self._observe(info, change)

    def _reject(self, failure: PluginRefusedError, attempt: int) -> Pause:
        """Pause, because the info is not acceptable. The plugin is not told: a registrar that is refused exits."""
        return following.wait(failure.reason, attempt, Cause(failure.reason, answered=True))
