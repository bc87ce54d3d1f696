"""What follows a try, and what brings the next one forward: every cell, and the pace of events."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.messages.registration import HandlerAvailable, ListenerFound, NameFreed, TryNow
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import StateName
from plugind.protocol.registration import following
from plugind.protocol.registration.crashes import MOST_CRASHES, Crash
from plugind.protocol.registration.failures import CALL_AGAIN, Cause
from plugind.protocol.registration.following import (
    Brought,
    NotifyAgain,
    Pause,
    Trigger,
    Try,
    brought_forward,
    park,
    wait,
)
from plugind.tests.protocol.sockets import INFO, SOCKET, TOUCHED, appeared

REFUSED = Cause("too old", answered=True)
TRIGGERS: dict[str, Trigger] = {
    "retry": TryNow(),
    "touched": TOUCHED,
    "name freed": NameFreed(),
    "handler added": HandlerAvailable("T"),
    "listener found": ListenerFound(SOCKET, 1),
}
#: All pauses follow the second try.
PAUSES = {
    "backoff": wait("no", 2, REFUSED),
    "notify": attrs.evolve(wait("no", 2, REFUSED), notify_try=3),
    "later": wait("no", 2, REFUSED),
    "stale": Pause(StateName.STALE, "no", 2, REFUSED, failures=2),
    "parked": park("no", 2, REFUSED),
    "no handler": park("no", 2, REFUSED, until_type="T"),
    "firm": Pause(StateName.WAITING, "crashed", 2, REFUSED, firm=True),
    "firmly parked": Pause(StateName.PARKED, "crashed", 2, REFUSED, firm=True),
}
#: The next try: one more than the last one, the first of a fresh count, or as planned.
TABLE = """
                   retry  touched  name freed  handler added  listener found
    backoff        fresh   next       next          -               -
    notify         fresh   next        -            -               -
    later          fresh    -         next          -               -
    stale          fresh   next        -            -             fresh
    parked         fresh   next        -            -               -
    no handler     fresh    -          -          fresh             -
    firm           fresh    -          -            -               -
    firmly parked  fresh    -          -            -               -
