"""The wall clock of a script, which is set again and again, forward and back.

Only dates may change with it. It is drawn from a chance of its own, and leaves nothing in the trace: so a script in
which something else depends on it has another trace, or violates a rule.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Final

import trio

#: How far it is off: it was never set, was set an hour back or forth, or a year, or a little.
_OFFSETS: Final = (0.0, -1e6, -3600.0, 3600.0, 3.2e7, 0.75, -0.25)
#: Of so many looks, one comes after somebody has set it.
_LOOKS: Final = 12
#: How far two times may differ that are the same: dates have milliseconds.
_TICK: Final = 0.002


class WallClock:
    """The wall clock of one script."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(f"plugind wall {seed}")
        #: How far it was off, and from when on.
        self._offsets = [(0.0, 0.0)]

    def __call__(self) -> float:
        """Return Unix time."""
        return trio.current_time() + self.off

    def pass_on(self) -> None:
        """Have somebody set it now and then."""
        if self._chance.randrange(_LOOKS) == 0:
            self.set_off(self._chance.choice(_OFFSETS))

    @property
    def off(self) -> float:
        """How far it is off now."""
        return self._offsets[-1][1]

    def set_off(self, offset: float) -> None:
        """Set it, so far from Trio's clock."""
        self._offsets.append((trio.current_time(), offset))

    def may_show(self, text: str, since: float, until: float) -> bool:
        """Whether ``text`` is the date of a moment between two times of Trio's clock, made then or later."""
        unix = datetime.fromisoformat(text).timestamp()
        return any(since - _TICK <= unix - offset <= until + _TICK for offset in self._since(since))

    def _since(self, time: float) -> set[float]:
        """Return how far it was off at ``time``, and later."""
        ends = [began for began, _ in self._offsets[1:]] + [float("inf")]
        return {offset for (_, offset), end in zip(self._offsets, ends, strict=True) if end >= time}
