"""Backoff as arithmetic: delays between attempts, and how often an actor may be restarted.

The caller passes in the time, and the seed from which the chance of each delay is hashed.
"""

from __future__ import annotations

import zlib

import attrs

from .checks import above_zero, at_least_one, not_negative
from .values import value


def chance_of(seed: int, path: str, generation: int, attempt: int) -> float:
    """Return a number from [0, 1) that depends only on these four, and not on other random numbers.

    It is the same in each interpreter, and differs between sockets that fail together and between attempts.
    """
    text = f"{seed} {generation} {attempt} {path}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) / 2**32


@attrs.frozen
class Backoff:
    """The delay after each consecutive failure (behaviour 23): 0.5 s, doubling, capped at 122 s.

    Raises:
      ConfigError: if a number is out of range: a delay of 0, a factor below 1.
    """

    #: Seconds after the first failure.
    initial: float = attrs.field(default=0.5, validator=above_zero)
    #: The factor by which each delay is longer than the one before.
    factor: float = attrs.field(default=2.0, validator=at_least_one)
    #: The longest delay in seconds, without jitter.
    cap: float = attrs.field(default=122.0, validator=above_zero)
    #: The largest fraction that is added to a delay, so that many retries spread out. Jitter never shortens a delay.
    jitter: float = attrs.field(default=0.1, validator=not_negative)

    def delay(self, failures: int, chance: float = 0.0) -> float:
        """Return the seconds to wait after ``failures`` in a row; ``chance`` is a random number from [0, 1).

        Raises:
          ValueError: if ``failures`` is less than one.
        """
        if failures < 1:
            raise ValueError(f"a delay follows a failure, and there were {failures}")
        # A float would overflow after a thousand failures.
        exponent = min(failures - 1, 64)
        return min(self.cap, self.initial * self.factor**exponent) * (1.0 + self.jitter * chance)


#: The pause before an actor is restarted, by its crashes in the last period (fault 85). The first one is hardly
#: noticed, and the longest one is shorter than the time after which an actor counts as hung.
RESTART_PAUSE = Backoff(initial=0.05, cap=5.0, jitter=0.0)


@value
class RestartIntensity:
    """The number of crashes within a period after which a supervisor gives up (fault 85)."""

    #: The most crashes within a period.
    restarts: int = attrs.field(default=10, validator=not_negative)
    #: Seconds.
    period: float = attrs.field(default=60.0, validator=above_zero)

    def admit(self, past: tuple[float, ...], now: float) -> tuple[float, ...] | None:
        """Return the recent restarts including one ``now``; None if that is one too many."""
        recent = (*(time for time in past if now - time < self.period), now)
        return recent if len(recent) <= self.restarts else None
