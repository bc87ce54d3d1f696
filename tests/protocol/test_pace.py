"""An event brings a try forward once in each step of the backoff, whatever the state and however many events come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.pace import is_hurried
from plugind.protocol.states import Failed, Retry
from plugind.tests.protocol.playbook import CLAIM_REFUSED, TO_CLAIM, TO_REGISTERED, TOUCHED, after, appeared

FAILURES = [Failed("no"), Failed("no", Retry.STALE), Failed("no", Retry.NEVER)]
FREED = m.NameFreed()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.retry.value)
def test_the_second_event_in_a_step_changes_nothing_but_that_what_is_parked_waits(failure: Failed) -> None:
    """Fault 49: a chmod of a failing socket brought a dial each, 1,248 in a second."""
    state = after(failure, TOUCHED)
    assert isinstance(state, s.Dialing)
    assert is_hurried(state)
    paused = after(failure, TOUCHED, failure)
    again, commands = lifecycle.step(paused, TOUCHED)
    if failure.retry is Retry.NEVER:
        assert again == s.Waiting(1, 2, "no", cause=s.cause_of(paused), hurried=True)
        assert commands == (s.StartTimer(2),)
    else:
        assert (again, commands) == (paused, ())
    assert lifecycle.step(again, TOUCHED) == (again, ())


def test_a_name_that_is_freed_and_a_touch_share_the_one_try_of_a_step() -> None:
    refused = (*TO_CLAIM, CLAIM_REFUSED, s.Notified())
    assert isinstance(after(*refused, FREED), s.Dialing)
    waiting = after(*refused, TOUCHED, *refused)
    assert isinstance(waiting, s.Waiting)
    assert lifecycle.step(waiting, FREED) == (waiting, ())


@pytest.mark.parametrize(
    ("event", "hurried"),
    [
        (s.TimerElapsed(), False),
        (m.TryNow(), False),
        (appeared(2), False),
        (TOUCHED, True),
    ],
    ids=["the step is over", "a user asks", "a new generation", "another touch"],
)
def test_what_allows_an_event_to_bring_a_try_forward_again(event: s.Event, hurried: bool) -> None:
    state = after(Failed("no"), TOUCHED, Failed("no"), event)
    assert is_hurried(state) is hurried
    if not hurried:
        again, _ = lifecycle.step(state, Failed("no"))
        assert isinstance(lifecycle.step(again, TOUCHED)[0], s.Dialing)


def test_a_plugin_that_is_registered_starts_afresh() -> None:
    state = after(Failed("no"), TOUCHED, *TO_REGISTERED)
    assert isinstance(state, s.Registered)
    assert not is_hurried(state)


@given(st.lists(st.sampled_from([TOUCHED, FREED, s.TimerElapsed(), *FAILURES, CLAIM_REFUSED]), max_size=60))
def test_there_are_at_most_two_dials_for_each_wait_that_has_elapsed(events: list[s.Event]) -> None:
    """Fault 49: so the backoff bounds the dials of a socket, whatever happens to it."""
    state, _ = lifecycle.start(appeared())
    dials, elapsed = 1, 0
    for event in events:
        for outcome in _in_order(state, event):
            elapsed += isinstance(outcome, s.TimerElapsed)
            state, commands = lifecycle.step(state, outcome)
            dials += sum(isinstance(command, s.Dial) for command in commands)
    assert dials <= 2 * (elapsed + 1)


def _in_order(state: s.State, event: s.Event) -> tuple[s.Event, ...]:
    """Return the events that bring ``event`` about in ``state``; none if it cannot happen there."""
    match state, event:
        case (_, m.SocketTouched() | m.NameFreed()):
            return (event,)
        case (s.Dialing(), m.ClaimRefused()):
            return (*TO_CLAIM, event, s.Notified())
        case (s.Dialing(), s.Failed()) | (s.Waiting() | s.Stale(), s.TimerElapsed()):
            return (event,)
        case _:
            return ()
