"""When GetInfo's second begins, and when a connection is looked at."""

from __future__ import annotations

import pytest

from plugind.protocol.registration.info_deadline import InfoDeadline, first_look
from plugind.protocol.settings.config import Timeouts

DIALED, ASKED = 99.5, 100.0


def deadline(**timeouts: float) -> InfoDeadline:
    return InfoDeadline(DIALED, ASKED, Timeouts(**timeouts))  # type: ignore[arg-type]


def looks(info_deadline: InfoDeadline, *, idle_until: float, **timeouts: float) -> list[float]:
    """Return when a connection is looked at whose peer reads at ``idle_until``, and when its time is over."""
    times, now = [ASKED + first_look(Timeouts(**timeouts))], 0.0  # type: ignore[arg-type]
    while True:
        now = times[-1]
        later = info_deadline.look(now, idle=now < idle_until)
        if later is None:
            return [round(time - ASKED, 6) for time in times]
        times.append(later)


def test_looks_become_rarer_until_the_time_of_the_dial_is_over() -> None:
    info_deadline = deadline()
    assert looks(info_deadline, idle_until=1000.0) == [0.1, 1.0, 2.0, 4.0, 8.0, 9.5]
    assert info_deadline.why_over() == "its process listens, and has not read anything in 10 s"


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (100.0, [0.1, 1.0]),
        (100.1, [0.1, 1.0]),
        (100.11, [0.1, 1.0, 2.0]),
        (101.5, [0.1, 1.0, 2.0, 3.0]),
        (104.1, [0.1, 1.0, 2.0, 4.0, 8.0, 9.0]),
        (109.4, [0.1, 1.0, 2.0, 4.0, 8.0, 9.5, 10.5]),
    ],
)
def test_the_second_begins_with_the_look_that_finds_the_request_read(read: float, expected: list[float]) -> None:
    info_deadline = deadline()
    assert looks(info_deadline, idle_until=read) == expected
    assert info_deadline.why_over() == "no answer in 1 s"


def test_a_first_look_that_comes_late_does_not_say_when_the_request_was_read() -> None:
    assert deadline().look(100.9, idle=False) == 101.9


def test_a_look_between_finds_what_was_read_after_the_first_one() -> None:
    """A first try that has been silent for long enough is looked at; its plugin has its second all the same."""
    info_deadline = deadline()
    assert info_deadline.look(ASKED + 0.1, idle=True) == ASKED + 1.0
    assert info_deadline.look(ASKED + 0.2, idle=False) == ASKED + 1.2


def test_the_second_begins_with_the_first_byte_and_begins_once() -> None:
    info_deadline = deadline()
    assert info_deadline.look(100.1, idle=True) == 101.0
    assert not info_deadline.has_begun
    assert info_deadline.hear(100.5) == 101.5
    assert info_deadline.has_begun
    assert info_deadline.hear(101.25) == 101.5


def test_a_byte_after_the_request_was_read_gives_no_second_of_its_own() -> None:
    info_deadline = deadline()
    assert info_deadline.look(102.0, idle=False) == 103.0
    assert info_deadline.hear(102.9) == 103.0


@pytest.mark.parametrize(("get_info", "dial", "over"), [(60.0, 10.0, 60.0), (0.05, 0.2, 0.05), (3.0, 1.0, 3.0)])
def test_the_time_of_get_info_counts_where_it_is_longer_than_what_is_left_of_the_dial(
    get_info: float, dial: float, over: float
) -> None:
    info_deadline = deadline(get_info=get_info, dial=dial)
    assert looks(info_deadline, idle_until=1000.0, get_info=get_info, dial=dial)[-1] == over


def test_a_plugin_is_late_when_its_second_would_be_over() -> None:
    info_deadline = deadline()
    assert [info_deadline.is_late(now) for now in (100.1, 100.99, 101.0, 105.0)] == [False, False, True, True]
