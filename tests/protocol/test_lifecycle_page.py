"""The table of transitions in ``docs/design.md`` agrees with the lifecycle."""

from __future__ import annotations

import typing

import pytest

from plugind.protocol import lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.errors import IllegalStepError
from plugind.tests.protocol.test_lifecycle_table import EVENTS, STATES
from plugind.tests.tools import lifecycle_table

#: Events that are the outcome of a command. Any other is a message that may arrive in every state.
OUTCOMES = (*typing.get_args(s.CommandOutcome), *typing.get_args(m.Admission))


def test_the_page_has_the_current_table() -> None:
    """``python -m tests.tools.lifecycle_table --write`` updates the page."""
    page = lifecycle_table.PAGE.path.read_text()
    assert page == lifecycle_table.PAGE.filled(page)


def test_a_row_that_is_edited_by_hand_is_found() -> None:
    page = lifecycle_table.PAGE.path.read_text()
    row = "| registered | SocketAppeared | Leaving, then Dialing(new, 1) | HangUp, AskDeregister |\n"
    assert page.count(row) == 1
    assert lifecycle_table.PAGE.filled(page.replace(row, row.replace("new", "g"))) == page
    assert lifecycle_table.PAGE.filled(page.replace(row, "")) == page


def test_a_page_without_the_marks_of_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no line"):
        lifecycle_table.PAGE.filled("# Design\n")


@pytest.mark.parametrize("name", [name for name, state in STATES.items() if not isinstance(state, s.Gone)])
def test_a_message_without_a_row_changes_nothing_and_an_outcome_without_one_is_illegal(name: str) -> None:
    """The sentences of the page about events without a row."""
    state = STATES[name]
    for event in EVENTS:
        if isinstance(event, OUTCOMES):
            try:
                assert lifecycle.step(state, event) != (state, ())
            except IllegalStepError:
                continue
        else:
            lifecycle.step(state, event)  # Never illegal.


def test_nothing_follows_gone() -> None:
    """Even messages are illegal in this state, and the page says so."""
    for event in EVENTS:
        with pytest.raises(IllegalStepError, match="nothing follows Gone"):
            lifecycle.step(s.Gone(1), event)
