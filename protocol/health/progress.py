"""Decides whether an actor takes its messages, from readings of its inbox. An actor that hangs could not be asked."""

from __future__ import annotations

import collections
import enum

from ..values import value

#: The most readings that are kept while the same message is the oldest one.
_REMEMBERED = 64


class Condition(enum.StrEnum):
    """The condition of an actor, in the words of the health report."""

    OK = "ok"
    #: A known cause prevents its work.
    DEGRADED = "degraded"
    #: It hangs: messages wait for it, and it takes none.
    FAILED = "failed"


@value
class Reading:
    """What an inbox holds at one moment."""

    #: The number of messages that wait, including those whose writers wait for room.
    waiting: int
    #: The number of messages that the actor has taken since the start.
    taken: int
    #: What keeps the actor from taking messages, if it is no fault of the actor.
    held_up: str | None = None
    #: Another problem of an actor that takes its messages.
    wrong: str | None = None


@value
class ActorHealth:
    """The condition of an actor, derived from its inbox."""

    actor: str
    condition: Condition
    reason: str | None
    waiting: int
    #: The least number of seconds that the oldest message has waited.
    oldest_wait: float


class Progress:
    """The progress of one actor from reading to reading."""

    def __init__(self, actor: str, patience: float) -> None:
        """Consider ``actor`` hung if it has taken nothing for ``patience`` seconds while messages wait."""
        self._actor = actor
        self._patience = patience
        self._taken = 0
        self._idle_since: float | None = None
        #: Times, and the number of messages that had come by then. A message waits since the first time that counts it.
        self._come: collections.deque[tuple[float, int]] = collections.deque()

    def judge(self, reading: Reading, now: float) -> ActorHealth:
        """Return the health of the actor, from a ``reading`` taken ``now``."""
        if not reading.waiting or reading.held_up is not None:
            self._idle_since = None
        elif self._idle_since is None or reading.taken != self._taken:
            self._idle_since = now
        self._taken = reading.taken
        oldest_wait = now - self._since_when_the_oldest_waits(reading, now)
        condition, reason = self._condition(reading, now)
        return ActorHealth(self._actor, condition, reason, reading.waiting, oldest_wait)

    def _since_when_the_oldest_waits(self, reading: Reading, now: float) -> float:
        come = self._come
        while come and come[0][1] <= reading.taken:
            come.popleft()
        all_of_them = reading.taken + reading.waiting
        if reading.waiting and (not come or (come[-1][1] < all_of_them and len(come) < _REMEMBERED)):
            come.append((now, all_of_them))
        return come[0][0] if come else now

    def _condition(self, reading: Reading, now: float) -> tuple[Condition, str | None]:
        if reading.waiting and reading.held_up is not None:
            return Condition.DEGRADED, f"{reading.held_up}; {reading.waiting} wait"
        if self._idle_since is None or now - self._idle_since < self._patience:
            return (Condition.OK, None) if reading.wrong is None else (Condition.DEGRADED, reading.wrong)
        idle = f"{now - self._idle_since:.0f} s"
        return Condition.FAILED, f"it hangs: it has taken no message for {idle}, and {reading.waiting} wait"
