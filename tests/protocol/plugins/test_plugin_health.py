"""Reports of a plugin's health and facts: their bounds, and how often they are sent."""

from __future__ import annotations

import math

import pytest

from plugind.protocol.plugins.health import MAX_FACT_BYTES, Health, HealthReports, Report, bounded

NOTHING = Report()
HEALTHY, UNHEALTHY = Report(Health.HEALTHY), Report(Health.UNHEALTHY, "no disk")


def test_facts_replace_those_before_and_hold_until_others_are_reported() -> None:
    first = bounded(Health.HEALTHY, "", {"a": "1", "b": "2"}, NOTHING)
    assert first.facts == (("a", "1"), ("b", "2"))
    assert bounded(Health.UNHEALTHY, "x", None, first) == Report(Health.UNHEALTHY, "x", first.facts)
    assert bounded(Health.HEALTHY, "", {}, first) == HEALTHY


def test_at_most_64_facts_are_kept() -> None:
    report = bounded(Health.HEALTHY, "", {str(number): "" for number in range(65)}, NOTHING)
    assert [key for key, _ in report.facts] == [str(number) for number in range(64)]
    assert report.warnings == ('1 of 65 facts were cut off, from "64" on: at most 64 with 16 KiB are kept',)
    assert bounded(Health.HEALTHY, "", {str(number): "" for number in range(64)}, report).warnings == ()


def test_the_first_fact_that_is_cut_off_is_named() -> None:
    facts = {"a": "1", "b\n" + "b" * 100: "x" * MAX_FACT_BYTES, "c": "3"}
    (warning,) = bounded(Health.HEALTHY, "", facts, NOTHING).warnings
    shown = '"b\\n' + "b" * 62 + '…(+38)"'
    assert warning == f"2 of 3 facts were cut off, from {shown} on: at most 64 with 16 KiB are kept"


def test_warnings_come_and_go_with_facts_and_are_bounded() -> None:
    first = bounded(Health.HEALTHY, "", {"a": "1"}, NOTHING, warnings=["x" * 2000, *map(str, range(20))])
    assert first.warnings == ("x" * 1024, *map(str, range(7)))
    assert bounded(Health.UNHEALTHY, "", None, first).warnings == first.warnings
    assert bounded(Health.HEALTHY, "", {"a": "1"}, first).warnings == ()


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}"])
def test_at_most_16_kib_of_facts_are_kept(letter: str) -> None:
    """They are counted in bytes of UTF-8."""
    text = letter * ((MAX_FACT_BYTES - 1) // len(letter.encode()))
    assert bounded(Health.HEALTHY, "", {"k": text}, NOTHING).facts == (("k", text),)
    assert bounded(Health.HEALTHY, "", {"k": text + letter}, NOTHING).facts == ()
    assert bounded(Health.HEALTHY, "", {"k": text, "l": letter}, NOTHING).facts == (("k", text),)


def test_what_is_no_text_is_an_error_of_the_handler() -> None:
    with pytest.raises(TypeError, match="the fact 'pid': 7 is not a text"):
        bounded(Health.HEALTHY, "", {"pid": 7}, NOTHING)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the reason None is no text"):
        bounded(Health.HEALTHY, None, None, NOTHING)
    with pytest.raises(ValueError, match="'fine' is not a valid Health"):
        bounded("fine", "", None, NOTHING)  # type: ignore[arg-type]


def test_reports_of_one_second_are_joined_and_the_newest_wins() -> None:
    reports = HealthReports()
    reports.put(Report(Health.STARTING, "1"))
    assert reports.take(10.0) == Report(Health.STARTING, "1")
    for number in range(100):
        reports.put(Report(Health.STARTING, f"again {number}"))
        assert reports.take(10.0 + number / 101) is None
    assert reports.due == 11.0
    assert reports.take(11.0) == Report(Health.STARTING, "again 99")
    assert (reports.due, reports.take(12.0)) == (math.inf, None)


def test_that_a_plugin_is_healthy_no_more_is_never_delayed() -> None:
    """To be healthy again takes a second, so there are at most two changes in it."""
    reports = HealthReports()
    reports.put(HEALTHY)
    assert reports.take(10.0) == HEALTHY
    reports.put(UNHEALTHY)
    assert reports.take(10.0) == UNHEALTHY
    reports.put(HEALTHY)
    assert reports.take(10.9) is None
    assert reports.take(11.0) == HEALTHY


def test_what_was_sent_is_not_sent_again() -> None:
    reports = HealthReports()
    reports.put(HEALTHY)
    reports.take(0.0)
    reports.put(HEALTHY)
    assert reports.due == math.inf
    reports.put(Report(Health.HEALTHY, "really"))
    reports.put(HEALTHY)
    assert reports.due == math.inf


def test_what_may_have_been_lost_is_sent_again() -> None:
    """Fault 85: the status actor has crashed."""
    reports = HealthReports()
    reports.put(HEALTHY)
    reports.take(0.0)
    reports.put_again()
    assert reports.take(1.0) == HEALTHY


def test_the_first_facts_are_not_delayed_and_later_ones_are() -> None:
    """Whoever waits for a driver and then asks for its facts must not get none."""
    reports = HealthReports()
    reports.put(NOTHING)
    assert reports.take(0.0) == NOTHING
    first = Report(Health.UNKNOWN, "", (("node-id", "a"),))
    reports.put(first)
    assert reports.take(0.1) == first
    for facts in ((), (("node-id", "b"),)):
        reports.put(Report(Health.UNKNOWN, "", facts))
        assert reports.due == pytest.approx(1.1)
