"""The rule of short lives: what comes after them at a path is not dialed too soon (fault 49).

The oracle sees only what is shown. Where that leaves open whether a life was short, it expects nothing.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from ....protocol.backoff import Backoff
from ....protocol.lives import CRASH_LOOP, REMEMBERED
from ....protocol.status import PluginStatus, StateName
from ..scheduling import EPSILON

#: How the reasons end that are shown when the reconciler has crashed.
ANEW = "anew"


@attrs.define(eq=False)
class _Life:
    generation: int
    #: It is not dialed before.
    not_before: float
    #: When it was first dialed, and when the plugin had certainly been reached.
    dialed_at: float | None = None
    reached_at: float | None = None
    #: When its plugin was first told anything, and when its end was shown.
    notified_at: float | None = None
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

    def shown(self, status: PluginStatus, *, to_notify: bool) -> None:
        """A state is shown; ``to_notify`` says that the plugin is registered and is still to be notified."""
        # What is shown may come late, while the status actor starts again.
        now, path = status.since, status.socket
        if (status.reason or "").endswith(ANEW):
            self.forget(path)  # The reconciler crashed, and this ended no life.
            return
        life = self._lives.get(path)
        if status.state in (StateName.LEAVING, StateName.GONE) and life is not None and life.ended is None:
            life.ended = now
        if life is None or life.generation != status.generation:
            self._end(path, now)
            life = self._lives[path] = _Life(status.generation, self._not_before(path, now))
        self._note(life, status.state, now)
        if status.state is StateName.DIALING and not to_notify and status.since < life.not_before - EPSILON:
            self._violated(
                "lives", f"{path} is dialed {life.not_before - status.since:.6f} s too soon after short lives"
            )
        if (status.reason or "").startswith(CRASH_LOOP):
            self._check_wait(status)
        if status.state is StateName.GONE:
            self._end(path, now)

    @staticmethod
    def _note(life: _Life, state: StateName, now: float) -> None:
        if state is StateName.DIALING and life.dialed_at is None:
            life.dialed_at = now
        if state is StateName.ASKING_INFO and life.reached_at is None:
            life.reached_at = now
        if state is StateName.NOTIFYING and life.notified_at is None:
            life.notified_at = now

    def _check_wait(self, status: PluginStatus) -> None:
        longest = self._backoff.cap * (1.0 + self._backoff.jitter)
        if status.next_try is None or status.next_try - status.since > longest + EPSILON:
            self._violated("lives", f"{status.socket} waits until {status.next_try} after short lives")

    def _end(self, path: str, now: float) -> None:
        life = self._lives.pop(path, None)
        if life is None or life.dialed_at is None:
            return
        # A dial may have reached the socket long before its plugin is asked. What it is told comes without a wait.
        earliest, began = life.dialed_at, life.reached_at
        if life.notified_at is not None:
            earliest = began = life.notified_at
        ended = now if life.ended is None else life.ended
        is_unclear = not life.certain or (began is not None and ended - began <= EPSILON)
        if is_unclear or now - earliest >= self._stable_after - EPSILON:
            # It is not known what came first, or when exactly the life was over.
            self._short.pop(path, None)
        elif began is not None:
            count, _ = self._short.get(path, (0, 0.0))
            self._short[path] = count + 1, began

    def _not_before(self, path: str, now: float) -> float:
        count, ended = self._short.get(path, (0, 0.0))
        if not count or now - ended > REMEMBERED:
            self._short.pop(path, None)
            return -math.inf
        return ended + self._backoff.delay(count)
