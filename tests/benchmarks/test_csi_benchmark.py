"""The benchmark of CSI drivers measures what it reports: each driver is asked, and notes each check."""

from __future__ import annotations

import pytest

from plugind.benchmarks.csi_cases import (
    CLIENT,
    measure_asking,
    measure_hanging,
)

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("consumer", ["plugind", CLIENT])
def test_each_consumer_makes_the_four_calls_to_each_driver(consumer: str) -> None:
    measured = measure_asking(consumer, 3, tail=0.0)
    assert measured.cpu_ms_per_driver > 0


def test_drivers_that_hang_are_checked_beside_healthy_ones() -> None:
    measured = measure_hanging(2, 2, period=1.0, seconds=0.1)
    assert (measured.healthy, measured.hanging) == (2, 2)
    assert measured.probes >= 2
    assert measured.unanswered >= 2
    assert 0 < measured.median_gap <= measured.longest_gap
