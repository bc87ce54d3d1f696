"""The lifecycle in observe mode: a plugin is asked what it is, and no step tells it anything.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.plugins import PluginInfo
from plugind.protocol.status import StateName
from plugind.tests.protocol.playbook import INFO, SOCKET, TOUCHED, after, appeared, play, script, then, vanished

OTHER = PluginInfo("T", "b", SOCKET, ("1.0.0", "2.0.0"))
REJECTED = s.InfoRejected("bad", silent=True)
OBSERVED = s.Observed(1, 1, INFO)
ASKED_AGAIN = s.Observed(1, 1, INFO, asking=True)


def test_a_plugin_is_observed_once_it_has_said_what_it_is() -> None:
    assert after(s.Dialed(), s.InfoObserved(INFO)) == OBSERVED
    assert play(s.Dialed(), s.InfoObserved(INFO)) == script(
        """
        Dialing(g1 #1) | Dial(patient)
        Dialed → AskingInfo(g1 #1) | AskInfo
        InfoObserved(a) → Observed(g1 #1 a) | HangUp, Observe(a), AskLater
        """
    )


def test_a_plugin_that_says_the_same_again_is_observed_on() -> None:
    assert then(OBSERVED, s.TimerElapsed(), s.Dialed(), s.InfoObserved(INFO)) == script(
        """
        TimerElapsed → Observed(g1 #1 a asking) | Dial(patient=False)
        Dialed → Observed(g1 #1 a asking) | AskInfo
        InfoObserved(a) → Observed(g1 #1 a) | HangUp, AskLater
        """
    )


def test_a_plugin_that_says_something_else_is_followed_anew_and_what_it_said_before_is_kept() -> None:
    state = after(s.TimerElapsed(), s.Dialed(), s.InfoObserved(OTHER), start=(OBSERVED, ()))
    before = 'at the same socket it gave the name "a" and the versions "1.0.0" before'
    assert state == s.Observed(1, 1, OTHER, before)
    asked = after(s.TimerElapsed(), s.Dialed(), start=(state, ()))
    assert lifecycle.step(asked, s.InfoObserved(OTHER)) == (state, (s.HangUp(), s.AskLater()))
    assert (
        then(OBSERVED, s.TimerElapsed(), s.Dialed(), s.InfoObserved(OTHER))
        .splitlines()[-1]
        .endswith("| HangUp, StopObserving, Observe(b), AskLater")
    )


@pytest.mark.parametrize(
    ("failure", "follows"),
    [
        (s.Failed("no"), "Waiting(g1 #1 'no') | StopObserving, HangUp, StartTimer(1)"),
        (s.Failed("no", s.Retry.STALE), "Stale(g1 #1 'no') | StopObserving, HangUp, StartTimer(1)"),
        (s.Failed("no", s.Retry.NEVER), "Parked(g1 #1 'no') | StopObserving, HangUp"),
        (REJECTED, "Waiting(g1 #1 'bad') | HangUp, StopObserving, StartTimer(1)"),
    ],
)
def test_a_plugin_that_answers_no_more_is_tried_again_as_one_that_never_did(failure: s.Event, follows: str) -> None:
    said = then(s.Observed(1, 7, INFO), s.TimerElapsed(), failure).splitlines()
    assert "\n".join(said[1:]).partition(" → ")[2] == follows


def test_a_plugin_with_bad_info_waits_and_is_not_told_why() -> None:
    assert play(s.Dialed(), REJECTED).splitlines()[-1] == (
        "InfoRejected('bad' silent) → Waiting(g1 #1 'bad') | HangUp, StartTimer(1)"
    )
    waiting = after(s.Dialed(), REJECTED)
    assert s.cause_of(waiting) == s.Cause("bad", answered=True)


@pytest.mark.parametrize("state", [OBSERVED, ASKED_AGAIN], ids=["at rest", "asked again"])
def test_every_way_out_of_observed_ends_the_follow_and_the_connection(state: s.State) -> None:
    lost = m.ListenerLost(SOCKET, 1, "nobody listens")
    for event in (appeared(2), vanished(), m.StopAsked(), m.StopAsked(deregister=True), m.StopForced(), lost):
        _, commands = lifecycle.step(state, event)
        assert commands[:2] == (s.StopObserving(), s.HangUp()), event


def test_a_retry_asks_an_observed_plugin_at_once_and_only_once() -> None:
    asking, commands = lifecycle.step(OBSERVED, m.TryNow())
    assert (asking, commands) == (ASKED_AGAIN, (s.Dial(patient=False),))
    assert lifecycle.step(asking, m.TryNow()) == (asking, ())
    assert lifecycle.answer_to_retry(SOCKET, OBSERVED) == m.RetryAnswer(SOCKET, tried=True, why="tried now")


def test_nobody_is_shown_that_an_observed_plugin_is_asked_again() -> None:
    assert s.name_of(ASKED_AGAIN) is s.name_of(OBSERVED) is StateName.OBSERVED


#: What may follow each command in observe mode.
OUTCOMES: dict[type[s.Command], st.SearchStrategy[s.Event]] = {
    s.Dial: st.sampled_from(
        [s.Dialed(), s.Dialed(), s.Replaced(), s.HeldUp("no"), *(s.Failed("no", retry) for retry in s.Retry)]
    ),
    s.AskInfo: st.sampled_from(
        [
            s.InfoObserved(INFO),
            s.InfoObserved(INFO),
            s.InfoObserved(OTHER),
            REJECTED,
            *(s.Failed("no", retry) for retry in s.Retry),
        ]
    ),
    s.StartTimer: st.just(s.TimerElapsed()),
    s.AskLater: st.just(s.TimerElapsed()),
}
MESSAGES: st.SearchStrategy[s.Event] = st.sampled_from(
    [
        TOUCHED,
        m.TryNow(),
        m.NameFreed(),
        m.HandlerAvailable("T"),
        m.HandlerWithdrawn("T"),
        m.ListenerFound(SOCKET, 1),
        m.ListenerLost(SOCKET, 1, "nobody listens"),
    ]
)


#: What ends a generation, given the number of the next one.
ENDS: st.SearchStrategy[Callable[[int], s.Event]] = st.sampled_from([appeared, vanished, lambda _: m.StopAsked()])


@given(st.data())
def test_no_sequence_of_events_tells_a_plugin_anything_or_calls_a_handler(data: st.DataObject) -> None:
    """Behaviour 45. Each follow that is begun is ended once, before the next one and when the socket is gone."""
    generation, followed, waiting = 1, False, None
    state, commands = lifecycle.start(appeared())
    for _ in range(data.draw(st.integers(1, 40))):
        for command in commands:
            assert isinstance(
                command,
                s.Dial
                | s.AskInfo
                | s.StartTimer
                | s.AskLater
                | s.HangUp
                | s.ReportReplaced
                | s.PassTurn
                | s.Observe
                | s.StopObserving,
            )
            if isinstance(command, s.Observe | s.StopObserving):
                assert followed is isinstance(command, s.StopObserving)
                followed = not followed
            if isinstance(command, s.WAITING_COMMANDS):
                waiting = command
        assert followed is isinstance(state, s.Observed)
        if isinstance(state, s.Gone):
            return
        if data.draw(st.integers(0, 5)) == 0:
            generation += 1
            event = data.draw(ENDS)(generation)
        elif waiting is None or isinstance(state, s.Parked) or data.draw(st.integers(0, 2)) == 0:
            event = data.draw(MESSAGES)
        else:
            event = data.draw(OUTCOMES[type(waiting)])
        state, commands = lifecycle.step(state, event)
