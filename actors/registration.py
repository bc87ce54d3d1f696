"""The registration actor: one per socket path.

It performs what ``plugind.protocol.lifecycle`` commands, and owns what one registration needs: the conversation, the
deadline of the step under way, the backoff's timer, the ticket of the ask that it waits for. Calls to the plugin run in
line, in this one task, under a cancel scope that is both their deadline and the inbox's bell (``actors.mailbox``).
"""

from __future__ import annotations

import math
import random
from typing import TypeVar, assert_never

import attrs
import trio

from ..protocol import lifecycle, states
from ..protocol import messages as m
from ..protocol.backoff import Backoff
from ..protocol.config import Timeouts
from ..protocol.effects import PendingDeregistration
from ..protocol.plugins import Plugin, PluginInfo
from ..protocol.status import Finished, Operation, Outcome, StateName
from .conversation import Conversation, ConversationConfig
from .mailbox import RegistrationInbox

T = TypeVar("T")


@attrs.frozen
class RegistrationConfig:
    """What all registration actors of a node have in common."""

    conversation: ConversationConfig
    timeouts: Timeouts
    backoff: Backoff
    rng: random.Random
    reconciler: trio.MemorySendChannel[m.ReconcilerMessage]
    status: trio.MemorySendChannel[m.StatusMessage]


async def run(
    config: RegistrationConfig,
    inbox: RegistrationInbox,
    appeared: m.SocketAppeared,
    to_deregister: PendingDeregistration | None = None,
) -> None:
    """Register the socket that ``appeared``, and run until it is gone and its plugin is deregistered.

    ``to_deregister`` is what a predecessor that crashed may have registered; it is deregistered first.
    """
    actor = _Registration(config, inbox, appeared)
    if to_deregister is None:
        first = lifecycle.start(appeared)
    else:
        actor.handler = to_deregister.handler
        first = lifecycle.resume(appeared, to_deregister.info, to_deregister.generation)
    try:
        await actor.run(*first)
    except Exception:
        actor.withdraw()
        raise
    finally:
        actor.hang_up()


_IN_LINE = (states.Dial, states.AskInfo, states.Notify)

_OPERATIONS: dict[type[states.Command], Operation] = {
    states.Dial: Operation.DIAL,
    states.AskInfo: Operation.GET_INFO,
    states.AskValidate: Operation.VALIDATE,
    states.AskRegister: Operation.REGISTER,
    states.Notify: Operation.NOTIFY,
    states.AskDeregister: Operation.DEREGISTER,
}


