"""What Trio's run loop need not do while a script is played, since time is virtual and no descriptor is waited for.

The kernel is asked for events only once in so many rounds of the scheduler, which is enough for Ctrl-C, or when a
callback from outside of the tasks waits to be run. Virtual time is read from the clock's number, without the real
clock below it. A trace is the same without the shortcuts. The names used here are private to Trio; a test fails when
they change.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trio._core import _run
from trio.testing import MockClock

#: Rounds of the scheduler between two times that the kernel is asked for events while nothing is expected of it.
ROUNDS: Final = 100


class _Quiet:
    """Trio's I/O manager, which asks the kernel only when something may have come from it."""

    def __init__(self, runner: Any) -> None:
        self._manager = runner.io_manager
        self._callbacks = runner.entry_queue
        self._rounds = 0

    def get_events(self, timeout: float) -> Sequence[object]:
        """See Trio. While callbacks wait, and for some rounds afterwards, every round asks the kernel."""
        callbacks = self._callbacks
        if callbacks.queue or callbacks.idempotent_queue:
            self._rounds = ROUNDS
        self._rounds += 1
        if timeout == 0 and self._rounds < ROUNDS:
            return ()
        if self._rounds > ROUNDS + 16:
            self._rounds = 0
        events: Sequence[object] = self._manager.get_events(timeout)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@contextmanager
def shortcuts(clock: MockClock) -> Iterator[None]:
    """Within the block, Trio runs tasks with less work of its own; ``clock`` is the clock of the run."""
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
