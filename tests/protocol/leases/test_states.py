"""The states of a lease, and the page that has each step from one to another."""

from __future__ import annotations

import pytest

from plugind.protocol.errors import IllegalStepError
from plugind.protocol.leases.states import Action, Event, LeasePhase, step
from plugind.protocol.leases.values import LeaseState
from plugind.tests.tools import lease_table


def test_whoever_leaves_or_ends_a_lease_may_do_so_in_every_state_but_the_last() -> None:
    for phase in LeasePhase:
        for event in (Event.LEFT, Event.NAMED_LEFT, Event.RELEASED, Event.OWNER_ENDED):
            if phase is not LeasePhase.GONE:
                step(phase, event)
    with pytest.raises(IllegalStepError, match="SAVED in GONE"):
        step(LeasePhase.GONE, Event.SAVED)


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
    """Whoever changes a step changes the page: ``python -m tests.tools.lease_table --write`` updates it."""
    page = lease_table.PAGE.path.read_text()
    assert page == lease_table.PAGE.filled(page)


def test_a_page_without_the_marks_of_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no line"):
        lease_table.PAGE.filled("# Leases\n")
