"""Backoff as arithmetic: delays between tries, and how often an actor may be restarted.

Chance and time are handed in: jitter as a number that the caller drew from its seeded source, restarts as times that
the caller read from its clock.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Backoff:
    """How long to wait after each failure in a row (behaviour 23): 0.5 s, doubling, capped at 122 s."""

    #: Seconds after the first failure.
    initial: float = 0.5
    factor: float = 2.0
    #: Seconds; no delay is longer, jitter apart.
    cap: float = 122.0
    #: The largest fraction that is added, so that a herd of retries spreads out. It is never subtracted: a delay is
    #: not shorter than its rule.
    jitter: float = 0.1

    def delay(self, failures: int, chance: float = 0.0) -> float:
        """Return the seconds to wait after so many ``failures`` in a row, ``chance`` being drawn from [0, 1).

        Raises:
          ValueError: if ``failures`` is less than one: there is nothing to wait for.
        """
        if failures < 1:
            raise ValueError(f"a delay follows a failure, and there were {failures}")
        # The exponent is bounded before the power is taken: a float overflows after a thousand failures.
        exponent = min(failures - 1, 64)
        return min(self.cap, self.initial * self.factor**exponent) * (1.0 + self.jitter * chance)


@attrs.frozen
class RestartIntensity:
    """How many crashes within a period a supervisor mends before it gives up (fault 85)."""

    restarts: int = 10
    #: Seconds.
    period: float = 60.0

    def admit(self, past: tuple[float, ...], now: float) -> tuple[float, ...] | None:
        """Return the restarts that still count with the one at ``now``, or None when it is one too many."""
        recent = (*(time for time in past if now - time < self.period), now)
        return recent if len(recent) <= self.restarts else None
