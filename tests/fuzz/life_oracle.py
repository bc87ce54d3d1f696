"""The rule of short lives: what comes after them at a path is not dialed too soon (fault 49).

The oracle sees dials, what plugins are told, and states of rest. Where these leave open whether a life was short, it
expects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import Backoff
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.info_deadline import FIRST_LOOK
from plugind.protocol.registration.lives import CRASH_LOOP, REMEMBERED

#: How the reasons end that are shown when the reconciler has crashed.
ANEW = "anew"


@attrs.define(eq=False)
class _Life:
    #: It is not dialed before.
    not_before: float
    #: When it began for the oracle. What was shown before concerns another.
    began: float
    #: None before it is shown, or dialed.
    generation: int | None = None
    file: int | None = None
    #: What the daemon takes it for.
    identity: Identity | None = None
    #: When it was first dialed, and when the plugin had certainly been reached.
    dialed_at: float | None = None
    reached_at: float | None = None
    #: When its plugin was first told anything, and when its end was shown.
    informed_at: float | None = None
    ended: float | None = None
    #: All of it was seen.
    certain: bool = True


class LifeOracle:
    """After each short life the next dial at its path comes later."""

    def __init__(self, violated: Callable[[str, str], None], backoff: Backoff, stable_after: float) -> None:
        self._violated = violated
        self._backoff = backoff
        self._stable_after = stable_after
        self._lives: dict[str, _Life] = {}
        #: How many lives at each path were short, one after the other, and when the last was over at the earliest.
        self._short: dict[str, tuple[int, float]] = {}

    def is_stable(self, seconds: float) -> bool:
        """Whether a plugin that has been registered for so long is stable, or may be."""
        return 0.0 < self._stable_after <= seconds + EPSILON

    def forget(self, path: str | None = None) -> None:
        """Expect nothing more of the lives at ``path``, or at all paths: the present ones are not counted either."""
        for other in tuple(self._lives) if path is None else (path,):
            life = self._lives.get(other)
            if life is not None:
                life.certain, life.not_before = False, -math.inf
            self._short.pop(other, None)
        if path is None:
            self._short.clear()

    def crashed(self, path: str) -> None:
        """The registration of ``path`` crashed: what is shown next need not be in the order of what happened."""
        self.forget(path)

    def dialed(self, path: str, file: int, identity: Identity | None, began: float, *, connected: bool) -> None:
        """A dial of this file began then. It has ``connected``, or nobody listens, or no descriptor was left for it."""
        life = self._lives.get(path)
        if life is None or life.file not in (None, file):
            not_before = self._end(path, began)
            # Only a removal that was not seen yet tells the two files apart.
            is_certain = life is None or life.identity is None or life.identity != identity
            if not is_certain:
                self._short.pop(path, None)
                not_before = -math.inf
            life = self._lives[path] = _Life(not_before, began, certain=is_certain)
        if began < life.not_before - EPSILON:
            self._violated("lives", f"{path} is dialed {life.not_before - began:.6f} s too soon after short lives")
        life.file, life.identity = file, identity
        life.dialed_at = began if life.dialed_at is None else life.dialed_at
        if connected and life.reached_at is None:
            life.reached_at = trio.current_time()

    def informed(self, path: str) -> None:
        """The plugin at ``path`` is told whether it is registered, or is about to be."""
        life = self._lives.get(path)
        if life is not None and life.informed_at is None:
            life.informed_at = trio.current_time()

    def informed_late(self, path: str) -> None:
        """It is not known when the plugin at ``path`` was told."""
        life = self._lives.get(path)
        if life is not None:
            life.certain = False

    def shown(self, status: PluginStatus) -> None:
        """A state of rest is shown."""
        # What is shown may come late, while the status actor starts again.
        now, path = status.since, status.socket
        if (status.reason or "").endswith(ANEW):
            self.forget(path)  # The reconciler crashed, and this ended no life.
            return
        is_looping = (status.reason or "").startswith(CRASH_LOOP)
        if is_looping:
            self._check_wait(status)
        life = self._lives.get(path)
        if life is not None and status.since < life.began - EPSILON:
            return
        if life is None or (is_looping and life.generation != status.generation):
            life = self._lives[path] = _Life(self._end(path, now), now, status.generation)
        if life.generation not in (None, status.generation):
            life.certain = False  # The file was found a second time, or this is shown late.
        life.generation = status.generation
        if status.state in (StateName.LEAVING, StateName.GONE) and life.ended is None:
            life.ended = now
        if status.state is StateName.GONE:
            self._end(path, now)

    def _check_wait(self, status: PluginStatus) -> None:
        longest = self._backoff.cap * (1.0 + self._backoff.jitter)
        if status.next_try is None or status.next_try - status.since > longest + EPSILON:
            self._violated("lives", f"{status.socket} waits until {status.next_try} after short lives")

    def _end(self, path: str, now: float) -> float:
        """End the life at ``path``; return when the next one may be dialed."""
        life = self._lives.pop(path, None)
        not_before = self._not_before(path, now)
        if life is None or life.dialed_at is None:
            return not_before
        # A dial may have reached the socket long before its plugin is asked. What it is told comes without a wait.
        earliest, began = life.dialed_at, life.reached_at
        if life.informed_at is not None:
            earliest = began = life.informed_at
        ended = now if life.ended is None else life.ended
        is_unclear = not life.certain or (began is not None and ended - began <= EPSILON)
        if is_unclear or now - earliest >= self._stable_after - EPSILON:
            # It is not known what came first, or when exactly the life was over.
            self._short.pop(path, None)
        elif began is not None:
            count, _ = self._short.get(path, (0, 0.0))
            self._short[path] = count + 1, began
            if life.informed_at is None and now - began <= FIRST_LOOK + EPSILON:
                return not_before  # It is reported when it has ended, so it counts for the socket after the next.
        return self._not_before(path, now)

    def _not_before(self, path: str, now: float) -> float:
        count, ended = self._short.get(path, (0, 0.0))
        if not count or now - ended > REMEMBERED:
            self._short.pop(path, None)
            return -math.inf
        return ended + self._backoff.delay(count)
