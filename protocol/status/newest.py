"""The newest value of each key, for readers that read at their own pace.

A change replaces the value, so a slow reader gets the newest value of each key once, however often it has changed. A
reader is only a number, the revision up to which it has read, so a slow reader uses no memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs

from ..values import value

#: How many removed keys are kept for the readers that have not read the removal yet.
GONE_REMEMBERED = 4096


@value
class Due:
    """The changes that a reader has not read yet."""

    #: Whether the reader must drop its earlier state, because it is new or its revision is too old.
    anew: bool
    #: The keys in the order of their changes. A key's newest value is looked up when the key is read.
    keys: tuple[str, ...]
    #: The reader's revision after reading these keys.
    revision: int


@attrs.define
class ChangeTable:
    """A table of keys and values, in the order of their latest changes."""

    _most_gone: int = GONE_REMEMBERED
    revision: int = attrs.field(init=False, default=0)
    #: The revision of each key, and its value; None for a removed key.
    _held: dict[str, tuple[int, str | None]] = attrs.field(init=False, factory=dict)
    #: The removed keys, in the order of removal.
    _gone: dict[str, None] = attrs.field(init=False, factory=dict)
    #: A reader with an earlier revision may have missed a removal.
    _complete_from: int = attrs.field(init=False, default=0)

    def __len__(self) -> int:
        """Return the number of keys with a value."""
        return len(self._held) - len(self._gone)

    def put(self, key: str, value: str) -> None:
        """Set the newest value of ``key``."""
        self._gone.pop(key, None)
        self._set(key, value)

    def remove(self, key: str) -> None:
        """Remove ``key``."""
        if self.get(key) is None:
            return
        self._gone[key] = None
        self._set(key, None)
        if len(self._gone) > self._most_gone:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._complete_from = self._held.pop(oldest)[0]

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove all keys but ``keys``."""
        for key in {*self._held}.difference(self._gone, keys):
            self.remove(key)

    def get(self, key: str) -> str | None:
        """Return the newest value of ``key``; None if it has none."""
        held = self._held.get(key)
        return None if held is None else held[1]

    def _set(self, key: str, value: str | None) -> None:
        self.revision += 1
        self._held.pop(key, None)
        self._held[key] = (self.revision, value)

    def after(self, revision: int | None) -> Due:
        """Return the changes after ``revision``; None is the revision of a new reader."""
        if revision is None or revision < self._complete_from:
            return Due(
                anew=True, keys=tuple(key for key in self._held if key not in self._gone), revision=self.revision
            )
        keys = list(itertools.takewhile(lambda key: self._held[key][0] > revision, reversed(self._held)))
        return Due(anew=False, keys=tuple(reversed(keys)), revision=self.revision)
