"""Changes of what is drained: what an operator asks for, and the ends that drains have by themselves.

A change counts once it is written. Times are Unix seconds of the wall clock.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from ..logs.lines import timestamp
from ..messages.addresses import Address
from ..text import first_few
from ..values import value
from .drains import Drain, Drains, DrainTarget, sorted_drains
from .messages import DrainAsked, Failure, Problem, UndrainAsked

#: How many drains there can be.
MAX_DRAINS: Final = 4096
#: Seconds after which the wall clock, which may be set, is read again for the end of a drain.
CLOCK: Final = 60.0
#: Seconds for which an end is waited for at least, as a time of the wall clock is not exact.
_TICK: Final = 0.001


@value
class DrainChange:
    """A drain, or its end, while it is being written."""

    #: The drain from then on; None if it ends.
    after: Drain | None
    #: What the caller gets.
    answer: Drain
    reply: Address[Drain | Failure]

    @property
    def target(self) -> DrainTarget:
        """What is drained."""
        return self.answer.target

    def applied_to(self, drains: Drains) -> Drains:
        """Return ``drains`` with the change."""
        others = {target: drain for target, drain in drains.items() if target != self.target}
        return others if self.after is None else {**others, self.target: self.after}


def change_of(drains: Drains, asked: DrainAsked | UndrainAsked, now: float) -> DrainChange | Failure:
    """Return the change that an operator asks for; a target that is drained keeps its beginning."""
    if isinstance(asked, UndrainAsked):
        if (ended := drains.get(asked.target)) is not None:
            return DrainChange(None, ended, asked.reply)
        words = [drain.target.words for drain in sorted_drains(drains)]
        drained = f"drained: {first_few(words)}" if words else "nothing is"
        return Failure(Problem.UNKNOWN, f"{asked.target.words} is not drained; {drained}")
    drain, before = asked.drain, drains.get(asked.drain.target)
    if drain.until is not None and drain.until <= now:
        return Failure(Problem.USAGE, f"{timestamp(drain.until)} is over: name a later time")
    if before is None and len(drains) >= MAX_DRAINS:
        text = f"there are {MAX_DRAINS} drains, and there may not be more: drain the resource, or the node"
        return Failure(Problem.LIMIT, text)
    drain = attrs.evolve(drain, since=now if before is None else before.since)
    return DrainChange(drain, drain, asked.reply)


def first_end(drains: Drains) -> float:
    """Return when the first drain ends by itself; infinity if none does."""
    return min((drain.until for drain in drains.values() if drain.until is not None), default=math.inf)


def look_in(end: float, now: float) -> float:
    """Return in how many seconds the wall clock is to be read for a drain that ends at ``end``."""
    return min(max(end - now, _TICK), CLOCK)


def over_at(drains: Drains, now: float) -> Drains:
    """Return the drains whose time is over."""
    return {target: drain for target, drain in drains.items() if drain.until is not None and drain.until <= now}
