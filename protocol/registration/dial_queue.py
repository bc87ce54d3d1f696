"""The order in which waiting conversations get slots: a pure rule.

First attempts go before retries, so that a new plugin never waits for thousands of sockets that have failed (faults 32
and 47). Of first attempts the newest goes first, since otherwise a plugin that appears after a burst of sockets would
wait for the whole burst; but every fourth slot goes to the oldest, so that none waits for ever. Retries go in the order
of their requests. A retry that has waited for long counts as an old first attempt, since otherwise an endless burst of
new sockets would end all retries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

W = TypeVar("W")

#: One in this many slots of first attempts goes to the oldest one.
OLDEST_EVERY: Final = 4
#: Seconds after which a waiting retry takes part in the slots of the oldest.
STARVED: Final = 10.0


class DialQueue(Generic[W]):
    """The conversations that wait for a slot. Times are ``trio.current_time()``, in seconds."""

    def __init__(self) -> None:
        #: The waiters in order, with the times of their requests. Unlike ``dict``, ``OrderedDict`` finds its first
        #: key at once after thousands were removed.
        self._first: OrderedDict[W, float] = OrderedDict()
        self._retries: OrderedDict[W, float] = OrderedDict()
        #: How many first attempts have gone since the last oldest one.
        self._newest_in_a_row = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._retries)

    @property
    def first_attempts(self) -> int:
        """How many first attempts wait."""
        return len(self._first)

    def add(self, waiter: W, now: float, *, retry: bool) -> None:
        """Add ``waiter``, which waits from ``now`` on."""
        (self._retries if retry else self._first)[waiter] = now

    def discard(self, waiter: W) -> None:
        """Remove ``waiter``, if it still waits."""
        self._first.pop(waiter, None)
        self._retries.pop(waiter, None)

    def is_before(self, *, retry: bool) -> bool:
        """Whether a waiter goes before a new request, if there is a slot for both."""
        return bool(self._first or (retry and self._retries))

    def remove(self, condition: Callable[[W], bool]) -> list[W]:
        """Remove and return the waiters for which ``condition`` holds."""
        removed = [waiter for waiting in (self._first, self._retries) for waiter in waiting if condition(waiter)]
        for waiter in removed:
            self.discard(waiter)
        return removed

    def take(self, now: float, *, retries: bool) -> W | None:
        """Remove and return the next waiter, if any. ``retries`` says whether there is a slot for a retry."""
        if not self._first:
            return self._retries.popitem(last=False)[0] if retries and self._retries else None
        if self._newest_in_a_row < OLDEST_EVERY - 1:
            self._newest_in_a_row += 1
            return self._first.popitem()[0]
        self._newest_in_a_row = 0
        oldest = self._retries if retries and self._has_starved(now) else self._first
        return oldest.popitem(last=False)[0]

    def _has_starved(self, now: float) -> bool:
        """Whether the oldest retry has waited for :data:`STARVED` seconds, and longer than the oldest first attempt."""
        since = next(iter(self._retries.values()), now)
        return now - since >= STARVED and since <= next(iter(self._first.values()))
