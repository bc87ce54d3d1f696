"""The order in which conversations get a slot while there are not enough: a pure rule.

First attempts go before retries, so that a new plugin never waits behind thousands of sockets that have failed (faults
32 and 47). Of first attempts the newest goes first, since a burst of sockets would otherwise delay a plugin that
appears after it by as long as the whole burst takes; but every fourth goes to the one that has waited longest, so that
none waits for ever. Retries go in the order of their requests. One that has waited for long counts as a first attempt
that has: an endless burst of new sockets would otherwise end all retries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

W = TypeVar("W")

#: Every so many-th place of first attempts goes to the oldest one.
OLDEST_EVERY: Final = 4
#: Seconds that a retry waits before it has a part in the places of the oldest.
STARVED: Final = 10.0


class DialQueue(Generic[W]):
    """Who waits for a slot. Times are those of ``trio.current_time()``, in seconds."""

    def __init__(self) -> None:
        #: The waiters, in the order of their requests, with the time of each request. ``OrderedDict`` finds the first
        #: of its keys at once, also after thousands were removed; ``dict`` does not.
        self._first: OrderedDict[W, float] = OrderedDict()
        self._retries: OrderedDict[W, float] = OrderedDict()
        #: How many first attempts have gone since the oldest one did.
        self._newest_in_a_row = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._retries)

    @property
    def first_attempts(self) -> int:
        """How many first attempts wait."""
        return len(self._first)

    def add(self, waiter: W, now: float, *, retry: bool) -> None:
        """Let ``waiter`` wait from ``now`` on."""
        (self._retries if retry else self._first)[waiter] = now

    def discard(self, waiter: W) -> None:
        """Forget ``waiter``, if it still waits."""
        self._first.pop(waiter, None)
        self._retries.pop(waiter, None)

    def is_before(self, *, retry: bool) -> bool:
        """Whether somebody waits who goes before a new request, if there is a slot for both."""
        return bool(self._first or (retry and self._retries))

    def remove(self, condition: Callable[[W], bool]) -> list[W]:
        """Remove and return the waiters for which ``condition`` holds."""
        removed = [waiter for waiting in (self._first, self._retries) for waiter in waiting if condition(waiter)]
        for waiter in removed:
            self.discard(waiter)
        return removed

    def take(self, now: float, *, retries: bool) -> W | None:
        """Remove and return who is next; None if nobody is. ``retries`` says whether there is a slot for a retry."""
        if not self._first:
            return self._retries.popitem(last=False)[0] if retries and self._retries else None
        if self._newest_in_a_row < OLDEST_EVERY - 1:
            self._newest_in_a_row += 1
            return self._first.popitem()[0]
        self._newest_in_a_row = 0
        oldest = self._retries if retries and self._has_starved(now) else self._first
        return oldest.popitem(last=False)[0]

    def _has_starved(self, now: float) -> bool:
        """Whether the oldest retry has waited for long, and longer than the oldest first attempt."""
        since = next(iter(self._retries.values()), now)
        return now - since >= STARVED and since <= next(iter(self._first.values()))
