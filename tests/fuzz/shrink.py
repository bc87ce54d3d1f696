"""Shrinking: the fewest events of a script that still break the same rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


def shrink(
    numbers: Sequence[int], breaks: Callable[[Collection[int]], bool], *, tries: int = 400
) -> tuple[tuple[int, ...], int]:
    """Return the fewest of ``numbers`` for which ``breaks`` still holds, and how many tries that took.

    Ever smaller pieces are left out, first halves and at last single events (delta debugging); after ``tries`` tries
    whatever was reached is returned.
    """
    kept, piece, made = tuple(numbers), max(1, len(numbers) // 2), 0
    while True:
        start, smaller = 0, False
        while start < len(kept) and made < tries:
            fewer = kept[:start] + kept[start + piece :]
            made += 1
            if breaks(fewer):
                kept, smaller = fewer, True
            else:
                start += piece
        if made >= tries or (piece == 1 and not smaller):
            return kept, made
        piece = max(1, piece // 2)
