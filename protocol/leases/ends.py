"""Until when leases last, with the earliest end first."""

from __future__ import annotations

import heapq
import math

import attrs

from ..values import record

#: How many ends may be kept that are none any more, beside as many as there are.
_STALE = 64


@record(eq=False)
class Ends:
    """Until when things last, by the ids of leases."""

    _ends: dict[str, float] = attrs.field(factory=dict)
    #: The same by time, with what was forgotten, or lasts until another time by now.
    by_time: list[tuple[float, str]] = attrs.field(factory=list)

    @property
    def next(self) -> float:
        """The earliest end; infinity if there is none."""
        while self.by_time and self._ends.get(self.by_time[0][1]) != self.by_time[0][0]:
            heapq.heappop(self.by_time)
        return self.by_time[0][0] if self.by_time else math.inf

    def set(self, lease: str, end: float) -> None:
        """Let it last until ``end``."""
        self._ends[lease] = end
        heapq.heappush(self.by_time, (end, lease))
        if len(self.by_time) > 2 * len(self._ends) + _STALE:
            self.by_time = sorted((end, lease) for lease, end in self._ends.items())

    def forget(self, lease: str) -> float | None:
        """Let it last for ever, and return until when it was to last; None if that was for ever."""
        return self._ends.pop(lease, None)

    def take(self, now: float) -> list[str]:
        """Remove and return those that are over, the first one first."""
        over = []
        while self.next <= now:
            _, lease = heapq.heappop(self.by_time)
            del self._ends[lease]
            over.append(lease)
        return over
