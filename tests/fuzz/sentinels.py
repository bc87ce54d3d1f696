"""Sentinels: plugins without faults, with names of their own, which no hung plugin may delay (behaviour 22)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import attrs
import trio

from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import RESTART_PAUSE
from plugind.protocol.plugins.status import StateName

#: Virtual seconds within which a sentinel is registered, or deregistered, unless the whole node is disturbed.
BOUND: Final = 1.0
#: Seconds that the node may take after a fault has ended: a rescan, or the longest pause of a watcher.
RECOVERY: Final = 32.0
#: Seconds that the node may take to be itself after a crash of its reconciler, and of another actor: the longest pause
#: before it is started again.
RECONCILER_RECOVERY: Final = 13.0 + RESTART_PAUSE.cap
ACTOR_RECOVERY: Final = RESTART_PAUSE.cap
#: Sentinels that are there at once.
MOST: Final = 2


@attrs.define(eq=False)
class Sentinels:
    """The sentinels that are there, and those that the daemon must register or deregister."""

    _node: SimulatedNode
    _violated: Callable[[str, str], None]
    #: The paths whose plugin is registered with a handler, or is being deregistered.
    _registered: Collection[str]
    plugs: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    #: When they started or stopped.
    _coming: dict[str, float] = attrs.field(init=False, factory=dict)
    _going: dict[str, float] = attrs.field(init=False, factory=dict)
    _grace_until: float = attrs.field(init=False, default=0.0)
    _number: int = attrs.field(init=False, default=0)

    def change(self) -> None:
        """Start one more, and stop the oldest if there are many."""
        self._number += 1
        path = self._node.path(f"sentinel-{self._number}.sock")
        self.plugs[path] = self._node.plug(path, FakePlugin("Colour", f"sentinel-{self._number}"))
        self._coming[path] = trio.current_time()
        if len(self.plugs) > MOST:
            oldest = next(iter(self.plugs))
            self.plugs.pop(oldest).stop()
            self._coming.pop(oldest, None)
            self._going[oldest] = trio.current_time()

    def grant_grace(self, seconds: float) -> None:
        """The whole node was disturbed just now: give it ``seconds`` to recover."""
        self._grace_until = max(self._grace_until, trio.current_time() + seconds)

    def give_up(self) -> None:
        """Expect nothing any more of the sentinels that start or stop."""
        self._coming.clear()
        self._going.clear()

    def all_gone(self) -> None:
        """Their directory was removed."""
        for plugin in self.plugs.values():
            plugin.crash()
        self.plugs.clear()
        self.give_up()

    def look(self, disturbed: bool) -> None:
        """Check that all were registered and deregistered in time."""
        now = trio.current_time()
        if disturbed:
            self._grace_until = max(self._grace_until, now + RECOVERY)
        for path, since in tuple(self._coming.items()):
            times = [entry.time for entry in self._node.history(path) if entry.state is StateName.REGISTERED]
            if self._judge("registered", path, since, times[0] if times else None):
                del self._coming[path]
        for path, since in tuple(self._going.items()):
            times = [entry.time for entry in self._node.history(path) if entry.state is StateName.GONE]
            there = path in self._registered or self._node.status(path) is not None
            # One that no daemon ever saw needs no Deregister.
            if self._judge("deregistered", path, since, None if there else max(times[-1:], default=since)):
                del self._going[path]

    def _judge(self, what: str, path: str, since: float, done: float | None) -> bool:
        now = trio.current_time()
        due = max(since, self._grace_until) + BOUND + EPSILON
        if done is None and now <= due:
            return False
        if (now if done is None else done) > due:
            self._violated("delay", f"{path} was not {what} within {BOUND:g} s of {max(since, due - BOUND):.3f}")
        return True
