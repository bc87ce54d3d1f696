"""The states of a lease: every state has a decision for every event, and the page shows them."""

from __future__ import annotations

import pytest

from plugind.protocol.errors import IllegalStepError
from plugind.protocol.leases.states import Action, Event, LeasePhase, step
from plugind.protocol.leases.values import LeaseState
from plugind.tests.tools import lease_table

#: For each state: ``event → next state | actions``, events that change nothing, and events that cannot happen.
TABLE = {
    "QUEUED": """
        GRANTED → CHOOSING | CHOOSE
        TIMED_OUT LEFT NAMED_LEFT RELEASED OWNER_ENDED → GONE | FAIL END
        illegal: CHOSEN SHORT SAVED NOT_SAVED PREPARED REFUSED LOST FILED NOT_FILED SETTLED
    """,
    "CHOOSING": """
        CHOSEN → COMMITTING | COMMIT
        SHORT → QUEUED | REQUEUE
        LEFT NAMED_LEFT RELEASED OWNER_ENDED → GONE | FAIL WITHDRAW END
        illegal: GRANTED SAVED NOT_SAVED PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "COMMITTING": """
        SAVED → PREPARING | PREPARE
        NOT_SAVED LEFT RELEASED OWNER_ENDED → GONE | FAIL END
        unchanged: NAMED_LEFT
        illegal: GRANTED CHOSEN SHORT PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "PREPARING": """
        PREPARED → FILING | FILE
        REFUSED → GONE | FAIL END
        LOST → UNCERTAIN | FAIL WITHHOLD
        LEFT RELEASED OWNER_ENDED → ABANDONED | FAIL WITHDRAW
        unchanged: NAMED_LEFT
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "FILING": """
        FILED → CONFIRMING | CONFIRM
        NOT_FILED LEFT RELEASED OWNER_ENDED → GONE | FAIL END
        unchanged: NAMED_LEFT
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED PREPARED REFUSED LOST TIMED_OUT SETTLED
    """,
    "CONFIRMING": """
        SAVED → HELD | TELL
        NOT_SAVED LEFT RELEASED OWNER_ENDED → GONE | FAIL END
        unchanged: NAMED_LEFT
        illegal: GRANTED CHOSEN SHORT PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "ABANDONED": """
        PREPARED REFUSED → GONE | END
        LOST → UNCERTAIN | WITHHOLD
        unchanged: LEFT NAMED_LEFT RELEASED OWNER_ENDED
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "HELD": """
        LEFT RELEASED OWNER_ENDED → GONE | END
        unchanged: NAMED_LEFT
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT SETTLED
    """,
    "UNCERTAIN": """
        SETTLED → GONE | END
        unchanged: LEFT NAMED_LEFT RELEASED OWNER_ENDED
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT
    """,
    "GONE": """
        illegal: GRANTED CHOSEN SHORT SAVED NOT_SAVED PREPARED REFUSED LOST FILED NOT_FILED TIMED_OUT LEFT NAMED_LEFT
            RELEASED OWNER_ENDED SETTLED
    """,
}


def decided(phase: LeasePhase, event: Event) -> str:
    try:
        after, actions = step(phase, event)
    except IllegalStepError:
        return "illegal"
    if (after, actions) == (phase, ()):
        return "unchanged"
    return f"{after.name} | {' '.join(action.name for action in actions)}"


def written(text: str) -> dict[str, str]:
    """Return the decision for each event of a part of the table."""
    found: dict[str, str] = {}
    for line in (
        " ".join(text.split()).replace(" illegal:", "\nillegal:").replace(" unchanged:", "\nunchanged:").split("\n")
    ):
        word, _, events = line.partition(":")
        if events:
            found |= dict.fromkeys(events.split(), word)
        else:
            for transition in transitions(line):
                found |= transition
    return found


def transitions(line: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    events: list[str] = []
    words = line.split()
    while words:
        word = words.pop(0)
        if word != "→":
            events.append(word)
            continue
        after, _bar = words.pop(0), words.pop(0)
        actions = []
        while words and words[0] in Action.__members__:
            actions.append(words.pop(0))
        found.append(dict.fromkeys(events, f"{after} | {' '.join(actions)}"))
        events = []
    return found


def test_the_table_has_every_state_and_every_event() -> None:
    assert list(TABLE) == [phase.name for phase in LeasePhase]
    for name, text in TABLE.items():
        assert set(written(text)) == {event.name for event in Event}, name


@pytest.mark.parametrize("phase", LeasePhase)
def test_every_state_has_a_decision_for_every_event(phase: LeasePhase) -> None:
    assert {event.name: decided(phase, event) for event in Event} == written(TABLE[phase.name])


def test_a_refusal_frees_and_a_lost_call_does_not() -> None:
    """A plugin whose call was lost may still prepare the devices, and nothing recalls it."""
    for phase in (LeasePhase.PREPARING, LeasePhase.ABANDONED):
        assert Action.END in step(phase, Event.REFUSED)[1]
        assert step(phase, Event.LOST)[0] is LeasePhase.UNCERTAIN
        assert Action.END not in step(phase, Event.LOST)[1]


def test_all_that_a_user_sees_between_choice_and_possession_is_pending() -> None:
    shown = [phase.name for phase in LeasePhase if phase.shown is LeaseState.PENDING]
    assert shown == ["COMMITTING", "PREPARING", "FILING", "CONFIRMING", "ABANDONED"]


def test_the_page_has_the_current_table() -> None:
    """``python -m tests.tools.lease_table --write`` updates the page."""
    page = lease_table.PAGE.path.read_text()
    assert page == lease_table.PAGE.filled(page)


def test_a_page_without_the_marks_of_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no line"):
        lease_table.PAGE.filled("# Leases\n")
