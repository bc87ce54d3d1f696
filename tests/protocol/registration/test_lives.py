"""Short lives: how long the next socket at a path waits, and that the record is bounded and forgets."""

from __future__ import annotations

import sys
from collections.abc import Callable

from plugind.protocol.backoff import Backoff
from plugind.protocol.registration.lives import MOST_PATHS, REMEMBERED, Hold, Life, Lives, reason

A, B = "/r/a.sock", "/r/b.sock"


def lives(stable_after: float = 10.0) -> Lives:
    return Lives(Backoff(jitter=0.0), stable_after)


def test_each_short_life_doubles_the_delay_from_the_end_of_that_life() -> None:
    """Fault 49: 0.5 s to 122 s, whatever else happens at other paths."""
    made, delays = lives(), []
    for number in range(10):
        ended = 1000.0 * number / 2
        made.ended(A, Life(ended - 1.0), ended)
        made.ended(B, Life(ended - 20.0), ended)
        hold = made.hold(A, ended)
        assert hold is not None
        assert hold.short_lives == number + 1
        delays.append(hold.not_before - ended)
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0]
    assert made.hold(B, 5000.0) is None


def test_a_pause_that_the_supervisor_of_the_plugin_makes_is_part_of_the_delay() -> None:
    """Fault 49: the delay counts from the end of the life, and not from the next appearance."""
    made = lives()
    for ended in (1.0, 2.0, 3.0):
        made.ended(A, Life(ended), ended)
    assert made.hold(A, 4.5) == Hold(5.0, 3)
    assert made.hold(A, 5.0) is None


def test_a_longer_life_or_a_retry_ends_the_row() -> None:
    """Fault 49, behaviour 24."""
    made = lives()
    made.ended(A, Life(0.0), 9.999)
    assert made.hold(A, 10.0) == Hold(10.499, 1)
    made.ended(A, Life(20.0), 30.0)
    assert made.hold(A, 30.0) is None
    made.ended(A, Life(40.0), 40.0)
    assert made.hold(A, 40.0) == Hold(40.5, 1)
    made.forget(A)
    assert made.hold(A, 40.0) is None
    assert len(made) == 0


def test_a_series_ages() -> None:
    """Fault 49: a plugin that crashed ten minutes ago, beside the longest delay, begins anew."""
    made, old = lives(), REMEMBERED + Backoff().cap
    made.ended(A, Life(0.0), 0.0)
    made.ended(A, Life(old), old)
    assert made.hold(A, old) == Hold(old + 1.0, 2)
    made.ended(A, Life(2 * old + 1), 2 * old + 1)
    assert made.hold(A, 2 * old + 1) == Hold(2 * old + 1.5, 1)


def test_a_life_begins_with_the_first_notification_or_before_that_with_the_first_dial() -> None:
    """Fault 49."""
    life = Life()
    times = []
    for note, at in ((life.dialed, 1.0), (life.dialed, 2.0), (life.notified, 3.0), (life.notified, 4.0)):
        note(at)
        times.append(life.since)
    assert times == [1.0, 1.0, 3.0, 3.0]


def test_a_life_ends_when_its_silence_begins_unless_somebody_listens_again() -> None:
    """Fault 49: a daemon may notice the end of a plugin long after it."""
    ways: tuple[Callable[[Life, float], None], ...] = (
        Life.dialed,
        Life.notified,
        lambda life, at: life.heard(at, listening=True),
    )
    for listens in ways:
        made, life = lives(), Life(0.0)
        life.heard(2.0, listening=False)
        listens(life, 3.0)
        assert life.silent is None
        life.heard(4.0, listening=False)
        life.heard(6.0, listening=False)
        assert life.silent == 4.0
        life.since = 0.0
        made.ended(A, life, 100.0)
        assert made.hold(A, 4.0) == Hold(4.5, 1)


def test_the_reason_counts_the_short_lives() -> None:
    assert [reason(1), reason(2)] == ["crash loop: 1 short life", "crash loop: 2 short lives"]


def test_a_hundred_thousand_paths_are_not_remembered() -> None:
    """Fault 49: the record is bounded, and so is its memory; the paths that ended last stay."""
    made = lives()
    for number in range(100_000):
        made.ended(f"/r/{number}.sock", Life(number / 1000), number / 1000)
    assert len(made) == MOST_PATHS
    assert made.hold("/r/99999.sock", 100.0) == Hold(99.999 + 0.5, 1)
    assert made.hold("/r/0.sock", 100.0) is None
    assert sys.getsizeof(made._series) < 1 << 19
    made.ended(A, Life(5000.0), 5000.0)
    assert len(made) == 1
