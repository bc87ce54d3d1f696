"""Which resources have had fewer healthy devices than are expected for so long that the log says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs

from ..values import value

#: Seconds for which devices must be missing until that is said: a plugin that is updated needs some.
PATIENCE = 30.0


@value
class Shortfall:
    """A resource has fewer healthy devices than are expected, or has enough again."""

    name: str
    expected: int
    healthy: int

    @property
    def is_over(self) -> bool:
        """Whether there are enough again."""
        return self.healthy >= self.expected


@attrs.define
class Shortfalls:
    """The resources of which devices are expected. Each shortfall is said once, and so is its end."""

    _expected: Mapping[str, int] = attrs.field(factory=dict)
    #: When each shortfall is to be said; infinity once it was.
    _due: dict[str, float] = attrs.field(factory=dict)

    @property
    def next_end(self) -> float:
        """When :meth:`judge` has something to say though nothing has changed; infinity if that is never."""
        return min(self._due.values(), default=math.inf)

    def expect(self, numbers: Mapping[str, int]) -> None:
        """Expect so many healthy devices of these resources from now on."""
        self._expected = numbers
        self._due = {name: due for name, due in self._due.items() if name in numbers}

    def judge(self, healthy: Callable[[str], int], now: float) -> Iterator[Shortfall]:
        """Yield what is to be said; ``healthy`` returns how many healthy devices a resource has ``now``."""
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
