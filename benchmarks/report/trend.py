"""Whether a figure grows with time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, linear_regression
from typing import Self

import attrs


@attrs.frozen
class Slope:
    """A straight line through samples: what it rises in a unit of time, and the standard error of that.

    There is no error of fewer than 5 samples.
    """

    slope: float
    error: float | None

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Self:
        """Return the slope of samples (time, value) with at least two different times.

        A sample that lies above the line is often followed by another one, so fewer of them are independent. The error
        is that of so many, by the correlation of neighbours (Santer et al. 2000).
        """
        times, values = zip(*samples, strict=True)
        slope, intercept = linear_regression(times, values)
        residuals = [value - intercept - slope * time for time, value in samples]
        count, squares = len(samples), sum(residual**2 for residual in residuals)
        if count < 5:
            return cls(slope, None)
        correlation = sum(one * other for one, other in pairwise(residuals)) / squares if squares else 0.0
        correlation = min(max(correlation, 0.0), 1 - 5 / count)
        independent = max(3.0, count * (1 - correlation) / (1 + correlation))
        middle = fmean(times)
        width = sum((time - middle) ** 2 for time in times)
        return cls(slope, math.sqrt(squares / (independent - 2) / width))
