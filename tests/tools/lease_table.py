"""Generates the table of the states of a lease in ``docs/leases.md``.

    python -m tests.tools.lease_table           print the current table
    python -m tests.tools.lease_table --write   write it into the page

A row represents a state and the events with the same outcome in it. Events that change nothing, and events that cannot
happen, have no row.
"""

from __future__ import annotations

from collections.abc import Iterator

from plugind.protocol.errors import IllegalStepError
from plugind.protocol.leases.states import Event, LeasePhase, step
from plugind.tests.tools.table_page import TablePage


def table() -> str:
    """Return the table, with a line for each state and group of events."""
    rows = ["| state | shown as | event | next state | what is done |", "|---|---|---|---|---|"]
    for phase in LeasePhase:
        for events, after, actions in decisions(phase):
            rows.append(
                f"| {phase.value} | {phase.shown.value} | {', '.join(events)} | {after} | {', '.join(actions)} |"
            )
    return "\n".join(rows)


def decisions(phase: LeasePhase) -> Iterator[tuple[list[str], str, tuple[str, ...]]]:
    """Yield each group of events with the same outcome in ``phase``, the state that follows and what is done."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for event in Event:
        try:
            after, actions = step(phase, event)
        except IllegalStepError:
            continue
        if (after, actions) != (phase, ()):
            groups.setdefault((after.value, tuple(action.value for action in actions)), []).append(event.value)
    for (after_word, words), events in groups.items():
        yield events, after_word, words


PAGE = TablePage("leases.md", "lease_table", table)


if __name__ == "__main__":
    PAGE.main(__doc__)
