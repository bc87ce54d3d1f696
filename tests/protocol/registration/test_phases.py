"""What ends each phase of a registration, and how a retry is answered in each: every cell."""

from __future__ import annotations

import pytest

from plugind.protocol.messages.reconciler import Claimed, ReportAsked, StopAsked, StopForced
from plugind.protocol.messages.registration import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    ListenerFound,
    ListenerLost,
    NameFreed,
    NameWanted,
    NoHandler,
    RegistrationMessage,
    TryNow,
)
from plugind.protocol.plugins.status import StateName
from plugind.protocol.registration.following import REST, End, Next, Pause, Try, park, wait
from plugind.protocol.registration.phases import Phase, answer_to_retry, ends, phase_of
from plugind.tests.protocol.sockets import NOWHERE, SOCKET, TOUCHED, appeared, vanished

CLAIMED = Claimed(SOCKET, 1, None)  # type: ignore[arg-type]
#: The columns of the table. The plugin has the type T, and its socket the generation 1.
COLUMNS: tuple[tuple[RegistrationMessage, ...], ...] = (
    (appeared(2), vanished()),
    (StopForced(),),
    (StopAsked(),),
    (StopAsked(deregister=True),),
    (HandlerWithdrawn("T"),),
    (ListenerLost(SOCKET, 1, "nobody listens"),),
)
TABLE = """
                socket  forced stop  stop  stop that deregisters  handler removed  nobody listens
    DIAL          x          x         x             x                   -                -
    INFO          x          x         x             x                   -                -
    CLAIM         x          x         x             x                   x                -
    VALIDATE      x          x         x             x                   x                -
    REGISTER      x          -         -             -                   -                -
    NOTIFY        x          x         -             x                   x                -
    NOTIFY_DIAL   x          x         x             x                   x                -
    NOTIFY_PAUSE  x          x         x             x                   x                -
    REFUSE        x          x         x             x                   -                -
    LEAVE         -          -         -             -                   -                -
    WAITING       x          x         x             x                   -                -
    STALE         x          x         x             x                   -                -
    PARKED        x          x         x             x                   -                -
    REGISTERED    x          x         x             x                   x                x
    OBSERVED      x          x         x             x                   -                x
    ASK_AGAIN     x          x         x             x                   -                x
    GONE          x          x         x             x                   -                -
"""
ROWS = {name: cells for name, *cells in (line.split() for line in TABLE.strip().splitlines()[1:])}
#: They end no phase, whatever it is.
HARMLESS: tuple[RegistrationMessage, ...] = (
    TOUCHED,
    TryNow(),
    NameFreed(),
    NameWanted(),
    ReportAsked(),
    HandlerAvailable("T"),
    HandlerWithdrawn("U"),
    ListenerFound(SOCKET, 1),
    ListenerLost(SOCKET, 0, "nobody listened on the socket before"),
    Admitted(CLAIMED, NOWHERE),
    NoHandler(CLAIMED, "no handler"),
    ClaimRefused(CLAIMED, "taken"),
)


def test_the_table_has_every_phase() -> None:
    assert ROWS.keys() == {phase.name for phase in Phase}
    assert {len(cells) for cells in ROWS.values()} == {len(COLUMNS)}


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_a_message_ends_the_phases_that_the_table_says(phase: Phase) -> None:
    """Behaviour 42, faults 39 and 87."""
    for cell, messages in zip(ROWS[phase.name], COLUMNS, strict=True):
        for message in messages:
            assert ends(phase, message, 1, "T") is (cell == "x"), message


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_nothing_else_ends_a_phase(phase: Phase) -> None:
    assert [message for message in HARMLESS if ends(phase, message, 1, "T")] == []


NOW, NOTHING, LEAVES = (
    "tried now",
    "registered already, nothing to retry",
    "it is leaving: plugind stops, or its socket",
)
#: How a retry is answered, without what follows.
ANSWERS = {
    Phase.DIAL: (True, "an attempt is under way: dial"),
    Phase.INFO: (True, "an attempt is under way: info"),
    Phase.CLAIM: (True, "an attempt is under way: claim"),
    Phase.VALIDATE: (True, "an attempt is under way: validate"),
    Phase.REGISTER: (True, "an attempt is under way: register"),
    Phase.NOTIFY: (True, "an attempt is under way: notify"),
    Phase.NOTIFY_DIAL: (True, "an attempt is under way: dial"),
    Phase.NOTIFY_PAUSE: (True, NOW),
    Phase.REFUSE: (True, "it is being notified of a failed attempt, and tried right after that"),
    Phase.LEAVE: (True, "it is being deregistered, and tried right after that"),
    Phase.WAITING: (True, NOW),
    Phase.STALE: (True, NOW),
    Phase.PARKED: (True, NOW),
    Phase.REGISTERED: (False, NOTHING),
    Phase.OBSERVED: (True, NOW),
    Phase.ASK_AGAIN: (True, "an attempt is under way: observed"),
    Phase.GONE: (False, LEAVES),
}


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_a_retry_is_answered_by_the_phase(phase: Phase) -> None:
    tried, why = ANSWERS[phase]
    answer = answer_to_retry(SOCKET, phase, None)
    assert (answer.socket, answer.tried) == (SOCKET, tried)
    assert answer.why.startswith(why)


@pytest.mark.parametrize("phase", [Phase.LEAVE, Phase.REFUSE, Phase.NOTIFY], ids=lambda phase: phase.name)
@pytest.mark.parametrize("then", [End(), End(stopped=True)], ids=["socket removed", "plugind stops"])
def test_nothing_is_tried_after_what_is_the_end(phase: Phase, then: End) -> None:
    answer = answer_to_retry(SOCKET, phase, then)
    assert not answer.tried
    assert answer.why.startswith(LEAVES)


@pytest.mark.parametrize("then", [Try(), wait("no", 1), REST])
def test_a_plugin_that_is_deregistered_is_tried_after_that(then: Next) -> None:
    assert answer_to_retry(SOCKET, Phase.LEAVE, then).tried


def test_a_pause_is_shown_as_its_state() -> None:
    pauses = (wait("no", 1), park("no", 1), Pause(StateName.STALE, "no", 1))
    assert [phase_of(pause) for pause in pauses] == [Phase.WAITING, Phase.PARKED, Phase.STALE]
