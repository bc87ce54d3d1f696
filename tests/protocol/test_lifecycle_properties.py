"""Invariants of the life of a socket, for any events in any order."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.tests.protocol.playbook import (
    ADMITTED,
    CLAIM_REFUSED,
    INFO,
    NO_HANDLER,
    SOCKET,
    TOUCHED,
    WAITING_COMMANDS,
    appeared,
    vanished,
)

FAILURES = st.sampled_from([s.Failed("no", retry) for retry in s.Retry])
#: What the plugin itself may answer.
REFUSALS = st.sampled_from([s.Failed("… err: bug", retry, cause="bug", answered=True) for retry in s.Retry])
#: The possible outcomes of each command that has one.
OUTCOMES: dict[type[s.Command], st.SearchStrategy[s.Event]] = {
    s.Dial: st.just(s.Dialed()) | st.just(s.Replaced()) | FAILURES,
    s.AskInfo: st.just(s.InfoReceived(INFO)) | st.just(s.InfoRejected("bad")) | FAILURES | REFUSALS,
    s.ClaimName: st.sampled_from([ADMITTED, NO_HANDLER, CLAIM_REFUSED, s.Failed("no answer")]),
    s.AskValidate: st.sampled_from([s.HandlerAccepted(), s.Failed("no")]),
    s.AskRegister: st.sampled_from([s.HandlerAccepted(), s.Failed("no")]),
    s.AskDeregister: st.sampled_from([s.HandlerAccepted(), s.Failed("no")]),
    s.Notify: st.just(s.Notified()) | st.just(s.Failed("no")) | REFUSALS,
    s.StartTimer: st.just(s.TimerElapsed()),
    s.AskLater: st.just(s.TimerElapsed()),
}
MESSAGES: st.SearchStrategy[s.Event] = st.sampled_from(
    [
        vanished(),
        TOUCHED,
        m.TryNow(),
        m.NameFreed(),
        m.HandlerAvailable("T"),
        m.HandlerAvailable("U"),
        m.HandlerWithdrawn("T"),
        m.HandlerWithdrawn("U"),
        m.ListenerFound(SOCKET, 1),
        m.ListenerLost(SOCKET, 1, "nobody listens"),
        m.StopAsked(),
        m.StopAsked(deregister=True),
        m.StopForced(),
    ]
)
GOOD: dict[type[s.Command], s.Event] = {
    s.Dial: s.Dialed(),
    s.AskInfo: s.InfoReceived(INFO),
    s.ClaimName: ADMITTED,
    s.AskValidate: s.HandlerAccepted(),
    s.AskRegister: s.HandlerAccepted(),
    s.AskDeregister: s.HandlerAccepted(),
    s.Notify: s.Notified(),
    s.StartTimer: s.TimerElapsed(),
    s.AskLater: s.TimerElapsed(),
}


def test_the_model_has_outcomes_for_every_waiting_command() -> None:
    assert set(OUTCOMES) == set(GOOD) == set(WAITING_COMMANDS)


@attrs.define
class Life:
    """The life of one actor, reconstructed from its commands. The invariants are checked at each step."""

    state: s.State
    #: The command whose outcome is pending.
    waiting: s.Command | None = None
    generation: int = 1
    connected: bool = False
    #: Whether Register was called and no Deregister has followed.
    registered: bool = False
    claimed: bool = False
    asked_to_stop: bool = False
    registers: int = 0
    deregisters: int = 0
    #: What the plugin last answered or was told in this generation, unless the handler has registered it since.
    answer: str | None = None

    def take(self, event: s.Event) -> None:
        if isinstance(event, m.Admission):
            self.claimed = isinstance(event, m.Admitted)
        self.asked_to_stop |= isinstance(event, m.StopAsked | m.StopForced)
        before = self.state
        self.record_answer(event)
        step = lifecycle.step(before, event)
        if step != (before, ()):
            self.enter(step, over=bool(step[1]) or isinstance(event, s.CommandOutcome | m.Admission))
        self.check_attempts(before, event)

    def record_answer(self, event: s.Event) -> None:
        match event:
            case s.Failed(answered=True) if not isinstance(self.state, s.Refusing):
                self.answer = event.cause
            case m.SocketAppeared():
                self.answer = None
            case s.HandlerAccepted() if isinstance(self.state, s.Registering):
                self.answer = None
            case m.HandlerAvailable("T") if self.is_orphan():
                self.answer = None

    def is_orphan(self) -> bool:
        paused = self.state.then if isinstance(self.state, s.Refusing) else self.state
        return isinstance(paused, s.Parked | s.ThenPark) and paused.until_type == "T"

    def enter(self, step: s.Step, *, over: bool = True) -> None:
        self.state, commands = step
        if over:
            self.waiting = None
        assert sum(isinstance(command, WAITING_COMMANDS) for command in commands) <= 1
        for command in commands:
            assert self.waiting is None, f"{command} follows a command whose outcome is pending"
            self.perform(command)
        self.check_rest()

    def perform(self, command: s.Command) -> None:
        match command:
            case s.Dial():
                assert not self.connected, "the old connection must be closed before a dial"
                assert not self.asked_to_stop, "nothing new may begin after a stop was requested"
                self.connected = True  # Even if the dial fails, HangUp precedes the next dial.
            case s.HangUp():
                self.connected = False
            case s.AskInfo() | s.Notify():
                assert self.connected, "a call needs a connection"
                assert not isinstance(command, s.Notify) or (command.error is None) == isinstance(
                    self.state, s.Notifying
                )
                if isinstance(command, s.Notify) and command.error is not None:
                    self.answer = command.error.removeprefix("RegisterPlugin error -- ").replace(" with err: ", ": ")
            case s.ClaimName():
                assert not self.claimed
                self.claimed = True
            case s.AskValidate():
                assert self.claimed
                assert not self.registered
            case s.AskRegister():
                assert self.claimed
                assert not self.registered, "a Deregister must come between two Registers"
                self.registered = True
                self.registers += 1
            case s.Announce():
                assert self.registered
            case s.AskDeregister():
                assert self.registered, "there must be exactly one Deregister for each Register"
                assert self.claimed
                self.registered = False
                self.deregisters += 1
            case s.Release():
                assert self.claimed, "a claim is released once"
                assert not self.registered, "a registered plugin must keep its claim"
                self.claimed = False
            case s.PassTurn():
                assert not self.claimed, "a plugin that has claimed its name uses its turn"
            case s.ReportReplaced():
                assert not self.asked_to_stop
            case s.StartTimer():
                assert command.failures >= 1
            case s.AskLater() | s.Observe() | s.StopObserving():
                raise AssertionError("only a node that observes does so")
        if isinstance(command, WAITING_COMMANDS):
            self.waiting = command

    def check_rest(self) -> None:
        assert (s.pending_deregistration(self.state) is not None) == (
            self.registered and not isinstance(self.state, s.Gone)
        )
        match self.state:
            case s.Registered() | s.Waiting() | s.Stale() | s.Parked() | s.Gone():
                assert not self.connected, f"{self.state} holds a connection"
            case _:
                assert self.waiting is not None, f"{self.state} waits for nothing"
        match self.state:
            case s.Gone(stopped=True):
                pass  # A registered plugin stays registered, unless the stop deregisters.
            case s.Gone():
                assert (self.registered, self.claimed) == (False, False), "no deregistration is pending at the end"
            case s.Dialing(to_notify=None) | s.AskingInfo() | s.Waiting(to_notify=None) | s.Stale() | s.Parked():
                assert not self.claimed, f"{self.state} holds a claim"
            case _:
                pass

    def check_attempts(self, before: s.State, event: s.Event) -> None:
        assert self.registers - self.deregisters == self.registered
        if isinstance(before, s.Leaving) or isinstance(self.state, s.Leaving | s.Gone):
            return
        if isinstance(event, m.SocketAppeared):
            assert (self.state.generation, self.state.attempt) == (event.generation, 1)
        elif isinstance(event, s.Replaced):
            counted = isinstance(before, s.Dialing) and before.to_notify is None
            assert self.state.attempt == before_attempt(before) - counted, "nobody was reached"
        else:
            assert self.state.attempt in (1, before_attempt(before), before_attempt(before) + 1)


def before_attempt(state: s.State) -> int:
    return 0 if isinstance(state, s.Leaving | s.Gone) else state.attempt


def live(data: st.DataObject) -> Life:
    """Draw a life: at each step an outcome of the pending command, or any message."""
    life = Life(s.Gone(0))
    life.enter(lifecycle.start(appeared(1)))
    for _ in range(data.draw(st.integers(1, 30))):
        if isinstance(life.state, s.Gone):
            break
        outcome = life.waiting is not None and data.draw(st.integers(0, 3)) > 0
        if outcome and life.waiting is not None:
            # Success is more frequent than failure, so that late states are reached often.
            life.take(data.draw(st.just(GOOD[type(life.waiting)]) | OUTCOMES[type(life.waiting)]))
        elif data.draw(st.integers(0, 3)) == 0:
            life.generation += 1
            life.take(appeared(life.generation))
        else:
            life.take(data.draw(MESSAGES))
    return life


@given(st.data())
def test_the_invariants_hold_at_every_step_of_any_sequence_of_events(data: st.DataObject) -> None:
    """Behaviours 19, 20, 24, 33, 34, 36 and 42, as :class:`Life` checks them."""
    live(data)


@given(st.data())
def test_a_registration_ends_in_finitely_many_steps_after_its_socket_is_removed(data: st.DataObject) -> None:
    """Behaviour 36, faults 36, 38 and 84."""
    life = live(data)
    if isinstance(life.state, s.Gone):
        return

    life.take(vanished(life.generation))
    while life.waiting is not None and not isinstance(life.state, s.Gone):
        assert isinstance(life.waiting, s.AskDeregister)
        life.take(data.draw(OUTCOMES[s.AskDeregister]))

    assert isinstance(life.state, s.Gone)
    assert life.registers == life.deregisters


@given(st.data(), st.sampled_from([m.StopAsked(), m.StopAsked(deregister=True), m.StopForced()]))
def test_a_stop_ends_every_registration(data: st.DataObject, stop: s.Event) -> None:
    """Behaviour 42, fault 87: only plugins that a plain StopAsked finds registered may stay registered."""
    life = live(data)
    if isinstance(life.state, s.Gone):
        return

    was = life.state
    life.take(stop)
    for newer in data.draw(st.lists(st.booleans(), max_size=2)):
        if not isinstance(life.state, s.Gone):
            life.take(appeared(life.generation + 1) if newer else data.draw(MESSAGES))
    for _ in range(5):
        if life.waiting is not None and not isinstance(life.state, s.Gone):
            life.take(data.draw(OUTCOMES[type(life.waiting)]))

    assert isinstance(life.state, s.Gone)
    if stop == m.StopAsked(deregister=True) or not isinstance(was, s.Registered | s.Registering | s.Notifying):
        assert not life.registered


@given(st.data())
def test_a_plugin_without_faults_is_eventually_registered_from_any_state(data: st.DataObject) -> None:
    """Only the present socket counts, not the history."""
    life = live(data)
    if isinstance(life.state, s.Gone) or life.asked_to_stop:
        return

    life.generation += 1
    life.take(appeared(life.generation))
    for _ in range(8):
        if not isinstance(life.state, s.Registered):
            assert life.waiting is not None
            life.take(GOOD[type(life.waiting)])

    assert life.state == s.Registered(life.generation, 1, INFO)


@given(st.data())
def test_a_message_that_interrupts_a_call_leads_away_from_it(data: st.DataObject) -> None:
    """Otherwise the same call would be made twice."""
    life = live(data)
    message = data.draw(MESSAGES)
    assert isinstance(message, m.RegistrationMessage)
    if isinstance(life.waiting, s.Dial | s.AskInfo | s.Notify) and lifecycle.interrupts(life.state, message):
        after, commands = lifecycle.step(life.state, message)
        assert commands or isinstance(after, s.Gone)
