"""The registration actor: one per socket path.

The actor holds one state of ``plugind.protocol.lifecycle`` and performs the commands that each step returns. It owns
what one registration needs: the conversation with the plugin, the deadline of the command under way, the timer of the
backoff and the ticket of the ask under way. It is one task, and repeats:

1. Perform the commands of the last step. The last of them may have an outcome.
2. Send the new state to the status actor, if anything that is shown has changed.
3. Wait for the next event: a message from the inbox, or the outcome of that command. Calls to the plugin are made here,
   in line; the outcome of any other command is a message too, or the end of its deadline.
4. Take the step that the event leads to. A step that ends the operation under way makes later answers to it void, and
   withdraws a Validate that is not answered yet, and a Register if the socket is gone. No command asks for that, since
   it holds for every such step.

"What happens when a registered plugin's socket is replaced" in ``docs/design.md`` is an example of all of this.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, assert_never

import attrs
import trio

from ..protocol import lifecycle, states
from ..protocol import messages as m
from ..protocol.config_messages import SettingsChanged
from ..protocol.crashes import Crash
from ..protocol.effects import PendingDeregistration, RegistrationCrashedError
from ..protocol.plugins import Plugin, PluginInfo
from ..protocol.shown import OPERATIONS, outcome_of, words_of
from ..protocol.status import Finished, Outcome, StateName
from .asks import Asks
from .called import CalledConversation
from .conversation import Conversation
from .mailbox import RegistrationInbox, Wait, report, send_answer
from .registration_config import RegistrationConfig, seconds_for


def run(
    config: RegistrationConfig,
    inbox: RegistrationInbox,
    appeared: m.SocketAppeared,
    to_deregister: PendingDeregistration | None = None,
    crash: Crash | None = None,
) -> Coroutine[Any, Any, None]:
    """Register the socket that ``appeared``, and run until it is gone and its plugin is deregistered, or plugind stops.

    This returns the actor's one coroutine: each suspended one takes some 250 bytes for each plugin.

    ``crash`` is that of its predecessor, and ``to_deregister`` the plugin that it may have registered: that is
    deregistered first, and then the actor waits (fault 85).

    Raises:
      RegistrationCrashedError: if it crashed, and the handler may have registered its plugin.
    """
    actor = _Registration(config, inbox, appeared)
    if to_deregister is None or crash is None:
        actor.begin(*lifecycle.start(appeared, crash))
    else:
        actor.take_over(to_deregister)
        actor.begin(*lifecycle.resume(appeared, to_deregister.info, to_deregister.generation, crash))
    return actor.run()


#: The commands that are calls to the plugin, made in line.
_CALLS = (states.AskInfo, states.Notify, states.Dial)
#: The messages that say what is at the path now.
_SOCKET_MESSAGES = (m.SocketAppeared, m.SocketVanished)
#: Answers to asks, of which each carries the ticket of its ask.
_ANSWERS = (m.HandlerAnswered, m.Admitted, m.NoHandler, m.ClaimRefused)


class _Next(enum.Enum):
    """What follows once the actor has left a cancel scope."""

    #: The next scope.
    SCOPE = "scope"
    #: Nothing until a message comes.
    REST = "rest"
    #: Nothing.
    END = "end"


class _Registration:
    __slots__ = (
        "_answer",
        "_began",
        "_commands",
        "_config",
        "_deferred",
        "_ending",
        "_finished",
        "_goes_on",
        "_in_progress",
        "_inbox",
        "_info",
        "_life_reported",
        "_newest",
        "_now",
        "_observed",
        "_settings",
        "_shown",
        "_socket",
        "_state",
        "_watched",
        "asks",
        "conversation",
        "wait",
    )

    def __init__(self, config: RegistrationConfig, inbox: RegistrationInbox, appeared: m.SocketAppeared) -> None:
        self._config = config
        #: What the next commands go by.
        self._settings = config.settings
        self._inbox = inbox
        self.wait = Wait(inbox)
        self.asks = Asks(inbox)
        self.conversation = self._converse(appeared)
        #: The socket of the generation that the state is in.
        self._socket = appeared
        #: The socket that appeared last; the state comes to it once the plugin before it is deregistered.
        self._newest = appeared
        self._state: states.State
        #: Commands of the last step that are not yet performed, and the operation which that step ended.
        self._commands: tuple[states.Command, ...] = ()
        self._finished: Finished | None = None
        #: The time of the last step.
        self._now = trio.current_time()
        #: The command whose outcome is pending, and when it began. Its deadline is that of ``_wait``.
        self._in_progress: states.WaitingCommand | None = None
        self._began = 0.0
        #: Whether the operation in progress is a GetInfo that was looked at and goes on, and the messages that came by
        #: then and wait until it is over.
        self._goes_on = False
        self._deferred: tuple[m.RegistrationMessage, ...] = ()
        #: The answer of the handler to an ask for which it was called in this task; it is read after the inbox.
        self._answer: m.HandlerAnswered | None = None
        #: The registration that ends once the handler has deregistered the plugin.
        self._ending: m.Deregistered | None = None
        #: What the plugin last said of itself in this generation, to be shown; of what was refused only type and name.
        self._info: PluginInfo | None = None
        #: The last report to the status actor.
        self._shown: m.StateChanged | None = None
        #: The plugin that is followed in observe mode.
        self._observed: Plugin | None = None
        #: Whether the liveness actor watches the socket.
        self._watched = False
        #: Whether the reconciler knows that a dial has reached the socket.
        self._life_reported = False

    def _converse(self, appeared: m.SocketAppeared) -> Conversation | CalledConversation:
        if appeared.call is None:
            return Conversation(self._config.conversation, appeared.path, self._settings)
        return CalledConversation(appeared.call, self._settings)

    def take_over(self, pending: PendingDeregistration) -> None:
        """Begin in the generation that a predecessor may have registered. Its path and its root are the same."""
        self.asks.handler = pending.handler
        self._socket, self._info = attrs.evolve(self._newest, generation=pending.generation), pending.info
        if pending.registered:
            self._ending = m.Deregistered(pending.generation, pending.info, "its actor crashed")

    def pending(self) -> PendingDeregistration | None:
        """Return what the handler still has to deregister after a crash."""
        info, handler = states.to_deregister(self._state), self.asks.handler
        if info is None or handler is None:
            return None
        registered = self._ending is not None or isinstance(self._state, states.Registered)
        return PendingDeregistration(info, self._state.generation, handler, registered)

    # --- the loop ---

    def begin(self, state: states.State, commands: tuple[states.Command, ...]) -> None:
        """Take the first step."""
        self._state, self._commands = state, commands

    async def run(self) -> None:
        """Run until ``Gone``, in one cancel scope after another, and in none while nothing is under way.

        A scope ends when a deadline has passed, which is an event, or when a message has interrupted a call. That
        message is still in the inbox, and is the first thing to be read under the next scope. A registered plugin is at
        rest nearly always, so that its actor waits here: without a scope, and in a single coroutine.
        """
        then = _Next.SCOPE
        try:
            while then is not _Next.END:
                then = _Next.SCOPE
                with self.wait.renew():
                    then = await self._run_until_scope_ends()
                if then is _Next.REST:
                    await self.wait.at_rest()
                self._go_on(rested=then is _Next.REST)
        except Exception as error:
            await self._clean_up()
            if (pending := self.pending()) is not None:
                raise RegistrationCrashedError(pending) from error
            raise
        finally:
            self.conversation.hang_up()

    def _go_on(self, *, rested: bool) -> None:
        """Take the step to which the message leads that has ended a rest, or the end of a deadline."""
        event: states.Event | None = None
        if rested:
            event = self._receive(self._inbox.receive_nowait())
        elif self.wait.timed_out():
            event = self._time_out()
        if event is not None:
            self._advance(event)

    async def _clean_up(self) -> None:
        """Leave nothing behind that others would wait for, after a crash."""
        self.asks.withdraw()
        self._stop_observing()
        if isinstance(self.conversation, CalledConversation):
            self.conversation.leave()
        await self.wait.send_rest()
        await report(self._config.liveness, m.UnwatchLiveness(self._newest.path))

    async def _run_until_scope_ends(self) -> _Next:
        """Go from state to state, until the scope has to be renewed or is not needed."""
        # This is checked before commands are performed, since a cancelled scope would interrupt them half-way.
        while not self.wait.is_used_up(self._now):
            self._perform()
            self._show()
            if self._watched or isinstance(self._state, _NOT_DIALED):
                self._watch_liveness()
            if self.wait.unsent:
                await self.wait.until_sent()
            if isinstance(self._state, states.Gone):
                return _Next.END
            if self.asks.to_call is not None:
                self._answer = await self.asks.call_handler()
            if self._in_progress is None and self._has_read_all():
                return _Next.REST
            self._advance(await self._next_event())
        return _Next.SCOPE

    def _has_read_all(self) -> bool:
        return self._answer is None and not self._inbox.waiting and not self._deferred

    def _advance(self, event: states.Event) -> None:
        self._now = trio.current_time()
        before = self._state
        if isinstance(event, states.InfoRejected):
            self._info = event.info
        self._state, self._commands = lifecycle.step(before, event)
        if self._settings.number and type(self._state) is not type(before):
            # Other users may be trusted since its process was judged.
            self._judge_again()
        if isinstance(before, states.Registered) and isinstance(self._state, states.Leaving):
            self._ending = m.Deregistered(before.generation, before.info, self._state.reason)
        if isinstance(event, _SOCKET_MESSAGES):
            self.asks.withdraw_register()
        self._finished = self._end_operation(event, self._commands) or self._finished

    async def _next_event(self) -> states.Event:
        """Return the event that a message means, or the outcome of a call to the plugin if the inbox is empty."""
        while True:
            if self._goes_on and not self._is_interrupted():
                return await self.wait.for_call(self._call(states.AskInfo()), self._interrupts)
            if self._deferred:
                message, *rest = self._deferred
                self._deferred = tuple(rest)
            elif self._inbox.waiting:
                message = self._inbox.receive_nowait()
            elif self._answer is not None:
                message, self._answer = self._answer, None
            elif isinstance(self._in_progress, _CALLS):
                # A message that interrupts the call is not lost: it cancels the scope, so that nothing is returned
                # here. It stays in the inbox, and is received after ``run`` has renewed the scope.
                return await self.wait.for_call(self._call(self._in_progress), self._interrupts)
            else:
                message = await self.wait.for_message()
            event = self._receive(message)
            if event is not None:
                return event
            if self.wait.unsent:
                await self.wait.until_sent()

    def _is_interrupted(self) -> bool:
        """Return whether a message has come that ends the call under way, while it was looked at.

        Those that do not are not lost: they wait until the call is over, as they do while it is waited for.
        """
        while self._inbox.waiting:
            message = self._inbox.receive_nowait()
            if isinstance(message, SettingsChanged):
                self._take_settings(message)
            self._deferred += (message,)
        self._goes_on = not any(lifecycle.interrupts(self._state, message) for message in self._deferred)
        return not self._goes_on

    def _interrupts(self, message: m.RegistrationMessage) -> bool:
        """Return whether ``message`` ends the call under way.

        A retry is answered here, as the call may last long. Other settings are taken here, since the next command
        begins before the inbox is read.
        """
        if isinstance(message, m.TryNow):
            self._answer_retry(message)
        elif isinstance(message, SettingsChanged):
            self._take_settings(message)
        return lifecycle.interrupts(self._state, message)

    def _receive(self, message: m.RegistrationMessage) -> states.Event | None:
        """Record what ``message`` contains (a handler, a newer socket), and return the event that it means.

        Returns None for an answer that came too late, and for what is done here: a request to report again, other
        settings, and word to the handler that another plugin waits for the name.
        """
        if isinstance(message, _ANSWERS) and not self.asks.is_answered_by(message.ticket):
            return None
        match message:
            case m.HandlerAnswered():
                if message.outcome is Outcome.OK:
                    return states.HandlerAccepted()
                return states.Failed(message.error, outcome=message.outcome, cause=message.cause)
            case m.Admitted():
                self.asks.handler, self.asks.wanted = message.handler, message.wanted
                return message
            case m.NameWanted():
                self.asks.give_way()
                return None
            case m.SocketAppeared():
                self._newest = message
                return message
            case m.SocketTouched():
                self._note_owner(message)
                return message
            case m.ListenerFound():
                self._watched = False  # The liveness actor has found what it looked for.
                return message
            case m.ReportAsked():
                self._show_again()
                self._watched = False
                self._watch_liveness()
                return None
            case SettingsChanged():
                self._take_settings(message)
                return None
            case m.TryNow():
                self._answer_retry(message)
                return message
            case _:
                return message

    def _note_owner(self, message: m.SocketTouched) -> None:
        """Show the user that the file of the socket belongs to now: plugins change that once they have bound it."""
        socket, owner = self._socket, message.owner
        if owner is None or message.generation != socket.generation or owner == socket.identity.owner:
            return
        self._socket = attrs.evolve(socket, identity=attrs.evolve(socket.identity, owner=owner))
        if self._shown is not None and self._shown.generation == socket.generation:
            self._shown = attrs.evolve(self._shown, owner=owner)
            changed = m.OwnerChanged(socket.path, socket.generation, owner)
            self.wait.send(self._config.status, changed)

    def _take_settings(self, message: SettingsChanged) -> None:
        """Let the next command go by other settings. Those that came during a call are taken twice, then and later."""
        if message.settings.number > self._settings.number:
            self._settings = message.settings
            self._judge_again()

    def _judge_again(self) -> None:
        """Let a plugin leave whose user is not trusted any more, and one be tried that was parked because of that."""
        peer, state, settings = self.conversation.peer, self._state, self._settings
        if peer is None:
            return
        distrust = settings.trust.refusal(peer.uid, peer.pid, settings.users)
        if isinstance(state, states.Parked):
            before = self.conversation.settings
            if distrust is None and not before.trust.includes(peer.uid, before.users):
                self._inbox.send_nowait(m.TryNow())
        elif isinstance(state, states.Registered | states.Observed) and distrust is not None:
            self._inbox.send_nowait(m.ListenerLost(self._socket.path, state.generation, distrust))

    def _answer_retry(self, message: m.TryNow) -> None:
        """Answer a retry. One that came during a call is answered twice, then and when it is read: the first counts."""
        if message.reply is not None:
            answer = lifecycle.answer_to_retry(self._socket.path, self._state)
            send_answer(message.reply, m.RetryAnswered((answer,)))

    def _time_out(self) -> states.Event | None:
        """Return the event for a wait whose deadline has passed; None if it goes on, with another deadline."""
        if isinstance(self._in_progress, _TIMERS):
            return states.TimerElapsed()
        reason = f"no answer in {self.wait.deadline - self._began:g} s"
        match self._in_progress:
            case states.AskInfo():
                return self._look_at_info()
            case states.Notify():
                assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
                return self.conversation.notify_timed_out(reason)
            case states.AskValidate():
                self.asks.withdraw()
            case _:
                pass
        return states.Failed(reason, outcome=Outcome.TIMED_OUT)

    def _look_at_info(self) -> states.Event | None:
        """Look whether the plugin has read the request, and wait on for its answer unless its time is over."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        until = self.conversation.look(self._began)
        if until is None:
            return self.conversation.info_timed_out()
        self.wait.deadline, self._goes_on = until, True
        why, state = self.conversation.why_idle(), self._state
        # Nobody is shown that an observed plugin is asked again.
        if not isinstance(state, states.AskingInfo) or why == state.delayed:
            return None
        return states.InfoDelayed(why)

    def _on_heard(self) -> None:
        """Give the plugin its second for the rest of its answer, from now on."""
        assert isinstance(self.conversation, Conversation), "an answer to a call takes no time"
        self.wait.move_deadline(self.conversation.hear(self._began))

    def _end_operation(self, event: states.Event, commands: tuple[states.Command, ...]) -> Finished | None:
        """End the operation under way, unless ``event`` changed nothing, and return what to report of it.

        The deadline is cleared, and answers to it are late from now on. A Validate that is superseded is withdrawn.
        """
        outcome = outcome_of(event)
        if outcome is None and not commands:
            return None
        if outcome is None:
            self.asks.withdraw()
        operation = None if self._in_progress is None else OPERATIONS.get(type(self._in_progress))
        self._in_progress, self._goes_on, self.wait.deadline = None, False, math.inf
        self.asks.close()
        if operation is None or isinstance(event, states.HeldUp):
            return None
        return Finished(operation, outcome or Outcome.SUPERSEDED, self._now - self._began)

    # --- commands ---

    def _perform(self) -> None:
        if not self._life_reported and self.conversation.reached_at is not None:
            self._report_life(self.conversation.reached_at)
        commands, self._commands = self._commands, ()
        for command in commands:
            if isinstance(command, states.WAITING_COMMANDS):  # Most are.
                self._begin(command, self._state.generation)
                continue
            # Release carries a generation of its own: the state may already be in the next one.
            match command:
                case states.HangUp():
                    self.conversation.hang_up()
                case states.Announce():
                    registered = m.PluginRegistered(self._socket.path, self._state.generation)
                    self.wait.send(self._config.reconciler, registered)
                case states.ReportReplaced():
                    replaced = m.SocketReplaced(self._socket.path, self._state.generation)
                    self.wait.send(self._config.reconciler, replaced)
                case states.PassTurn():
                    passed = m.Released(self._socket.path, self._state.generation)
                    self.wait.send(self._config.reconciler, passed)
                case states.Observe():
                    self._observe(command.info)
                case states.StopObserving():
                    self._stop_observing()
                case states.Release():
                    released = m.Released(self._socket.path, command.generation)
                    self.wait.send(self._config.reconciler, released)
                case _:
                    assert_never(command)

    def _observe(self, info: PluginInfo) -> None:
        assert self._config.observers is not None, "plugins are observed only in observe mode"
        self._info = info
        self._observed = self._plugin(info, self._state.generation)
        self._config.observers.begin(self._observed, self._socket.identity)

    def _stop_observing(self) -> None:
        observed, self._observed = self._observed, None
        if observed is not None and self._config.observers is not None:
            self._config.observers.end(observed)

    def _report_life(self, since: float) -> None:
        self._life_reported = True
        # The state may already be in the next generation, whose socket was not dialed yet.
        dialed = m.SocketDialed(self._socket.path, self._socket.generation, since)
        self.wait.send(self._config.reconciler, dialed)

    def _begin(self, command: states.WaitingCommand, generation: int) -> None:
        """Start ``command``, whose outcome is an event to come; a call to the plugin starts when it is awaited."""
        self._in_progress, self._began = command, self._now
        self.conversation.settings = settings = self._settings
        self.wait.deadline = self._began + seconds_for(command, settings, self._config, self._socket.path, generation)
        match command:
            case states.Dial() | states.StartTimer():
                if generation != self._socket.generation:
                    self._go_to_newest()
            case states.AskInfo() | states.AskLater():
                pass
            case states.Notify():
                # Before the call: a plugin that exits because of it may be gone before it has answered.
                if command.error is not None:
                    refused = m.PluginRefused(self._socket.path, generation, self._info)
                    self.wait.send(self._config.reconciler, refused)
            case states.ClaimName():
                self._info = command.info
                found = self.conversation.endpoint
                file = None if found is None else found.identity
                claimed = m.Claimed(self._socket.path, generation, command.info, self.asks.new_ticket(), file)
                self.wait.send(self._config.reconciler, claimed)
            case states.AskValidate():
                self.asks.ask_handler(m.Validate, self._plugin(command.info, generation))
            case states.AskRegister():
                register = partial(m.Register, file=self._socket.identity, wanted=self.asks.wanted)
                self.asks.ask_handler(register, self._plugin(command.info, generation))
            case states.AskDeregister():
                self.asks.ask_handler(m.Deregister, self._plugin(command.info, command.generation))
            case _:
                assert_never(command)

    def _go_to_newest(self) -> None:
        """Forget the plugin of the generation before. Until now its facts were shown, and sent to its handler."""
        self._socket, self._info, self._life_reported = self._newest, None, False
        if isinstance(self.conversation, Conversation) and self._newest.call is None:
            self.conversation.peer = self.conversation.reached_at = None
        else:
            self.conversation = self._converse(self._newest)

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

    def _call(self, command: states.Dial | states.AskInfo | states.Notify) -> Awaitable[states.Event]:
        if isinstance(self.conversation, CalledConversation):
            return self.conversation.perform(command)
        match command:
            case states.Dial():
                # A plugin in a crash loop is no new one: others go first, and it has had the time to listen.
                patient = command.patient and not self._socket.short_lives
                held_up, uid = command.held_up, command.uid
                socket = self._socket
                return self.conversation.dial(socket.identity, socket.root, patient=patient, held_up=held_up, uid=uid)
            case states.AskInfo():
                return self.conversation.get_info(self._on_heard)
            case states.Notify():
                return self.conversation.notify(command.error)
        assert_never(command)

    # --- what is shown ---

    def _show(self) -> None:
        state, finished = self._state, self._finished
        self._finished = None
        if isinstance(state, states.Gone) and state.stopped and not self._was_leaving:
            return  # plugind is stopping, and the plugin is still shown in its last state.
        name = states.name_of(state)
        reason, cause, attempt = words_of(state)
        shown = self._shown
        if (
            # That an observed plugin was asked again is no news.
            (finished is None or isinstance(state, states.Observed))
            and shown is not None
            and shown.state is name
            and shown.reason == reason
            and shown.cause == cause
            and shown.attempt == attempt
            and shown.generation == state.generation
        ):
            return
        now, peer = self._now, self.conversation.peer
        # The timer is still in progress although the socket is gone, but no try follows it.
        waits = isinstance(self._in_progress, states.StartTimer) and not isinstance(state, states.Gone)
        self._shown = m.StateChanged(
            self._socket.path,
            self._socket.root,
            state.generation,
            name,
            now,
            reason,
            attempt,
            self.wait.deadline if waits else None,
            self._info,
            now - self._socket.time if isinstance(state, states.Registered) else None,
            self._socket.deprecated,
            None if peer is None else peer.uid,
            None if peer is None else peer.pid,
            finished,
            cause,
            self._take_ended(),
            isinstance(state, states.Gone) and state.stopped,
            self._socket.identity.owner,
            self._socket.last_known,
        )
        self.wait.send(self._config.status, self._shown)

    def _take_ended(self) -> m.Deregistered | None:
        """Return the registration that has ended and was not reported yet, if there is one."""
        if self._ending is None or isinstance(self._state, states.Leaving):
            return None
        ended, self._ending = self._ending, None
        return ended

    @property
    def _was_leaving(self) -> bool:
        return self._shown is not None and self._shown.state is StateName.LEAVING

    def _show_again(self) -> None:
        if self._shown is not None:
            again = attrs.evolve(self._shown, finished=None, deregistered=None)
            self.wait.send(self._config.status, again)

    def _watch_liveness(self) -> None:
        """Have the liveness actor watch the socket while it is registered or stale, and so not dialed (fault 39)."""
        # A stale socket is watched on while it is dialed: it may refuse again, and there may be thousands of them.
        wanted = isinstance(self._state, _NOT_DIALED) or (self._watched and isinstance(self._state, states.Dialing))
        if wanted is not self._watched:
            self._watched = wanted
            message = self._liveness() if wanted else m.UnwatchLiveness(self._socket.path)
            self.wait.send(self._config.liveness, message)
            if isinstance(self._state, states.Stale):
                gone = m.ListenerChanged(self._socket.path, self._state.generation, listening=False)
                self.wait.send(self._config.reconciler, gone)
                # The next dial that reaches the socket tells the reconciler that its life goes on.
                self._life_reported, self.conversation.reached_at = False, None

    def _liveness(self) -> m.WatchLiveness:
        socket, generation, conversation = self._socket, self._state.generation, self.conversation
        path, identity, root = socket.path, socket.identity, socket.root
        if not isinstance(self._state, _SERVING):
            return m.WatchLiveness(path, generation, self._inbox, registered=False, identity=identity, root=root)
        pid = 0 if conversation.peer is None else conversation.peer.pid
        return m.WatchLiveness(
            path,
            generation,
            self._inbox,
            registered=True,
            identity=identity,
            root=root,
            endpoint=self._state.info.endpoint,
            pid=pid,
            dialed=conversation.dialed_at,
            endpoint_missing=conversation.endpoint is not None and conversation.endpoint.kind is None,
        )


#: The commands whose outcome is the end of a time.
_TIMERS = (states.StartTimer, states.AskLater)
#: The states in which somebody listens on the socket, as far as is known.
_SERVING = (states.Registered, states.Observed)
#: The states in which nothing happens at the socket for long, so that the liveness actor looks at it.
_NOT_DIALED = (*_SERVING, states.Stale)
