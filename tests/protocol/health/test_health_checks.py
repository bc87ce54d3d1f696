"""When an endpoint is checked, and what its checks show: a machine on time and results."""

from __future__ import annotations

import math

import pytest

from plugind.protocol.errors import ConfigError, IllegalStepError
from plugind.protocol.health.checks import (
    ALL_TYPES,
    GRID,
    CheckBegan,
    Checked,
    CheckEvent,
    CheckFailed,
    CheckPassed,
    Connected,
    Disconnected,
    HealthChecks,
    is_worse,
    silence,
    step,
)
from plugind.protocol.plugins.health import Health

RULE = HealthChecks()
#: No jitter: the middle of its range.
MIDDLE = 0.5
SILENT = "no answer within 3s"

#: A state, an event, and the state after it.
TABLE: list[tuple[str, Checked, CheckEvent, Checked]] = [
    ("a new connection is checked at once at the earliest", Checked(), Connected(100, 0), Checked(due=100)),
    ("and after a period at the latest", Checked(), Connected(100, 0.9), Checked(due=127)),
    ("a check that is out lets none be due", Checked(due=100), CheckBegan(101), Checked(began=101)),
    ("one success makes it healthy", Checked(began=100), CheckPassed(MIDDLE), Checked(Health.HEALTHY, due=130)),
    (
        "the period is 20 % shorter at the least",
        Checked(Health.HEALTHY, began=100),
        CheckPassed(0),
        Checked(Health.HEALTHY, due=124),
    ),
    (
        "one failure changes nothing that is shown, and the next check follows after 5 s",
        Checked(Health.HEALTHY, began=100),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.HEALTHY, "", 1, 105),
    ),
    (
        "nor does the second one",
        Checked(Health.HEALTHY, "", 1, began=105),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.HEALTHY, "", 2, 110),
    ),
    (
        "the third one makes it unhealthy, and the period is 30 s again",
        Checked(Health.HEALTHY, "", 2, began=110),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.UNHEALTHY, SILENT, 3, 140),
    ),
    (
        "an endpoint of which nothing is known becomes unhealthy, too",
        Checked(Health.UNKNOWN, "", 2, began=110),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.UNHEALTHY, SILENT, 3, 140),
    ),
    (
        "more failures count, and the newest reason is shown",
        Checked(Health.UNHEALTHY, SILENT, 3, began=140),
        CheckFailed("INTERNAL: broken", MIDDLE),
        Checked(Health.UNHEALTHY, "INTERNAL: broken", 4, 170),
    ),
    (
        "one success ends that",
        Checked(Health.UNHEALTHY, SILENT, 7, began=140),
        CheckPassed(MIDDLE),
        Checked(Health.HEALTHY, due=170),
    ),
    (
        "failures with a success between them are not in a row",
        Checked(Health.HEALTHY, began=140),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.HEALTHY, "", 1, 145),
    ),
    (
        "the end of the connection shows at once, and no check is due",
        Checked(Health.HEALTHY, due=140),
        Disconnected("it broke"),
        Checked(Health.DISCONNECTED, "it broke"),
    ),
    (
        "also while a check is out",
        Checked(Health.HEALTHY, began=140),
        Disconnected("it broke"),
        Checked(Health.DISCONNECTED, "it broke"),
    ),
    (
        "whose result comes too late then",
        Checked(Health.DISCONNECTED, "it broke"),
        CheckFailed(SILENT, MIDDLE),
        Checked(Health.DISCONNECTED, "it broke"),
    ),
    (
        "whatever it is",
        Checked(Health.DISCONNECTED, "it broke"),
        CheckPassed(MIDDLE),
        Checked(Health.DISCONNECTED, "it broke"),
    ),
    (
        "another connection begins with nothing",
        Checked(Health.DISCONNECTED, "it broke"),
        Connected(200, MIDDLE),
        Checked(due=215),
    ),
]


@pytest.mark.parametrize(("before", "event", "after"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_event_has_one_result(before: Checked, event: CheckEvent, after: Checked) -> None:
    assert step(RULE, before, event) == after


@pytest.mark.parametrize("before", [Checked(began=100.0), Checked(Health.DISCONNECTED, "it broke"), Checked()])
def test_no_check_begins_while_one_is_out_or_nothing_is_connected(before: Checked) -> None:
    with pytest.raises(IllegalStepError, match="none was due"):
        step(RULE, before, CheckBegan(110))


def test_an_endpoint_that_hangs_is_unhealthy_within_a_minute_and_one_that_is_back_is_healthy_within_40_seconds() -> (
    None
):
    """The longest times: it hangs just after a check began, and is back just after one, with the longest periods."""
    latest = 1 - 1e-9
    state, at = step(RULE, Checked(Health.UNKNOWN, began=0), CheckPassed(latest)), 0.0
    while state.health is not Health.UNHEALTHY:
        at = state.due + RULE.deadline
        state = step(RULE, step(RULE, state, CheckBegan(state.due)), CheckFailed(silence(RULE.deadline), latest))
    assert at == pytest.approx(36 + 5 + 5 + 3)
    assert state.due - at + RULE.deadline <= 40


def test_a_type_that_is_left_out_has_a_reason_that_says_what_turns_its_checks_on() -> None:
    rule = HealthChecks(off=frozenset({ALL_TYPES}), periods={"DRAPlugin": 60.0})
    assert rule.why_not_checked("DRAPlugin") is None
    assert HealthChecks().why_not_checked("CSIPlugin") is None
    why = "checks of its type are off: 'plugind run --health CSIPlugin=30' turns them on"
    assert rule.why_not_checked("CSIPlugin") == why


@pytest.mark.parametrize(
    "wrong",
    [{"period": 0}, {"period": math.inf}, {"deadline": 0}, {"confirm_after": 0}, {"failures": 0}, {"jitter": 1}],
)
def test_a_rule_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HealthChecks(**wrong)  # type: ignore[arg-type]


def test_the_worse_of_two_findings_is_known() -> None:
    order = [Health.HEALTHY, Health.UNHEALTHY, Health.DISCONNECTED]
    for place, worse in enumerate(order):
        for better in order[:place]:
            assert is_worse(worse, better)
            assert not is_worse(better, worse)
    assert not is_worse(Health.UNKNOWN, Health.HEALTHY)
    assert not is_worse(Health.HEALTHY, Health.UNKNOWN)


@pytest.mark.parametrize("period", [0.05, 1.0, 9.0, 30.0, 3600.0])
def test_a_check_begins_with_others_and_hardly_earlier_than_it_is_due(period: float) -> None:
    """Otherwise each of a thousand endpoints wakes the process alone."""
    rule = HealthChecks(period=period)
    early = [due - rule.on_grid(due) for due in (1000.0 + number * period / 7.3 for number in range(200))]
    assert all(-1e-9 <= seconds <= min(0.5, period / 50) + 1e-9 for seconds in early)


def test_the_seconds_between_two_checks_stay_within_their_bounds() -> None:
    for chance in (0.0, 0.3, 0.7, 0.999):
        assert 24 <= RULE.on_grid(500.5 + RULE.next_period(chance)) - 500.5 <= 36
    assert RULE.on_grid(500.5 + RULE.confirm_after) - 500.5 == 5
    assert HealthChecks(confirm_after=0.1).on_grid(0.1) == pytest.approx(0.1)
    assert GRID == 0.5
