"""The order in which Trio runs tasks that are ready at one moment, pinned by a seed, and shortcuts for virtual time.

Trio shuffles the order on purpose. To make one seed give one trace, the shuffle is seeded while a simulated node runs,
and tasks are first sorted by their age, because the order in which Trio finds them depends on memory addresses (sets of
tasks, equal deadlines). The names used here are private to Trio; a test fails when they change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trio._core import _run
from trio.testing import MockClock

#: Rounds of the scheduler between two queries of the kernel for events while none are expected.
QUIET_ROUNDS: Final = 100


class _Quiet:
    """Trio's I/O manager, except that it asks the kernel only when events may have come."""

    def __init__(self, runner: Any) -> None:
        self._manager = runner.io_manager
        self._callbacks = runner.entry_queue
        self._rounds = 0

    def get_events(self, timeout: float) -> Sequence[object]:
        """See Trio. While callbacks wait, and for some rounds afterwards, every round asks the kernel."""
        callbacks = self._callbacks
        if callbacks.queue or callbacks.idempotent_queue:
            self._rounds = QUIET_ROUNDS
        self._rounds += 1
        if timeout == 0 and self._rounds < QUIET_ROUNDS:
            return ()
        if self._rounds > QUIET_ROUNDS + 16:
            self._rounds = 0
        events: Sequence[object] = self._manager.get_events(timeout)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@contextmanager
def shortcuts(clock: MockClock) -> Iterator[None]:
    """Within the block, Trio omits work that a script in virtual time does not need; ``clock`` is the clock of the run.

    The kernel is asked for events only once in so many rounds of the scheduler, which is enough for Ctrl-C, or when a
    callback from outside of the tasks waits to be run. Virtual time is read from the clock's number, without the real
    clock below it. A trace is the same without the shortcuts.
    """
    runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
    manager = runner.io_manager

    def jump() -> None:
        seconds = runner.deadlines.next_deadline() - clock._virtual_base
        if 0 < seconds < math.inf:
            clock._virtual_base += seconds

    overridden = {"current_time": lambda: clock._virtual_base, "_autojump": jump}
    vars(clock).update(overridden)
    runner.io_manager = _Quiet(runner)
    try:
        yield
    finally:
        runner.io_manager = manager
        for name in overridden:
            del vars(clock)[name]


#: Rounds of Trio's scheduler between two checks that virtual time goes on.
ROUNDS: Final = 20_000
#: Seconds by which two equal virtual times can differ, because they are sums of floats.
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
    """Within the block, the order of tasks that are ready together depends only on ``seed``.

    ``watch`` is called every :data:`ROUNDS` rounds, between two rounds.
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
    # Trio declares one of them final, but changes it in this way for Hypothesis.
    setattr(_run, name, value)