"""
CELLS = [
    (name, trigger, cell)
    for line, name in zip(TABLE.strip().splitlines()[1:], PAUSES, strict=True)
    for trigger, cell in zip(TRIGGERS, line.strip().removeprefix(name).split(), strict=True)
]
HURRYING = ("touched", "name freed")


@pytest.mark.parametrize(("name", "trigger", "cell"), CELLS, ids=[f"{name}, {trigger}" for name, trigger, _ in CELLS])
def test_a_message_brings_the_next_try_forward_as_the_table_says(name: str, trigger: str, cell: str) -> None:
    """Behaviours 3, 15, 29 and 37, fault 85."""
    pause, message, later = PAUSES[name], TRIGGERS[trigger], name == "later"
    brought = brought_forward(pause, message, hurried=False, later=later)
    if cell == "-":
        assert brought == Brought(pause)
        # An event that does nothing does not end the pace of others.
        assert brought_forward(pause, message, hurried=True, later=later) == Brought(pause, hurried=True)
        return
    hurried = trigger in HURRYING
    if name == "notify":
        assert brought == Brought(NotifyAgain(4 if cell == "next" else 1), hurried=hurried)
        return
    cause = None if trigger == "handler added" else REFUSED
    assert brought == Brought(Try(3 if cell == "next" else 1, cause), hurried=hurried)


def test_only_a_handler_of_its_type_ends_the_wait_of_an_orphan() -> None:
    """Behaviour 29."""
    pause = PAUSES["no handler"]
    assert brought_forward(pause, HandlerAvailable("U"), hurried=False) == Brought(pause)


@pytest.mark.parametrize(
    ("name", "trigger"), [(name, trigger) for name, trigger, cell in CELLS if cell == "next"], ids=lambda word: word
)
def test_a_second_event_in_a_step_of_the_backoff_brings_nothing_forward(name: str, trigger: str) -> None:
    """Fault 49: what is parked waits for its backoff from then on."""
    pause = PAUSES[name]
    waits = wait("no", 2, REFUSED) if name == "parked" else pause
    brought = brought_forward(pause, TRIGGERS[trigger], hurried=True, later=name == "later")
    assert brought == Brought(waits, hurried=True)
    assert waits.has_timer


@pytest.mark.parametrize("name", PAUSES)
def test_a_user_who_asks_for_a_retry_gets_it_and_ends_the_pace(name: str) -> None:
    """Fault 49."""
    brought = brought_forward(PAUSES[name], TryNow(), hurried=True, later=name == "later")
    assert not brought.hurried
    assert brought.then == (NotifyAgain(1) if name == "notify" else Try(1, REFUSED))


@given(st.lists(st.sampled_from([*TRIGGERS.values(), None]), max_size=60), st.sampled_from(["backoff", "stale"]))
def test_events_bring_at_most_one_try_for_each_wait_that_is_over(events: list[Trigger | None], name: str) -> None:
    """Fault 49: so the backoff bounds the dials of a socket, whatever happens to it. None: the wait is over."""
    hurried, brought, asked = False, 0, 1
    for event in events:
        if event is None:
            hurried, asked = False, asked + 1
            continue
        after = brought_forward(PAUSES[name], event, hurried=hurried)
        hurried = after.hurried
        if isinstance(after.then, Try):
            if isinstance(event, following.HURRYING):
                brought += 1
            else:
                asked += 1
    assert brought <= asked


# --- the first try ----------------------------------------------------------------------------------------------------


def test_a_socket_that_appears_is_tried_at_once() -> None:
    assert following.first(appeared()) == Try(1)


def test_a_socket_whose_last_plugins_had_short_lives_waits_and_no_event_shortens_that() -> None:
    """Fault 49."""
    pause = following.first(attrs.evolve(appeared(), not_before=9.0, short_lives=3))
    assert isinstance(pause, Pause)
    assert (pause.state, pause.attempt, pause.firm) == (StateName.WAITING, 0, True)
    assert (pause.not_before, pause.short_lives, pause.failures) == (9.0, 3, 3)
    assert following.after_timer(pause) == Try(1)


@pytest.mark.parametrize(
    ("count", "state"), [(1, StateName.WAITING), (MOST_CRASHES, StateName.PARKED)], ids=["first", "last"]
)
def test_the_successor_of_a_crashed_actor_waits_and_parks_in_the_end(count: int, state: StateName) -> None:
    """Fault 85: also at a path with short lives."""
    crash = Crash(count, "Oops")
    pause = following.first(attrs.evolve(appeared(), not_before=9.0, short_lives=3), crash)
    assert pause == Pause(state, crash.reason, count, firm=True, failures=count)


# --- after a try ------------------------------------------------------------------------------------------------------

CALLED = PluginInfo("DevicePlugin", "vendor.com/gpu", SOCKET, ("v1beta1",), 0, called=True)


@pytest.mark.parametrize("info", [None, INFO, attrs.evolve(CALLED, answered=True)], ids=["unknown", "dialed", "told"])
def test_a_plugin_that_plugind_can_reach_is_tried_again_by_backoff(info: PluginInfo | None) -> None:
    """A plugin whose call was answered yes does not call again, whatever becomes of its registration later."""
    assert following.again(info, "error", "reason", 2, REFUSED) == wait("error", 2, REFUSED)


def test_a_plugin_that_called_register_parks_until_it_calls_again() -> None:
    pause = following.again(CALLED, "error", "reason", 2, REFUSED)
    assert pause == park(f"reason: {CALL_AGAIN}", 2, REFUSED)
    assert not pause.has_timer


def test_a_pause_that_is_over_is_followed_by_the_next_try_with_what_the_plugin_was_told() -> None:
    assert following.after_timer(wait("no", 2, attrs.evolve(REFUSED, now="gone"))) == Try(3, REFUSED)
    assert following.after_timer(wait("no", 2, Cause("nobody listens"))) == Try(3)


def test_the_backoff_of_a_try_that_did_not_count_is_the_shortest() -> None:
    """Fault 41."""
    assert [wait("no", attempt).failures for attempt in (0, 1, 2)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ""),
        ({"name": "b"}, 'at the same socket it gave the name "vendor.com/gpu" before'),
        ({"endpoint": "/e"}, f'at the same socket it gave the endpoint "{SOCKET}" before'),
        (
            {"type": "T", "versions": ("v2",)},
            'at the same socket it gave the type "DevicePlugin" and the versions "v1beta1, v1" before',
        ),
    ],
)
def test_what_a_plugin_said_before_is_named_if_it_says_something_else(facts: dict[str, Any], said: str) -> None:
    before = attrs.evolve(CALLED, versions=("v1beta1", "v1"))
    assert following.changed(before, attrs.evolve(before, **facts)) == said
