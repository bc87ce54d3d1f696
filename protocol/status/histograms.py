"""Histograms of durations."""

from __future__ import annotations

import bisect

import attrs

from ..values import record

#: Upper bounds in seconds. A local call takes fractions of a millisecond; the longest deadline is two minutes.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
#: The bounds of the kubelet's histograms without own bounds: the defaults of Prometheus' client for Go.
KUBELET_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@record
class Histogram:
    """The number of observations in each bucket, and their sum."""

    bounds: tuple[float, ...] = BUCKETS
    counts: list[int] = attrs.field()
    total: float = 0.0

    @counts.default
    def _no_counts(self) -> list[int]:
        return [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each upper bound, ``+Inf`` last, with the number of observations at or below it."""
        result: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            result.append((bound, float(below)))
        return result
