from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.backoff import Backoff, RestartIntensity, chance_of
from plugind.tests.protocol.hypothesis_settings import examples

#: Values of ``random.Random.random``.
CHANCE = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)


def test_delays_start_at_half_a_second_and_double_up_to_122_s() -> None:
    """The reference's exponential backoff: 500 ms, doubling, cap 2 min 2 s (behaviour 23)."""
    backoff = Backoff()

    delays = [backoff.delay(failures) for failures in range(1, 12)]

    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0]


def test_a_chance_is_the_same_in_each_run_and_another_for_each_seed_path_generation_and_attempt() -> None:
    """Behaviour 23. The figures were printed by CPython 3.11."""
    path = "/var/lib/kubelet/plugins_registry/a.example.com-reg.sock"

    assert round(chance_of(0, path, 1, 1), 6) == 0.43745
    assert len({chance_of(seed, path, 1, 1) for seed in range(100)}) == 100
    assert len({chance_of(0, f"{path}{number}", 1, 1) for number in range(100)}) == 100
    assert len({chance_of(0, path, generation, 1) for generation in range(100)}) == 100
    assert len({chance_of(0, path, 1, attempt) for attempt in range(100)}) == 100


def test_the_chances_of_sockets_that_fail_together_are_spread_out() -> None:
    """Behaviour 23: of 1,000 sockets with similar names, each tenth of the range has 70 to 130."""
    chances = [chance_of(0, f"/plugins/plugin-{number}.sock", number, 1) for number in range(1000)]

    tenths = Counter(int(10 * chance) for chance in chances)
    assert len(tenths) == 10
    assert all(70 <= count <= 130 for count in tenths.values())


@pytest.mark.parametrize("failures", [1024, 10_000, 10**100])
def test_the_delay_after_a_huge_count_of_failures_is_the_cap(failures: int) -> None:
    """Retrying a stale socket for years does not overflow a float (fault 28)."""
    assert Backoff().delay(failures) == 122.0


@pytest.mark.parametrize("failures", [0, -1])
def test_there_is_no_delay_without_a_failure(failures: int) -> None:
    with pytest.raises(ValueError, match=f"a delay follows a failure, and there were {failures}"):
        Backoff().delay(failures)


RULES = st.builds(
    Backoff,
    initial=st.floats(0.001, 10.0),
    factor=st.floats(1.0, 10.0),
    cap=st.floats(0.001, 1000.0),
    jitter=st.floats(0.0, 1.0),
)


@examples(60)
@given(RULES, st.integers(1, 40), CHANCE)
def test_any_backoff_grows_from_its_start_up_to_its_cap(backoff: Backoff, failures: int, chance: float) -> None:
    """Behaviour 23, compared with a loop that multiplies."""
    grown = backoff.initial
    for _ in range(failures - 1):
        grown *= backoff.factor
    rule = backoff.delay(failures)
    assert rule == pytest.approx(min(grown, backoff.cap))
    assert rule <= backoff.delay(failures + 1)
    assert rule <= backoff.delay(failures, chance) <= rule * (1 + backoff.jitter) * (1 + 1e-9)


def test_crashes_within_the_intensity_are_restarted_and_one_more_is_not() -> None:
    """Fault 85: an actor is restarted within the intensity; one more crash is escalated."""
    intensity = RestartIntensity(restarts=3, period=60.0)

    past: tuple[float, ...] | None = ()
    admitted = []
    for now in (0.0, 1.0, 2.0, 3.0):
        assert past is not None
        past = intensity.admit(past, now)
        admitted.append(past)

    assert admitted == [(0.0,), (0.0, 1.0), (0.0, 1.0, 2.0), None]


def test_a_crash_counts_until_its_period_is_over() -> None:
    """Fault 85."""
    intensity = RestartIntensity(restarts=1, period=60.0)

    assert intensity.admit((0.0,), 59.9) is None
    assert intensity.admit((0.0,), 60.0) == (60.0,)


@given(
    gaps=st.lists(st.floats(min_value=0.0, max_value=100.0), max_size=50),
    restarts=st.integers(min_value=1, max_value=5),
)
def test_no_period_has_more_restarts_than_the_intensity_allows(gaps: list[float], restarts: int) -> None:
    """Fault 85, over any sequence of crashes."""
    intensity = RestartIntensity(restarts, period=60.0)
    past: tuple[float, ...] = ()
    mended = []
    for now in itertools.accumulate(gaps):
        recent = intensity.admit(past, now)
        if recent is None:
            break
        past = recent
        mended.append(now)

    for time in mended:
        assert sum(0.0 <= time - other < 60.0 for other in mended) <= restarts


def test_the_default_intensity_is_ten_restarts_in_a_minute() -> None:
    """Fault 85: this is the default of the supervisor."""
    assert RestartIntensity() == RestartIntensity(restarts=10, period=60.0)
