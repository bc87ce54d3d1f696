"""Whether memory grows: the slope of samples, its error, and the verdict on it."""

from __future__ import annotations

import random

import pytest

from plugind.benchmarks.churn import Churn, summary, verdicts
from plugind.benchmarks.report.trend import Slope

pytestmark = pytest.mark.extended


def test_the_error_is_that_of_ordinary_least_squares_where_neighbours_are_independent() -> None:
    """The samples alternate, so a high one is never followed by another: no fewer of them count."""
    found = Slope.of([(at, float(at % 2)) for at in range(6)])
    assert found.slope == pytest.approx(1.5 / 17.5)
    squares = 1.5 - 1.5**2 / 17.5
    assert found.error == pytest.approx((squares / 4 / 17.5) ** 0.5)


def test_samples_that_follow_each_other_count_as_fewer() -> None:
    """Noise that stays for ten samples each has the error of a tenth to a twentieth as many: it knows no more."""
    chance = random.Random(1)
    noise = [chance.gauss(0, 1) for _ in range(60)]
    fast = Slope.of([(at, noise[at % 60]) for at in range(60)])
    slow = Slope.of([(at / 10, noise[at // 10]) for at in range(600)])
    assert fast.error is not None
    assert slow.error is not None
    assert fast.error < slow.error < 2**0.5 * fast.error


@pytest.mark.parametrize(
    ("slope", "error", "kept"),
    [(10.0, 1.0, True), (100.0, 60.0, True), (100.0, 20.0, False), (-500.0, 1.0, True), (18.0, 0.0, False)],
    ids=["small", "maybe by chance", "grows", "shrinks", "just too steep"],
)
def test_memory_is_flat_if_its_slope_is_small_or_could_be_zero(slope: float, error: float, kept: bool) -> None:
    one = Churn(rate=200, seconds=600, slope_kib_min=slope, slope_error_kib_min=error, rss=[(0, 1.0)])
    (found,) = verdicts([one])
    assert found.kept is kept
    assert str(found) in summary([one])
