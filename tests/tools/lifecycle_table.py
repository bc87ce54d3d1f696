"""Generates the table of transitions in ``docs/design.md`` from the states and events of the table test.

    python -m tests.tools.lifecycle_table           print the current table
    python -m tests.tools.lifecycle_table --write   write it into the page

A row represents a state and the events with the same outcome in it. Events that change nothing, and events that cannot
happen, have no row: the text of the page covers them, and ``tests/protocol/test_lifecycle_page.py`` checks that text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from plugind.protocol import command_outcomes, lifecycle
from plugind.protocol import messages as m
from plugind.protocol import states as s
from plugind.protocol.errors import IllegalStepError
from plugind.protocol.pace import is_hurried
from plugind.tests.protocol.test_lifecycle_table import EVENTS, STATES
from plugind.tests.tools.table_page import TablePage

#: Generation and attempt in the states of the table test, and their names on the page.
_GENERATIONS = {1: "g", 2: "new"}
_ATTEMPTS = {1: "1", 2: "n", 3: "n+1"}
#: Events that usually have the same outcome.
_ALL_OF = {
    "StopAsked, StopAsked(deregister), StopForced": "any stop",
    "Failed, Failed(STALE), Failed(NEVER)": "any Failed",
}


def table() -> str:
    """Return the table, with a line for each state and group of events."""
    rows = ["| state | event | next state | commands |", "|---|---|---|---|"]
    for name, state in STATES.items():
        for events, after, commands in decisions(state):
            rows.append(f"| {name} | {_joined(events)} | {after} | {', '.join(commands)} |")
    return "\n".join(rows)


def decisions(state: s.State) -> Iterator[tuple[list[str], str, tuple[str, ...]]]:
    """Yield each group of events with the same outcome in ``state``, the state that follows and the commands."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for event in EVENTS:
        try:
            after, commands = lifecycle.step(state, event)
        except IllegalStepError:
            continue
        if (after, commands) != (state, ()):
            groups.setdefault((_state(after), tuple(map(_command, commands))), []).append(_event(event))
    for (after_words, commands_words), events in groups.items():
        yield events, after_words, commands_words


def _joined(events: list[str]) -> str:
    text = ", ".join(events)
    for every, words in _ALL_OF.items():
        text = text.replace(every, words)
    return text


def _event(event: s.Event) -> str:
    match event:
        case s.Failed():
            return "Failed" if event.retry is s.Retry.BACKOFF else f"Failed({event.retry.name})"
        case m.StopAsked(deregister=True):
            return "StopAsked(deregister)"
        case m.HandlerAvailable() | m.HandlerWithdrawn():
            return f"{type(event).__name__}({event.type})"
        case _:
            return type(event).__name__


def _state(state: s.State) -> str:
    return _named(state) + (" after an event" if is_hurried(state) else "")


def _named(state: s.State) -> str:
    match state:
        case s.Refusing() | s.Leaving():
            deregister = ", Leaving" if isinstance(state, s.Refusing) and state.to_deregister is not None else ""
            return f"{type(state).__name__}{deregister}, then {_then(state.then)}"
        case s.Dialing() | s.Waiting() if state.to_notify is not None:
            return f"{type(state).__name__} to notify, try {state.notify_try}"
        case s.Waiting(reason=command_outcomes.REPLACED):
            return f"Waiting({_GENERATIONS[state.generation]}, n-1)"
        case s.Dialing() | s.Waiting() | s.Stale():
            return _tried(type(state).__name__, state.generation, state.attempt)
        case s.Parked():
            return _parked(state.until_type)
        case s.Notifying():
            return f"Notifying, try {state.notify_try}" + (", stopping" if state.stopping else "")
        case s.Registering():
            return "Registering" + (", stopping" if state.stopping else "")
        case s.Observed():
            return "Observed, asked again" if state.asking else "Observed"
        case s.Gone():
            return "Gone, stopped" if state.stopped else "Gone"
        case _:
            return type(state).__name__


def _then(then: s.Then) -> str:
    match then:
        case s.ThenDial():
            return _tried("Dialing", then.generation, then.attempt)
        case s.ThenWait():
            return _tried("Waiting", 1, then.attempt)
        case s.ThenPark():
            return _parked(then.until_type)
        case s.ThenEnd():
            return "Gone, stopped" if then.stopped else "Gone"
    assert_never(then)


def _tried(name: str, generation: int, attempt: int) -> str:
    return f"{name}({_GENERATIONS[generation]}, {_ATTEMPTS[attempt]})"


def _parked(until_type: str | None) -> str:
    return "Parked" if until_type is None else f"Parked until a handler of {until_type}"


def _command(command: s.Command) -> str:
    match command:
        case s.Dial():
            return "Dial(patient)" if command.patient else "Dial"
        case s.Notify():
            return "Notify(registered)" if command.error is None else "Notify(error)"
        case s.StartTimer():
            return f"StartTimer({_ATTEMPTS[command.failures]})"
        case _:
            return type(command).__name__


PAGE = TablePage("design.md", "lifecycle_table", table)


if __name__ == "__main__":
    PAGE.main(__doc__)
