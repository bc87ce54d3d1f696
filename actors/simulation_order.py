"""The order in which Trio runs tasks that are ready at one moment, pinned by a seed.

Trio shuffles it on purpose. One seed is to give one trace, so while a simulated node runs the shuffle is seeded, and
made of tasks in the order of their birth, since the order in which Trio finds them depends on memory addresses (sets of
tasks, ties of deadlines). The names used here are private to Trio; a canary test says when they have changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run


@contextmanager
def pinned(seed: int) -> Iterator[None]:
    """Within the block, tasks that are ready together run in an order that follows from ``seed`` alone."""
    shuffle: random.Random = _run._r
    state, sorts = shuffle.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    shuffle.seed(seed)
    _sort(sorts=True)
    try:
        yield
    finally:
        _sort(sorts=sorts)
        shuffle.setstate(state)


def _sort(*, sorts: bool) -> None:
    # Trio declares it final; it is how its own support of Hypothesis changes it.
    setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", sorts)  # noqa: B010
