"""The registration actor: one per socket path.

The actor is one coroutine, and its place in the code is its state. It tries to register the socket that is at its path
(:meth:`_Registration._register_socket` is that from top to bottom), pauses or rests, and tries again. What it does next
is a value of ``plugind.protocol.registration.following``.

Four things are data, because they are needed from outside of the frames: the *phase*, which is shown, what is *owed* to
a handler that was asked to register, the *newest* socket at the path, and what was *shown* last.

A try runs in a cancel scope. The rule of the inbox, which is applied in the sender's task, cancels it upon a message
that ends the present phase (``plugind.protocol.registration.phases``). What was begun is undone after that scope was
left: the connection is closed, Deregister is called exactly once for each Register that has begun, and the name is
released. What follows decides whether a registered plugin is deregistered: not if plugind stops. After a crash the
successor of the actor does it (fault 85).

"What happens when a registered plugin's socket is replaced" in ``docs/design.md`` is an example of all of this.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, get_args

import attrs
import trio

from ...protocol import messages as m
from ...protocol.backoff import chance_of
from ...protocol.config_messages import SettingsChanged
from ...protocol.crashes import Crash
from ...protocol.effects import PendingDeregistration, RegistrationCrashedError
from ...protocol.errors import IllegalStepError
from ...protocol.info_deadline import FIRST_LOOK, first_look
from ...protocol.plugins import Plugin, PluginInfo
from ...protocol.registration import following
from ...protocol.registration.failures import (
    CALL_AGAIN,
    REGISTRATION,
    REPLACED,
    Cause,
    PluginRefusedError,
    Refusal,
    Retry,
    StepFailedError,
    cause_after,
    kept,
    refusal,
    refusal_before_register,
)
from ...protocol.registration.following import (
    NOTIFY_TRIES,
    REST,
    AskAgain,
    End,
    Next,
    NotifyAgain,
    Observe,
    Pause,
    Rest,
    Try,
)
from ...protocol.registration.observing import changed
from ...protocol.registration.phases import Phase, answer_to_retry, ends, phase_of
from ...protocol.status import Ending, Finished, Operation, Outcome
from ...protocol.text import quoted
from ...protocol.words import StateName
from ..mailbox import offer, report, send_answer
from .called import CalledConversation
from .config import RegistrationConfig
from .conversation import Conversation
from .dial_slots import NO_DESCRIPTORS
from .inbox import RegistrationInbox

#: Seconds for which the first try of a generation is silent, counted from its dial slot.
SILENT_FOR = 0.2
_TRIES = (Try, NotifyAgain, AskAgain)
#: The phases in which the plugin is asked for its info.
_ASKING = (Phase.INFO, Phase.ASK_AGAIN)
#: The phases in which somebody listens on the socket, as far as is known.
_SERVING = (Phase.REGISTERED, Phase.OBSERVED, Phase.ASK_AGAIN)
#: The phases in which nothing happens at the socket for long, so that the liveness actor looks at it.
_NOT_DIALED = (*_SERVING, Phase.STALE)
#: The phases that are shown as soon as they begin, also if the first try is not over.
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
#: The phases in which what would bring a next try forward has no effect: a call has the newest state of the world.
_UP_TO_DATE = (Phase.CLAIM, Phase.VALIDATE, Phase.REGISTER)
#: The phases in which the actor waits for messages alone. It answers a retry when it reads that.
_PAUSES = (Phase.WAITING, Phase.STALE, Phase.PARKED, Phase.NOTIFY_PAUSE, Phase.REGISTERED, Phase.OBSERVED)
_ANSWERS = (m.Admitted, m.NoHandler, m.ClaimRefused)
_KNOWN: tuple[type[m.RegistrationMessage], ...] = get_args(m.RegistrationMessage)
#: The messages that decide what follows a Deregister or an interrupted try.
_DECISIVE = (m.SocketAppeared, m.SocketVanished, m.StopAsked, m.StopForced, *following.TRIGGERS)
#: How many deadlines of a handler a claim waits: an earlier plugin of the name may take one for each of its calls.
_CLAIM_DEADLINES = 2
#: The largest part of the time until an observed plugin is asked again by which that is earlier or later.
_JITTER = 0.2


def run(
    config: RegistrationConfig,
    inbox: RegistrationInbox,
    appeared: m.SocketAppeared,
    owed: PendingDeregistration | None = None,
    crash: Crash | None = None,
) -> Coroutine[Any, Any, None]:
    """Register the socket that ``appeared``, and run until it is gone and its plugin is deregistered, or plugind stops.

    This returns the actor's one coroutine: each suspended one takes some 250 bytes for each plugin.

    ``crash`` is that of its predecessor, and ``owed`` the plugin that it may have registered: that is deregistered
    first, and then the actor waits (fault 85).

    Raises:
      RegistrationCrashedError: if it crashed, and the handler may have registered its plugin.
    """
    return _Registration(config, inbox, appeared, owed, crash).run()


class _Registration:
    __slots__ = (
        "_attempt",
        "_began",
        "_cause",
        "_claims",
        "_config",
        "_ended",
        "_ender",
        "_finished",
        "_handler",
        "_hurried",
        "_inbox",
        "_info",
        "_life_reported",
        "_looked_at",
        "_newest",
        "_next_look",
        "_notify_try",
        "_now",
        "_observed",
        "_operation",
        "_owed",
        "_pending",
        "_phase",
        "_reason",
        "_refused",
        "_scope",
        "_settings",
        "_shown",
        "_silent_until",
        "_socket",
        "_stopping",
        "_then",
        "_unsent",
        "_until",
        "_wanted",
        "_watched",
        "_why",
        "conversation",
    )

    def __init__(
        self,
        config: RegistrationConfig,
        inbox: RegistrationInbox,
        appeared: m.SocketAppeared,
        owed: PendingDeregistration | None,
        crash: Crash | None,
    ) -> None:
        self._config = config
        #: What the next step goes by.
        self._settings = config.settings
        self._inbox = inbox
        #: The socket that appeared last; the actor comes to it once the plugin before it is deregistered.
        self._newest = appeared
        #: The socket of the present generation.
        self._socket = appeared
        self.conversation = self._converse(appeared)
        self._phase = Phase.WAITING
        #: The time at which the phase began.
        self._now = self._began = trio.current_time()
        #: When the present pause ends by itself.
        self._until = math.inf
        #: The scope of the try under way.
        self._scope: trio.CancelScope | None = None
        #: The message that ends the try under way, and has cancelled its scope.
        self._ender: m.RegistrationMessage | None = None
        #: Whether the try under way was looked at because it takes long, and when it is looked at next.
        self._looked_at = False
        self._next_look = math.inf
        #: Until when a first try is silent, counted from its dial slot; None if it is not silent.
        self._silent_until: float | None = None
        #: Messages that were read during a try, and neither have ended it nor have had their effect.
        self._pending: tuple[m.RegistrationMessage, ...] = ()
        #: What follows the Deregister under way.
        self._then: Next = following.first(appeared, crash)
        #: The number of the present or last try, and what the plugin answered or was told in an earlier one.
        self._attempt = 0
        self._notify_try = 0
        self._cause: Cause | None = None
        #: What follows once the plugin was told that it is refused.
        self._refused: Next = following.Try()
        #: An event has brought the last try of this generation forward (``following``).
        self._hurried = False
        #: A stop was asked for, and the Register or the notification under way may finish.
        self._stopping = False
        #: Whether the name is claimed and not released, and which handler serves the plugin once it is admitted.
        self._claims = False
        self._handler: m.HandlerPort | None = None
        #: Whether another plugin waits for the name.
        self._wanted = False
        #: The Register that has begun and is not undone.
        self._owed = owed
        #: Why it is undone, in words.
        self._why = ""
        #: The registration that has ended, or that ends once the handler has deregistered the plugin.
        self._ended: m.Deregistered | None = None
        #: What the plugin last said of itself in this generation, to be shown; of what was refused only type and name.
        self._info: PluginInfo | None = None
        #: The last report to the status actor, the operations that have ended since, and the reason to be shown.
        self._shown: m.StateChanged | None = None
        self._finished: tuple[Finished, ...] = ()
        #: The operation under way.
        self._operation: Operation | None = None
        self._reason: str | None = None
        #: The plugin that is followed in observe mode.
        self._observed: Plugin | None = None
        #: Whether the liveness actor watches the socket.
        self._watched = False
        #: Whether the reconciler knows that a dial has reached the socket.
        self._life_reported = False
        #: Messages for which there was no room, with their channels.
        self._unsent: tuple[tuple[trio.MemorySendChannel[Any], object], ...] = ()
        if owed is not None:
            # Path and root are the same. A socket that has appeared since has nothing to do with the crash.
            self._then = following.first(appeared, crash if appeared.generation == owed.generation else None)
            self._socket, self._info = attrs.evolve(appeared, generation=owed.generation), owed.info
            self._why = "its actor crashed"
            if owed.registered:
                self._ended = m.Deregistered(owed.generation, owed.info, self._why)

    def _converse(self, appeared: m.SocketAppeared) -> Conversation | CalledConversation:
        if appeared.call is None:
            return Conversation(self._config.conversation, appeared.path, self._settings)
        return CalledConversation(appeared.call, self._settings)

    # --- the whole ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Try, pause and rest, until the end. The rest is in this frame, and in no scope: it is how nearly all wait."""
        then = self._then
        self._inbox.rule, self._inbox.look = self._serve, self._look
        try:
            if self._owed is not None:
                then = await self._leave(then)
            self._begin(then)
            while not isinstance(then, End):
                before = then
                if isinstance(then, _TRIES):
                    then = await self._try(then)
                elif self._pending or self._inbox.waiting:
                    then = self._disturbed(then)
                elif self._until == math.inf:
                    await self._inbox.arrival()
                else:
                    with trio.move_on_at(self._until) as scope:
                        await self._inbox.arrival()
                    if scope.cancelled_caught:
                        then = self._elapsed(then)
                if then is not before:
                    if self._owed is not None and not following.stays_registered(then):
                        then = await self._leave(then)
                    self._begin(then)
                if self._unsent:
                    await self._send_rest()
        except Exception as error:
            await self._clean_up()
            if self._owed is not None:
                registered = self._phase is Phase.REGISTERED or self._ended is not None
                raise RegistrationCrashedError(attrs.evolve(self._owed, registered=registered)) from error
            raise
        finally:
            self._inbox.rule = self._inbox.look = None
            self.conversation.hang_up()

    def _begin(self, then: Next) -> None:
        """Begin with what follows: a pause, a rest or the end. A try begins with its first step."""
        if self._observed is not None and not isinstance(then, Observe | AskAgain):
            self._stop_observing()
        if isinstance(then, Try | Pause) and self._newest.generation != self._socket.generation:
            self._go_to_newest()
        match then:
            case Try() | AskAgain():
                self._until = math.inf
            case NotifyAgain():
                self._until, self._cause = math.inf, kept(self._cause)
            case Pause():
                self._attempt, self._cause = then.attempt, then.cause
                self._pause(then, phase_of(then))
            case Rest():
                self._cause = None
                self._enter(Phase.REGISTERED)
            case Observe():
                self._cause = None
                self._until = self._when_to_ask_again()
                self._enter(Phase.OBSERVED, then.before)
            case End():
                self._end(then)

    def _end(self, end: End) -> None:
        # A plugin that stays registered while plugind stops is still shown in its last state.
        was_leaving = self._phase is Phase.LEAVE
        self._until = math.inf
        if end.stopped and not was_leaving:
            self._phase = Phase.GONE
            return
        self._attempt, self._cause = 0, None
        self._enter(Phase.GONE, "plugind stops" if end.stopped else "the socket was removed")

    def _go_to_newest(self) -> None:
        """Forget the plugin of the generation before. Until now its facts were shown, and sent to its handler."""
        self._socket, self._info, self._life_reported, self._hurried = self._newest, None, False, False
        if isinstance(self.conversation, Conversation) and self._newest.call is None:
            self.conversation.peer = self.conversation.reached_at = None
        else:
            self.conversation = self._converse(self._newest)

    # --- a try --------------------------------------------------------------------------------------------------------

    async def _try(self, then: Try | NotifyAgain | AskAgain) -> Next:
        """Try once; return what follows. What was begun is undone here, except a Register."""
        after: Next = then
        with trio.CancelScope() as self._scope:
            match then:
                case Try():
                    after = await self._register_socket(then)
                case NotifyAgain():
                    after = await self._notify_again(then.notify_try)
                case AskAgain():
                    after = await self._ask_again(then.observed)
        if self._scope.cancelled_caught:
            after = self._timed_out() if self._ender is None else self._interrupted()
        self._scope = self._ender = None
        if not self._life_reported:
            self._report_life()
        self.conversation.hang_up()
        if self._claims and self._owed is None:
            self._release()
        return End(stopped=True) if self._stopping else after

    async def _register_socket(self, this: Try) -> Next:
        """Go through a registration: dial, GetInfo, claim, Validate, Register, notify. Return what follows."""
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
            ending = await handler.register(plugin, self._socket.identity, self._owe)
        except PluginRefusedError as failure:
            return await self._refuse(failure)
        except StepFailedError as failure:
            return self._failed(failure)
        if ending.outcome is not Outcome.OK:
            return await self._refuse_after_register(info, ending)
        return await self._notify_registered()

    async def _dial(self, *, to_notify: PluginInfo | None = None) -> None:
        """Connect. A socket that has refused before is not waited for: it is retried by backoff."""
        socket, phase = self._socket, Phase.DIAL if to_notify is None else Phase.NOTIFY_DIAL
        # A plugin in a crash loop is no new one: others go first, and it has had the time to listen.
        patient = self._attempt == 1 and to_notify is None and not socket.short_lives and phase is Phase.DIAL
        uid = None if to_notify is None else to_notify.uid
        held_up = False
        self._enter(phase)
        while not await self.conversation.dial(
            socket.identity, socket.root, self._note_slot, patient=patient, held_up=held_up, uid=uid
        ):
            held_up, self._operation = True, None
            self._enter(phase, NO_DESCRIPTORS)

    def _note_slot(self, since: float) -> None:
        """Have the try looked at if it takes long, from its dial slot on."""
        self._looked_at, self._next_look = False, since + FIRST_LOOK
        if self._silent_until is not None:
            self._silent_until = since + SILENT_FOR
        self._config.timers.begin(self._inbox, since)

    async def _get_info(self) -> PluginInfo:
        self._enter(Phase.INFO)
        return await self.conversation.get_info(self._on_heard)

    async def _claim(self, info: PluginInfo) -> m.HandlerPort:
        """Claim the (type, name) of the plugin; return the handler that serves it once it is admitted."""
        self._info = info
        self._enter(Phase.CLAIM)
        found = self.conversation.endpoint
        file = None if found is None else found.identity
        dialed = None if self._life_reported else self.conversation.reached_at
        self._life_reported = self._life_reported or dialed is not None
        claimed = m.Claimed(self._socket.path, self._socket.generation, info, file, dialed)
        self._claims, self._wanted = True, False
        self._send(self._config.reconciler, claimed)
        if self._unsent:
            await self._send_rest()
        return self._admitted(await self._answer_to(claimed))

    async def _answer_to(self, claimed: m.Claimed) -> m.Admission:
        while True:
            await self._inbox.arrival()
            message = self._receive()
            if not isinstance(message, _ANSWERS):
                self._sort(message)
            elif message.claimed is claimed:
                return message

    def _admitted(self, answer: m.Admission) -> m.HandlerPort:
        """Return the handler.

        Raises:
          PluginRefusedError: if the plugin is not admitted. The reconciler has settled its claim then.
        """
        match answer:
            case m.Admitted():
                self._handler, self._wanted = answer.handler, self._wanted or answer.wanted
                return answer.handler
            case m.NoHandler():
                self._claims = False
                raise PluginRefusedError(answer.reason, cause=answer.cause, no_handler=True)
            case m.ClaimRefused():
                self._claims = False
                raise PluginRefusedError(answer.reason)

    def _accept(self, ending: Ending) -> None:
        """Go on if the handler accepts the plugin.

        Raises:
          PluginRefusedError: if it does not.
        """
        if ending.outcome is not Outcome.OK:
            raise PluginRefusedError(ending.error, ending.outcome, ending.cause)

    def _owe(self) -> bool:
        """Note that Register begins, so that Deregister has to follow; return whether another plugin waits."""
        assert self._handler is not None, "a handler was asked"
        assert self._info is not None, "a plugin was claimed"
        self._owed = PendingDeregistration(self._info, self._socket.generation, self._handler)
        return self._wanted

    def _plugin(self, info: PluginInfo, generation: int) -> Plugin:
        socket = self._socket
        return Plugin(
            info.type,
            info.name,
            info.endpoint,
            info.versions,
            socket.path,
            generation,
            socket.deprecated,
            self.conversation.is_privileged(info.uid),
            None if socket.call is None else socket.call.pid,
            None if socket.call is None else socket.call.options,
        )

    # --- a try that fails ---------------------------------------------------------------------------------------------

    def _failed(self, failure: StepFailedError) -> Pause:
        """Return the pause after a dial, a GetInfo or a claim that failed: the plugin cannot be told of it."""
        self._finish(failure.outcome)
        if failure.retry is Retry.REPLACED:
            return self._await_look(self._attempt - 1)
        if self._phase is Phase.CLAIM:
            cause = cause_after(self._cause, failure)
            return following.again(self._info, failure.reason, failure.reason, self._attempt, cause)
        self._pass_turn()
        attempt, cause = self._attempt, cause_after(self._cause, failure)
        match failure.retry:
            case Retry.STALE:
                return Pause(StateName.STALE, failure.reason, attempt, cause, failures=attempt)
            case Retry.NEVER:
                return following.park(failure.reason, attempt, cause)
            case _:
                return following.wait(failure.reason, attempt, cause)

    def _pass_turn(self) -> None:
        """Let the next plugin try for the name, if this one tries because the name is free: no claim follows.

        If it was brought forward for another reason, it has no turn to pass, and the message does nothing.
        """
        if self._hurried:
            self._send(self._config.reconciler, m.Released(self._socket.path, self._socket.generation))

    def _await_look(self, attempt: int, notify_try: int | None = None) -> Pause:
        """Wait until the watcher has looked at the path, where another file is (fault 41).

        No plugin was reached, so the try does not count, and the backoff does not change. A report of the watcher ends
        the wait. The timer, with the shortest delay, ends it if the socket of this generation is in its place again.
        """
        self._send(self._config.reconciler, m.SocketReplaced(self._socket.path, self._socket.generation))
        return Pause(StateName.WAITING, REPLACED, attempt, self._cause, notify_try=notify_try)

    async def _refuse(self, failure: PluginRefusedError) -> Next:
        """Tell the plugin that it is not acceptable; return the pause, or the wait for its next call."""
        self._finish(failure.outcome)
        if self._phase is Phase.INFO:
            self._info = failure.info
            if self._config.observers is not None:
                return self._reject(failure, self._attempt)
            self._pass_turn()
        if self._claims:
            self._release()
        told = refusal_before_register(failure)
        info = None if self._phase is Phase.INFO else self._info
        if failure.no_handler:
            assert info is not None, "it was claimed"
            then = following.park(told.error, self._attempt, told.cause, until_type=info.type)
        else:
            then = following.again(info, told.error, told.reason, self._attempt, told.cause)
        return await self._tell_refusal(told, then)

    async def _refuse_after_register(self, info: PluginInfo, ending: Ending) -> Next:
        """Tell the plugin that Register failed (behaviour 31); the Register is undone after that (behaviour 36)."""
        self._finish(ending.outcome)
        if self._ender is None:
            self._sort_all()
        # A handler that refuses to register could not do what the plugin asked for: the call itself was in order.
        outcome = Outcome.TIMED_OUT if ending.outcome is Outcome.TIMED_OUT else Outcome.FAILED
        told = refusal(REGISTRATION, ending.error, ending.cause, outcome)
        then = following.again(info, told.error, told.reason, self._attempt, told.cause)
        return await self._tell_refusal(told, then)

    async def _tell_refusal(self, told: Refusal, then: Next) -> Next:
        """Notify the plugin that it is not registered; whether that arrives makes no difference (behaviour 32)."""
        self._cause, self._why, self._refused = told.cause, told.error, then
        # Before the call: a plugin that exits because of it may be gone before it has answered.
        self._send(self._config.reconciler, m.PluginRefused(self._socket.path, self._socket.generation, self._info))
        self._enter(Phase.REFUSE, told.error)
        try:
            await self.conversation.notify(told)
        except StepFailedError as failure:
            self._finish(failure.outcome)
        return then

    # --- the notification of success ----------------------------------------------------------------------------------

    async def _notify_registered(self) -> Next:
        """Notify the plugin that it is registered. The reconciler counts it as registered from now on."""
        self._cause = None
        self._enter(Phase.NOTIFY)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._send(self._config.reconciler, m.PluginRegistered(self._socket.path, self._socket.generation))
        return await self._notify(1)

    async def _notify_again(self, notify_try: int) -> Next:
        """Notify the plugin on a new connection, and nothing else (behaviour 33)."""
        assert self._owed is not None, "the handler has registered the plugin"
        self._notify_try = notify_try
        try:
            await self._dial(to_notify=self._owed.info)
        except StepFailedError as failure:
            return self._not_notified(failure)
        self._enter(Phase.NOTIFY)
        return await self._notify(notify_try)

    async def _notify(self, notify_try: int) -> Next:
        self._notify_try = notify_try
        try:
            await self.conversation.notify()
        except StepFailedError as failure:
            return self._not_notified(failure)
        if self._stopping:
            self._owed = None  # It stays registered (behaviour 42).
            return End(stopped=True)
        return REST

    def _not_notified(self, failure: StepFailedError) -> Next:
        """Return what follows when the plugin was not notified that it is registered.

        The second try is made at once (fault 36), the others by backoff, and after the last the registration is rolled
        back (behaviour 33, fault 35). A plugin that does not implement the call would fail each try: it is parked
        (fault 71).
        """
        self._finish(failure.outcome)
        tries, attempt, self._why = self._notify_try, self._attempt, failure.reason
        if failure.retry is Retry.REPLACED:
            return self._await_look(attempt, tries - 1)
        self._cause = cause = cause_after(self._cause, failure)
        if failure.retry is Retry.NEVER:
            return following.park(failure.reason, attempt, cause)
        if tries >= NOTIFY_TRIES:
            return following.wait(failure.reason, attempt, cause)
        if tries == 1:
            return NotifyAgain(2)
        return attrs.evolve(following.wait(failure.reason, attempt, cause), notify_try=tries, failures=tries - 1)

    # --- a try that takes long ----------------------------------------------------------------------------------------

    def _look(self, now: float) -> float | None:
        """Look at a try that takes long, in the task of the timers; return when to look again, if at all."""
        if self._scope is None or self._scope.cancel_called or now < self._next_look:
            return None
        self._looked_at, self._next_look = True, math.inf
        if self._phase is Phase.INFO and not self._life_reported:
            # Before the claim, which may never come: the next socket at the path has to wait for that life (fault 49).
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
        """Return when the phase is to be looked at, or is over. A dial and the calls of handlers have their own."""
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
        """Look whether the plugin has read the request; return when to look again. Show why it has more time."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        until = self.conversation.look(self._began)
        if until is None:
            return self._give_up()
        why = self.conversation.why_idle()
        # Nobody is shown that an observed plugin is asked again.
        if self._phase is Phase.INFO and why != self._reason:
            self._now, self._reason = now, why
            self._show()
        return until

    def _on_heard(self) -> None:
        """Give the plugin its second for the rest of its answer, from now on."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        self._look_later(self.conversation.hear(self._began))

    def _look_later(self, time: float) -> None:
        if time < self._next_look:
            self._next_look = time
            self._config.timers.look_at(self._inbox, time)

    def _give_up(self) -> float:
        """End the try, since the time of its phase is over."""
        assert self._scope is not None, "a try is under way"
        self._scope.cancel()
        return math.inf

    def _timed_out(self) -> Next:
        """Return what follows a try that was given up because the time of its phase was over."""
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

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _pause(self, pause: Pause, phase: Phase) -> None:
        """Begin a pause: start its timer, and show it."""
        now = trio.current_time()
        self._until = now + self._seconds_of(pause, now) if pause.has_timer else math.inf
        self._enter(phase, pause.reason)

    def _seconds_of(self, pause: Pause, now: float) -> float:
        delay, chance = self._settings.backoff.delay, self._chance(pause.failures)
        if pause.not_before is None:
            return delay(pause.failures, chance)
        # With jitter as after a failure: plugins that crash together would otherwise be dialed together for ever.
        return max(0.0, pause.not_before - now) + delay(pause.failures, chance) - delay(pause.failures)

    def _elapsed(self, then: Next) -> Next:
        """Return what follows a pause that is over, or a rest in which an observed plugin is to be asked again."""
        self._hurried = False
        if isinstance(then, Observe):
            return AskAgain(then)
        assert isinstance(then, Pause), "only a pause has a timer"
        return following.after_timer(then)

    def _disturbed(self, then: Next) -> Next:
        """Return what follows the pause or the rest upon the next message; the same if nothing else does."""
        message = self._next_message()
        if self._ends(message):
            return self._after(message) or then
        if isinstance(message, m.ListenerFound):
            self._watched = False  # The liveness actor has found what it looked for.
        if isinstance(then, Observe):
            return AskAgain(then) if isinstance(message, m.TryNow) else then
        return self._brought_forward(then, message)

    def _brought_forward(self, then: Next, message: m.RegistrationMessage, *, later: bool = False) -> Next:
        if not isinstance(then, Pause) or not isinstance(message, following.Trigger):
            return then
        brought = following.brought_forward(then, message, hurried=self._hurried, later=later)
        self._hurried = brought.hurried
        return brought.then

    def _receive(self) -> m.RegistrationMessage:
        message = self._inbox.receive_nowait()
        if isinstance(message, m.TryNow):
            self._answer_retry(message)  # Unless the rule of the inbox has done so: the first answer counts.
        return message

    def _next_message(self) -> m.RegistrationMessage:
        if self._pending:
            message, *rest = self._pending
            self._pending = tuple(rest)
        else:
            message = self._receive()
        if isinstance(message, _KNOWN):
            return message
        raise IllegalStepError(f"{message} cannot happen in {self._phase.name}")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _serve(self, message: m.RegistrationMessage) -> bool:
        """Serve a message in the sender's task, as the rule of the inbox; return whether it is done with.

        Whatever else it means waits in the inbox until the actor reads it.
        """
        match message:
            case SettingsChanged():
                self._take_settings(message)
                return True
            case m.ReportAsked():
                self._show_again()
                return True
            case m.NameWanted():
                self._give_way()
                return True
            case m.TryNow() if self._phase not in _PAUSES:
                self._answer_retry(message)
            case m.SocketTouched():
                self._note_owner(message)
            case _:
                pass
        if self._phase is Phase.LEAVE and isinstance(message, _DECISIVE):
            self._then = self._after_leaving(message, self._then)
            return True
        if self._scope is not None and self._ends(message):
            self._end_try(message)
        return False

    def _ends(self, message: m.RegistrationMessage) -> bool:
        """Whether a message ends the present phase. One that is none of an actor's messages is a bug, and ends all."""
        return ends(self._phase, message, self._socket.generation, self._type) or not isinstance(message, _KNOWN)

    def _end_try(self, message: m.RegistrationMessage) -> None:
        """Cancel the try under way because of ``message``, which is read again after that."""
        if self._ender is None:
            assert self._scope is not None, "a try is under way"
            self._ender = message
            self._scope.cancel()

    @property
    def _type(self) -> str | None:
        return None if self._info is None else self._info.type

    def _sort_all(self) -> None:
        """Read the messages that have come, at the beginning of a phase of a try."""
        pending, self._pending = self._pending, ()
        for message in pending:
            self._sort(message)
        while self._inbox.waiting:
            self._sort(self._receive())

    def _sort(self, message: m.RegistrationMessage) -> None:
        """Take a message that was read during a try; keep it if it is to have its effect later."""
        if self._ends(message):
            self._end_try(message)
        elif isinstance(message, following.Trigger):
            if self._phase in _UP_TO_DATE:
                return
        elif isinstance(message, m.StopAsked) and not message.deregister:
            self._stopping = True
            return
        elif self._phase is not Phase.REGISTER:
            return
        self._pending += (message,)

    def _interrupted(self) -> Next:
        """Return what follows a try that was ended by messages."""
        self._now = trio.current_time()
        self._finish(Outcome.SUPERSEDED)
        then: Next | None = None
        while self._pending or self._inbox.waiting:
            message = self._next_message()
            if then is not None:
                then = self._after_leaving(message, then)
            elif message is self._ender or self._ends(message):
                then = self._after(message)
        assert then is not None, "a message has ended the try"
        return then

    def _after(self, message: m.RegistrationMessage) -> Next | None:
        """Return what follows upon a message that ends the present phase, and note why it does."""
        match message:
            case m.SocketAppeared():
                self._why = self._why_replaced(message)
                self._newest = message
                return following.first(message)
            case m.SocketVanished():
                self._why = message.reason
                return End()
            case m.StopAsked() | m.StopForced():
                return self._after_stop(message)
            case m.HandlerWithdrawn():
                self._why = f"the handler for {message.type} was removed"
                return Try(1, kept(self._cause))
            case m.ListenerLost():
                self._why = message.reason
                if self._info is not None and self._info.called:
                    # Without a call there is nothing that a dial could find out.
                    return following.park(f"{message.reason}: {CALL_AGAIN}", self._attempt)
                return Try()
            case _:
                return None

    def _after_stop(self, message: m.StopAsked | m.StopForced) -> End:
        deregister = isinstance(message, m.StopAsked) and message.deregister
        if self._phase is Phase.REGISTERED and not deregister:
            self._owed = None  # It stays registered (behaviour 42).
        anew = isinstance(message, m.StopAsked) and message.anew
        self._why = "plugind starts anew" if anew else "plugind stops"
        return End(stopped=True)

    def _after_leaving(self, message: m.RegistrationMessage, then: Next) -> Next:
        """Return what follows what is being undone, upon a message that came meanwhile."""
        match message:
            case m.SocketAppeared():
                self._newest = message
                after: Next = following.first(message)
            case m.SocketVanished():
                after = End()
            case m.StopAsked() | m.StopForced():
                after = End(stopped=True)
            case _:
                return self._brought_forward(then, message, later=True)
        return then if isinstance(then, End) and then.stopped else after

    def _why_replaced(self, appeared: m.SocketAppeared) -> str:
        """Return why a generation ends: its socket is another one, or is now named for another resource."""
        before, call = self._owed, appeared.call
        if before is None or call is None or call.info.name == before.info.name:
            return "a newer socket is in its place"
        return f"another call of Register (pid {call.pid}) has named its socket for {quoted(call.info.name)}"

    def _answer_retry(self, message: m.TryNow) -> None:
        if message.reply is not None:
            then = self._then if self._phase is Phase.LEAVE else End(stopped=True) if self._stopping else None
            answer = answer_to_retry(self._socket.path, self._phase, then)
            send_answer(message.reply, m.RetryAnswered((answer,)))

    def _give_way(self) -> None:
        self._wanted = True
        if self._phase is Phase.REGISTER and self._owed is not None:
            self._owed.handler.give_way(self._plugin(self._owed.info, self._owed.generation))

    def _take_settings(self, message: SettingsChanged) -> None:
        """Let the next step go by other settings."""
        if message.settings.number > self._settings.number:
            self._settings = message.settings
            self._judge_again()

    def _judge_again(self) -> None:
        """Let a plugin leave whose user is not trusted any more, and one be tried that was parked because of that."""
        peer, phase, settings = self.conversation.peer, self._phase, self._settings
        if peer is None:
            return
        distrust = settings.trust.refusal(peer.uid, peer.pid, settings.users)
        if phase is Phase.PARKED:
            before = self.conversation.settings
            if distrust is None and not before.trust.includes(peer.uid, before.users):
                self._inbox.send_nowait(m.TryNow())
        elif phase in _SERVING and distrust is not None:
            self._inbox.send_nowait(m.ListenerLost(self._socket.path, self._socket.generation, distrust))

    # --- to undo ------------------------------------------------------------------------------------------------------

    async def _leave(self, then: Next) -> Next:
        """Have the handler deregister the plugin; return what follows by then.

        A failed Deregister counts as done (fault 84). The wait for its turn has no deadline, since the name is busy
        until Deregister has run; the handler's call has one.
        """
        owed = self._owed
        assert owed is not None, "a Register has begun"
        if self._phase is Phase.REGISTERED:
            self._ended = m.Deregistered(owed.generation, owed.info, self._why)
        if isinstance(then, Pause):
            self._cause = then.cause
        else:
            self._cause = None
        self._attempt, self._then = 0, then
        self._until = math.inf
        self._enter(Phase.LEAVE, self._why)
        if self._unsent:
            await self._send_rest()
        ending = await owed.handler.deregister(self._plugin(owed.info, owed.generation))
        self._now = trio.current_time()
        self._finish(ending.outcome)
        self._owed, self._why = None, ""
        self._release()
        return self._then

    def _release(self) -> None:
        """Release the name that is claimed."""
        self._claims = False
        self._send(self._config.reconciler, m.Released(self._socket.path, self._socket.generation))

    async def _clean_up(self) -> None:
        """Leave nothing behind that others would wait for, and nothing unsaid, after a crash."""
        if self._silent_until is not None:
            self._show()
        self._stop_observing()
        if isinstance(self.conversation, CalledConversation):
            self.conversation.leave()
        await self._send_rest()
        await report(self._config.liveness, m.UnwatchLiveness(self._newest.path))

    # --- observe mode -------------------------------------------------------------------------------------------------

    def _observe(self, info: PluginInfo, before: str | None) -> Observe:
        """Follow a plugin that has said what it is; another consumer registers it (behaviour 45)."""
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
        """Ask an observed plugin for its info again. If it says something else, it is followed anew and shown so."""
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
        change = changed(observed.info, info)
        if not change:
            return attrs.evolve(observed)
        self._stop_observing()
        return self._observe(info, change)

    def _reject(self, failure: PluginRefusedError, attempt: int) -> Pause:
        """Wait because the info is not acceptable, without a word to the plugin: a registrar that is refused exits."""
        return following.wait(failure.reason, attempt, Cause(failure.reason, answered=True))

    def _when_to_ask_again(self) -> float:
        again = self._config.observe_again
        if again is None:
            return math.inf
        # All times of one generation are the same: those of several sockets are to differ.
        return trio.current_time() + again * (1 + _JITTER * (2 * self._chance(0) - 1))

    def _chance(self, attempt: int) -> float:
        return chance_of(self._config.seed, self._socket.path, self._socket.generation, attempt)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, reason: str | None = None) -> None:
        """Begin a phase: read what has come, go by the present settings, and show it."""
        now = trio.current_time()
        if self._operation is not None:
            self._finished += (Finished(self._operation, Outcome.OK, now - self._began),)
        self._phase, self._now, self._began, self._operation = phase, now, now, phase.operation
        if self._settings.number:
            # Other users may be trusted since its process was judged.
            self._judge_again()
        if phase is not Phase.PARKED:
            self.conversation.settings = self._settings
        if self._scope is not None and self._ender is None and (self._pending or self._inbox.waiting):
            self._sort_all()
        self._reason = reason
        if self._silent_until is None or phase in _SHOWN_AT_ONCE or (phase is Phase.DIAL and reason is not None):
            self._show()
        if self._looked_at:
            self._look_later(self._deadline())
        if self._watched or phase in _NOT_DIALED:
            self._watch_liveness()

    def _report_life(self) -> None:
        """Report when a dial first reached the socket of this generation, if one has."""
        since = self.conversation.reached_at
        if since is not None:
            self._life_reported = True
            self._send(self._config.reconciler, m.SocketDialed(self._socket.path, self._socket.generation, since))

    def _finish(self, outcome: Outcome) -> None:
        """Note how the operation under way ended, if there is one. One that ends well may be left to :meth:`_enter`."""
        operation, self._operation = self._operation, None
        if operation is not None:
            self._finished += (Finished(operation, outcome, trio.current_time() - self._began),)

    def _show(self) -> None:
        """Report the phase, unless nothing that is shown has changed."""
        name, shown, finished, socket, reason = (
            self._phase.state,
            self._shown,
            self._finished,
            self._socket,
            self._reason,
        )
        self._silent_until = None
        cause = reason if self._cause is None else str(self._cause)
        self._finished = ()
        if (
            # That an observed plugin was asked again is no news.
            (not finished or name is StateName.OBSERVED)
            and shown is not None
            and shown.state is name
            and shown.reason == reason
            and shown.cause == cause
            and shown.attempt == self._attempt
            and shown.generation == socket.generation
        ):
            return
        now, peer = self._now, self.conversation.peer
        ended = None
        if self._ended is not None and (self._phase is not Phase.LEAVE or self._ended.generation < socket.generation):
            ended, self._ended = self._ended, None
        stopped = self._phase is Phase.GONE and reason == "plugind stops"
        self._shown = m.StateChanged(
            socket.path,
            socket.root,
            socket.generation,
            name,
            now,
            reason,
            self._attempt,
            self._until if self._until < math.inf and name is not StateName.OBSERVED else None,
            self._info,
            now - socket.time if self._phase is Phase.REGISTERED else None,
            socket.deprecated,
            None if peer is None else peer.uid,
            None if peer is None else peer.pid,
            finished,
            cause,
            ended,
            stopped,
            socket.identity.owner,
            socket.last_known,
        )
        self._send(self._config.status, self._shown)

    def _show_again(self) -> None:
        """Report the present state now: it is silent, or the status or the liveness actor has lost what it was told."""
        if self._silent_until is not None:
            self._show()
            return
        if self._shown is not None:
            self._send(self._config.status, attrs.evolve(self._shown, finished=(), deregistered=None))
        self._watched = False
        self._watch_liveness()

    def _note_owner(self, message: m.SocketTouched) -> None:
        """Show the user that the file of the socket belongs to now: plugins change that once they have bound it."""
        socket, owner = self._socket, message.owner
        if owner is None or message.generation != socket.generation or owner == socket.identity.owner:
            return
        self._socket = attrs.evolve(socket, identity=attrs.evolve(socket.identity, owner=owner))
        if self._shown is not None and self._shown.generation == socket.generation:
            self._shown = attrs.evolve(self._shown, owner=owner)
            self._send(self._config.status, m.OwnerChanged(socket.path, socket.generation, owner))

    def _watch_liveness(self) -> None:
        """Have the liveness actor watch the socket while it is registered or stale, and so not dialed (fault 39)."""
        # A stale socket is watched on while it is dialed: it may refuse again, and there may be thousands of them.
        wanted = self._phase in _NOT_DIALED or (self._watched and self._phase.state is StateName.DIALING)
        if wanted is self._watched:
            return
        self._watched = wanted
        self._send(self._config.liveness, self._liveness() if wanted else m.UnwatchLiveness(self._socket.path))
        if self._phase is Phase.STALE:
            gone = m.ListenerChanged(self._socket.path, self._socket.generation, listening=False)
            self._send(self._config.reconciler, gone)
            # The next dial that reaches the socket tells the reconciler that its life goes on.
            self._life_reported, self.conversation.reached_at = False, None

    def _liveness(self) -> m.WatchLiveness:
        socket, conversation, info = self._socket, self.conversation, self._info
        path, identity, root, generation = socket.path, socket.identity, socket.root, socket.generation
        if self._phase not in _SERVING or info is None:
            return m.WatchLiveness(path, generation, self._inbox, registered=False, identity=identity, root=root)
        pid = 0 if conversation.peer is None else conversation.peer.pid
        return m.WatchLiveness(
            path,
            generation,
            self._inbox,
            registered=True,
            identity=identity,
            root=root,
            endpoint=info.endpoint,
            pid=pid,
            dialed=conversation.dialed_at,
            endpoint_missing=conversation.endpoint is not None and conversation.endpoint.kind is None,
        )

    # --- to send ------------------------------------------------------------------------------------------------------

    def _send(self, channel: trio.MemorySendChannel[Any], message: object) -> None:
        """Send ``message`` after those that were sent before; what finds no room is sent by :meth:`_send_rest`."""
        if self._unsent or not offer(channel, message):
            self._unsent += ((channel, message),)

    async def _send_rest(self) -> None:
        """Send what there was no room for."""
        while self._unsent:
            channel, message = self._unsent[0]
            await report(channel, message)
            self._unsent = self._unsent[1:]
