"""Finds resources that have had fewer healthy devices than expected for so long that the log reports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs

from ..values import value

#: Seconds until missing devices are reported. The update of a plugin takes some.
PATIENCE = 30.0


@value
class Shortfall:
    """A resource has fewer healthy devices than expected, or has enough again."""

    name: str
    expected: int
    healthy: int

    @property
    def is_over(self) -> bool:
        """Whether there are enough again."""
        return self.healthy >= self.expected


@attrs.define
class Shortfalls:
    """The resources with expected devices. The beginning and the end of each shortfall are reported once."""

    _expected: Mapping[str, int] = attrs.field(factory=dict)
    #: When each shortfall must be reported; infinity if it was.
    _due: dict[str, float] = attrs.field(factory=dict)

    @property
    def next_end(self) -> float:
        """When :meth:`judge` has a report without any change; infinity if never."""
        return min(self._due.values(), default=math.inf)

    def expect(self, numbers: Mapping[str, int]) -> None:
        """Set the expected numbers of healthy devices."""
        self._expected = numbers
        self._due = {name: due for name, due in self._due.items() if name in numbers}

    def judge(self, healthy: Callable[[str], int], now: float) -> Iterator[Shortfall]:
        """Yield the reports that are due; ``healthy`` returns how many healthy devices a resource has."""
        for name, number in self._expected.items():
            found = Shortfall(name, number, healthy(name))
            due = self._due.get(name)
            if found.is_over:
                self._due.pop(name, None)
                if due == math.inf:
                    yield found
            elif due is None:
                self._due[name] = now + PATIENCE
            elif due <= now:
                self._due[name] = math.inf
                yield found