class _Registration:
    __slots__ = (
        "_appeared",
        "_asked",
        "_began",
        "_commands",
        "_config",
        "_conversation",
        "_deadline",
        "_finished",
        "_inbox",
        "_info",
        "_now",
        "_over",
        "_path",
        "_rang",
        "_scope",
        "_shown",
        "_state",
        "_ticket",
        "_waiting",
        "handler",
    )

    def __init__(self, config: RegistrationConfig, inbox: RegistrationInbox, appeared: m.SocketAppeared) -> None:
        self._config = config
        self._inbox = inbox
        self._scope: trio.CancelScope
        #: The inbox's bell rang, so that the scope is used up.
        self._rang = False
        self._state: states.State
        #: What is still to be performed of the last step, and what it ended.
        self._commands: tuple[states.Command, ...] = ()
        self._finished: Finished | None = None
        self._over = False
        #: The time of the present step.
        self._now = trio.current_time()
        self._appeared = appeared
        self._path = appeared.path
        self._conversation = Conversation(config.conversation, appeared.path)
        #: Where the plugin that was admitted is handled.
        self.handler: m.Address[m.HandlerMessage] | None = None
        #: The number of the ask that is waited for; answers to others come too late.
        self._ticket = 0
        #: What the handler was asked, while its answer is waited for.
        self._asked: m.Ask | None = None
        #: The command whose outcome is waited for, when its wait began, and when it is given up.
        self._waiting: states.WaitingCommand | None = None
        self._began = 0.0
        self._deadline = math.inf
        #: What was last learned in this generation, to be shown.
        self._info: PluginInfo | None = None
        self._shown: m.StateChanged | None = None

    # --- the loop ---

    async def run(self, state: states.State, commands: tuple[states.Command, ...]) -> None:
        self._state, self._commands = state, commands
        # One scope serves many waits, since in a storm a new one for each would cost more than the waits. It is
        # renewed once it was cancelled, by the deadline of a wait or by the bell.
        while not self._over:
            with trio.CancelScope() as self._scope:
                self._rang = False
                await self._live()
            if self._scope.cancelled_caught and (event := self._cut_off()) is not None:
                self._advance(event)

    async def _live(self) -> None:
        """Go from state to state, until the end or until the scope is used up."""
        # Looked at before anything is performed: what was begun is not to be cut off half-way.
        while not self._rang and self._now < self._scope.deadline:
            await self._perform()
            await self._show()
            if isinstance(self._state, states.Gone):
                self._over = True
                return
            self._advance(await self._next_event())

    def _advance(self, event: states.Event) -> None:
        self._now = trio.current_time()
        self._state, self._commands = lifecycle.step(self._state, event)
        self._finished = self._settle(event, self._commands) or self._finished

    async def _report(self, channel: trio.MemorySendChannel[T], message: T) -> None:
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            # The deadline of the last wait is still on the scope, and is not meant for this one.
            self._scope.deadline = math.inf
            await channel.send(message)

    async def _next_event(self) -> states.Event:
        """Return the outcome of what is waited for, or what a message that came first means; see :meth:`_cut_off`."""
        while True:
            if self._inbox.waiting:
                message = self._inbox.receive_nowait()
            elif isinstance(self._waiting, _IN_LINE):
                return await self._call(self._waiting)
            else:
                self._mind_deadline()
                message = await self._inbox.receive()
            event = await self._as_event(message)
            if event is not None:
                return event

    def _mind_deadline(self) -> None:
        """Set the deadline of a wait for a message, if need be.

        One that was left by a call ends the scope too early for this wait, and is then set anew (:meth:`run`): that is
        seldom, and to set it for each wait costs more. But who waits for nothing is not to be woken for nothing.
        """
        if self._waiting is None or self._deadline < self._scope.deadline:
            self._set_deadline()

    def _set_deadline(self) -> None:
        if self._scope.deadline != self._deadline:
            self._scope.deadline = self._deadline

    def _cut_off(self) -> states.Event | None:
        """Return the event that follows from the end of a wait by its scope: None if the inbox's bell rang."""
        if trio.current_time() < self._deadline:
            return None
        if isinstance(self._waiting, states.StartTimer):
            return states.TimerElapsed()
        waited = f"no answer in {self._deadline - self._began:g} s"
        match self._waiting:
            case states.AskInfo():
                waited = self._conversation.get_info_failed(waited)
            case states.Notify():
                waited = self._conversation.notify_failed(waited)
            case states.AskValidate():
                self.withdraw()
            case _:
                pass
        return states.Failed(waited, outcome=Outcome.TIMED_OUT)

    async def _as_event(self, message: m.RegistrationMessage) -> states.Event | None:
        match message:
            case m.HandlerAnswered():
                if message.ticket != self._ticket:
                    return None
                if message.outcome is Outcome.OK:
                    return states.HandlerAccepted()
                return states.Failed(message.error, outcome=message.outcome)
            case m.Admitted():
                if message.ticket != self._ticket:
                    return None
                self.handler = message.handler
                return message
            case m.NoHandler() | m.ClaimRefused():
                return message if message.ticket == self._ticket else None
            case m.SocketAppeared():
                self._appeared, self._info, self._conversation.peer = message, None, None
                return message
            case m.ReportAsked():
                await self._repeat()
                return None
            case _:
                return message

    # --- commands ---

    async def _perform(self) -> None:
        commands, self._commands = self._commands, ()
        for command in commands:
            match command:
                case states.HangUp():
                    self.hang_up()
                case states.Announce():
                    registered = m.PluginRegistered(self._path, self._state.generation)
                    await self._report(self._config.reconciler, registered)
                case states.Release():
                    await self._report(self._config.reconciler, m.Released(self._path, command.generation))
                case _:
                    await self._begin(command, self._state)

    async def _begin(self, command: states.WaitingCommand, state: states.State) -> None:
        self._waiting, self._began = command, self._now
        timeouts = self._config.timeouts
        match command:
            case states.Dial():
                self._deadline = math.inf  # The dialer keeps its own, and says what it waited for.
            case states.AskInfo():
                self._deadline = self._began + timeouts.get_info
            case states.Notify():
                self._deadline = self._began + timeouts.notify
            case states.StartTimer():
                chance = self._config.rng.random()
                self._deadline = self._began + self._config.backoff.delay(command.failures, chance)
            case states.ClaimName():
                self._info = command.info
                claimed = m.Claimed(self._path, state.generation, command.info, self._new_ticket())
                await self._report(self._config.reconciler, claimed)
            case states.AskValidate():
                self._ask(m.Validate, command.info, state.generation)
            case states.AskRegister():
                self._ask(m.Register, command.info, state.generation)
            case states.AskDeregister():
                self._ask(m.Deregister, command.info, command.generation)
                # Never given up, since its claim keeps others from the name until it has run. It ends all the same:
                # the handler actor answers all that it is asked, also after a crash, each call has its deadline, and
                # no more wait before it than there are instances of the name.
                self._deadline = math.inf
            case _:
                assert_never(command)

    def _new_ticket(self) -> int:
        # A safety net: twice the handler's deadline, as the call before it under the same name may use up one. What is
        # given up does no harm. A claim is given back, a Validate withdrawn, and a Register undone by the Deregister
        # that follows it in the lane of its name.
        self._deadline = self._began + 2 * self._config.timeouts.handler
        self._ticket += 1
        return self._ticket

    def _ask(
        self, ask: type[m.Validate] | type[m.Register] | type[m.Deregister], info: PluginInfo, generation: int
    ) -> None:
        assert self.handler is not None, "nobody is asked before the plugin is admitted"
        plugin = Plugin(
            info.type, info.name, info.endpoint, info.versions, self._path, generation, self._appeared.deprecated
        )
        self._asked = ask(plugin, self._new_ticket(), self._inbox)
        self.handler.send_nowait(self._asked)

    def withdraw(self) -> None:
        """Let go of a Validate that was asked, and that nobody waits for any more: one that hangs holds the name."""
        if isinstance(self._asked, m.Validate) and self.handler is not None:
            self.handler.send_nowait(m.Withdraw(self._asked))

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        self._conversation.hang_up()

    # --- calls to the plugin ---

    async def _call(self, command: states.Dial | states.AskInfo | states.Notify) -> states.Event:
        self._set_deadline()
        self._inbox.arm(self._scope, self._interrupts)
        try:
            match command:
                case states.Dial():
                    return await self._conversation.dial(patient=command.patient)
                case states.AskInfo():
                    return await self._conversation.get_info()
                case states.Notify():
                    return await self._conversation.notify(command.error)
        finally:
            self._rang = self._inbox.disarm()
        assert_never(command)

    def _interrupts(self, message: m.RegistrationMessage) -> bool:
        return lifecycle.interrupts(self._state, message)

    # --- what is shown ---

    def _settle(self, event: states.Event, commands: tuple[states.Command, ...]) -> Finished | None:
        """Say which operation the event ended, and stop waiting for its outcome."""
        outcome = _outcome_of(event)
        if outcome is None and not commands:
            return None  # The event changed nothing: what was waited for is waited for on.
        if outcome is None:
            self.withdraw()
        operation = None if self._waiting is None else _OPERATIONS.get(type(self._waiting))
        self._waiting, self._asked, self._deadline = None, None, math.inf
        # Whatever was asked, its answer comes too late from here on.
        self._ticket += 1
        if operation is None:
            return None
        return Finished(operation, outcome or Outcome.SUPERSEDED, self._now - self._began)

    async def _show(self) -> None:
        state, finished = self._state, self._finished
        self._finished = None
        if isinstance(state, states.Gone) and state.stopped and not self._was_leaving:
            return  # plugind stops, and the plugin stays what it was.
        name = states.name_of(state)
        reason, attempt = _words_of(state)
        shown = self._shown
        if (
            finished is None
            and shown is not None
            and shown.state is name
            and shown.reason == reason
            and shown.attempt == attempt
            and shown.generation == state.generation
        ):
            return
        now, peer = self._now, self._conversation.peer
        self._shown = m.StateChanged(
            self._path,
            self._appeared.root,
            state.generation,
            name,
            now,
            reason,
            attempt,
            self._deadline if isinstance(self._waiting, states.StartTimer) else None,
            self._info,
            now - self._appeared.time if isinstance(state, states.Registered) else None,
            self._appeared.deprecated,
            None if peer is None else peer.uid,
            None if peer is None else peer.pid,
            finished,
        )
        await self._report(self._config.status, self._shown)

    @property
    def _was_leaving(self) -> bool:
        return self._shown is not None and self._shown.state is StateName.LEAVING

    async def _repeat(self) -> None:
        if self._shown is not None:
            await self._report(self._config.status, attrs.evolve(self._shown, finished=None))


_SUCCESSES = (
    states.Dialed,
    states.InfoReceived,
    states.HandlerAccepted,
    states.Notified,
    states.TimerElapsed,
    m.Admitted,
    m.NoHandler,
    m.ClaimRefused,
)


def _outcome_of(event: states.Event) -> Outcome | None:
    """Return how the operation ended whose outcome ``event`` is; None for messages, which are no outcome."""
    if isinstance(event, _SUCCESSES):
        return Outcome.OK
    match event:
        case states.InfoRejected():
            return Outcome.REFUSED
        case states.Failed():
            return event.outcome
        case _:
            return None


def _words_of(state: states.State) -> tuple[str | None, int]:
    """Return what ``state`` has for a reason, and which attempt it is; 0 where there is none any more."""
    match state:
        case states.Waiting() | states.Stale() | states.Parked():
            return state.reason, state.attempt
        case states.Refusing():
            return state.error, state.attempt
        case states.Leaving():
            return state.reason, 0
        case states.Gone():
            return "plugind stops" if state.stopped else "the socket was removed", 0
        case _:
            return None, state.attempt
