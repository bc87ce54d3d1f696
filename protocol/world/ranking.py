"""Keys in the order of their ranks.

A name may have a thousand instances, and each that comes or goes can change which one is the highest. So no operation
looks at all of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
#: Tuples of numbers, because these are compared in C.
Rank = tuple[int, ...]


class Ranking(Generic[K]):
    """Keys with ranks. Of equal ranks, the key that was added last is the highest."""

    __slots__ = ("_added", "_entries", "_places")

    def __init__(self) -> None:
        self._added = 0
        #: In ascending order. The second numbers are unique, so keys are never compared.
        self._entries: list[tuple[Rank, int, K]] = []
        self._places: dict[K, tuple[Rank, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: K, rank: Rank) -> None:
        """Add ``key``, or give it a new rank."""
        self.remove(key)
        self._added += 1
        self._places[key] = (rank, self._added)
        bisect.insort(self._entries, (rank, self._added, key))

    def change(self, key: K, rank: Rank) -> None:
        """Give ``key``, which must be here, a new rank; among equal ranks it keeps its place."""
        added = self._places[key][1]
        self.remove(key)
        self._places[key] = (rank, added)
        bisect.insort(self._entries, (rank, added, key))

    def remove(self, key: K) -> None:
        """Remove ``key``, if it is here."""
        place = self._places.pop(key, None)
        if place is not None:
            # A tuple is less than a longer one that begins with it, so this finds the entry itself.
            del self._entries[bisect.bisect_left(self._entries, place)]

    def __iter__(self) -> Iterator[K]:
        """Yield the keys, the highest first."""
        for _, _, key in reversed(self._entries):
            yield key

    def highest(self) -> K | None:
        """Return the highest key; None if there is none."""
        return next(iter(self), None)

    def highest_rank(self) -> Rank:
        """Return the rank of the highest key, which must exist."""
        return self._entries[-1][0]
