"""Simulation: random scripts against what must always hold, one seed for everything.

One seed gives one script (:mod:`.script`), one order of Trio's tasks, one trace and its hash (:mod:`.trace`), in every
process. :mod:`.player` plays the script on a :mod:`.stage`: a node in memory, which runs plugind's own supervisor,
actors and wire. The oracles check each thing that happens (:mod:`.handler_oracle`, :mod:`.backoff_oracle`,
:mod:`.sentinels`), and :mod:`.final_checks` checks the node at rest, once the faults have stopped. docs/simulation.md
lists the rules.

::

    outcome = simulate(7, events=200)
    assert not outcome.violations, outcome.violations

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection

import attrs
import trio
from trio.testing import MockClock

from ...supervision import leaves
from ..scheduling import ROUNDS
from .final_checks import check_rest
from .player import Player
from .script import Event, Fault, choose, write
from .stage import Stage
from .trace import Trace, Violation

__all__ = ["ALL", "EVENTS", "Event", "Fault", "SeedResult", "Violation", "simulate"]

ALL = frozenset(Fault)
#: How many events a script has, unless said otherwise.
EVENTS = 200


@attrs.frozen
class SeedResult:
    """What came of one script."""

    seed: int
    #: How many events were played.
    events: int
    virtual_seconds: float
    trace_hash: str
    violations: tuple[Violation, ...]


def simulate(
    seed: int,
    *,
    events: int = EVENTS,
    faults: Collection[Fault] = ALL,
    only: Collection[int] | None = None,
    show: Callable[[str], None] | None = None,
) -> SeedResult:
    """Play the script of ``seed``, of so many ``events``, and return what came of it.

    Every fourth script has only a few of several ``faults``, drawn from its seed.
    ``only`` are the numbers of the events that are played, all by default; ``show`` is given each line of the trace.
    """
    if len(faults) > 1:
        faults = choose(seed, faults)
    script = [event for event in write(seed, events, faults) if only is None or event.number in only]
    trace = Trace(show)
    collects = gc.isenabled()
    # When the collector runs depends on what else this process did, and it closes what was left open.
    gc.disable()
    try:
        seconds = trio.run(_play, seed, faults, trace, script, clock=MockClock(autojump_threshold=0))
    finally:
        if collects:
            gc.enable()
    return SeedResult(seed, len(script), seconds, trace.hash, tuple(trace.violations))


async def _play(seed: int, faults: Collection[Fault], trace: Trace, script: Collection[Event]) -> float:
    tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, _descriptors()
    stage = Stage(seed, faults, trace)
    try:
        with stage.node.livelock_guard:
            async with stage.node:
                await Player(stage).play(script)
                await check_rest(stage)
        if stage.node.livelock_guard.cancelled_caught:
            trace.violated("livelock", f"tasks run for {ROUNDS} rounds, and time stands still")
    except Exception as error:  # noqa: BLE001 - whatever ends the node is what is looked for
        for leaf in leaves(error):
            trace.violated("crash", f"{type(leaf).__name__}: {leaf}")
    left = trio.lowlevel.current_statistics().tasks_living - tasks
    if left:
        trace.violated("leak", f"{left} tasks")
    opened = _descriptors() - descriptors
    if opened > 0:
        trace.violated("leak", f"descriptors of this process: {opened} more")
    trace.line("end")
    return round(trio.current_time(), 3)


def _descriptors() -> int:
    """How many descriptors this process has open: a node in memory needs none, and is to leave none."""
    return len(os.listdir("/proc/self/fd"))
