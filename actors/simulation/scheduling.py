"""The order in which Trio runs tasks that are ready at one moment, pinned by a seed.

Trio shuffles the order on purpose. For one seed to give one trace, the shuffle is seeded while a simulated node runs,
and the tasks are sorted by their age first, because the order in which Trio finds them depends on memory addresses
(sets of tasks, equal deadlines). The names used here are private to Trio; a test fails when they change.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Final

from trio._core import _run

#: Rounds of Trio's scheduler after which a node is asked whether virtual time goes on.
ROUNDS: Final = 20_000
#: Seconds by which two equal virtual times may differ: they are sums of floats.
EPSILON: Final = 1e-6


class _Order(random.Random):
    """Shuffles every batch of tasks, and so counts the rounds of the scheduler."""

    def __init__(self, seed: int, watch: Callable[[], None] | None) -> None:
        super().__init__(seed)
        self._watch = watch
        self._rounds = 0

    def shuffle(self, x: MutableSequence[object]) -> None:
        """See :meth:`random.Random.shuffle`; most batches are a single task."""
        if len(x) > 1:
            super().shuffle(x)
        self._rounds += 1
        if self._rounds == ROUNDS:
            self._rounds = 0
            if self._watch is not None:
                self._watch()


@contextmanager
def pinned(seed: int, watch: Callable[[], None] | None = None) -> Iterator[None]:
    """Within the block, tasks that are ready together run in an order that follows from ``seed`` alone.

    ``watch`` is called every :data:`ROUNDS` rounds, between two of them.
    """
    shuffle, sorts = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    _replace("_r", value=_Order(seed, watch))
    _replace("_ALLOW_DETERMINISTIC_SCHEDULING", value=True)
    try:
        yield
    finally:
        _replace("_r", value=shuffle)
        _replace("_ALLOW_DETERMINISTIC_SCHEDULING", value=sorts)


def _replace(name: str, *, value: object) -> None:
    # Trio declares one of them final; it is how its own support of Hypothesis changes it.
    setattr(_run, name, value)
