"""Finds actors that hang, by the messages that wait in their inboxes.

The actors themselves are not asked. The code that starts an actor adds a function that reads its inbox. The inboxes are
read for each request for health and every few seconds, so that the log reports a hanging actor even without requests.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...protocol.health.progress import ActorHealth, Condition, Progress, Reading
from ...protocol.logs.lines import Level, Logger

Read = Callable[[], Reading]

_READINGS = 4


class Inboxes:
    """The inboxes of the actors of one supervisor."""

    def __init__(self, patience: float, log: Logger) -> None:
        """Consider an actor hung if messages wait for it and it has taken none for ``patience`` seconds."""
        self._patience = patience
        self._period = patience / _READINGS
        self._log = log
        self._progress: dict[Read, Progress] = {}
        #: The last condition of each actor whose changes are logged here.
        self._conditions: dict[Read, Condition] = {}
        #: The seconds for which this process has run, and the time up to which they are counted.
        self._ran = 0.0
        self._counted_until: float | None = None

    def add(self, actor: str, read: Read, *, is_logged: bool = True) -> None:
        """Read the inbox of ``actor`` from now on. Unless ``is_logged``, its own code logs what is wrong with it."""
        self._progress[read] = Progress(actor, self._patience)
        if is_logged:
            self._conditions[read] = Condition.OK

    def remove(self, read: Read) -> None:
        """Remove the inbox of an actor that ends."""
        del self._progress[read]
        self._conditions.pop(read, None)

    async def run(self) -> None:
        """Read the inboxes periodically, until cancelled."""
        while True:
            await trio.sleep(self._period)
            self.check()

    def check(self) -> tuple[ActorHealth, ...]:
        """Read the inboxes, log changes, and return the health of the actors."""
        now = self._running_time()
        healths = {read: progress.judge(read(), now) for read, progress in self._progress.items()}
        for read, health in healths.items():
            if health.condition is not self._conditions.get(read, health.condition):
                self._conditions[read] = health.condition
                self._log_change(health)
        return tuple(healths.values())

    def _running_time(self) -> float:
        """Return the time without times in which the process was stopped, so that no actor could take messages."""
        now = trio.current_time()
        passed = 0.0 if self._counted_until is None else now - self._counted_until
        self._counted_until = now
        self._ran += min(passed, 2 * self._period)
        return self._ran

    def _log_change(self, health: ActorHealth) -> None:
        match health.condition:
            case Condition.OK:
                self._log.event(Level.INFO, "actor goes on", actor=health.actor)
            case Condition.DEGRADED:
                self._log.event(Level.WARNING, "actor is held up", actor=health.actor, reason=health.reason)
            case Condition.FAILED:
                self._log.event(Level.ERROR, "actor hangs", actor=health.actor, reason=health.reason)
