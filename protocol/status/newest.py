"""The newest value of each key, for readers that read at their own pace.

A change replaces what was there, so a reader that reads rarely gets the newest value of each key once, however often it
has changed. A reader is a number, the revision up to which it has read: nothing is kept for it, and a slow one makes
nothing grow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs

from ..values import value

#: How many keys that are gone are remembered, for the readers that have not read that yet.
GONE_REMEMBERED = 4096


@value
class Due:
    """What a reader has not read yet."""

    #: Whether the reader forgets all that it had before: it begins, or it has read too long ago.
    anew: bool
    #: The keys, in the order in which they have changed. The newest value is looked up when a key is read.
    keys: tuple[str, ...]
    #: Up to where it has read once it has read these.
    revision: int


@attrs.define
class ChangeTable:
    """A table of keys and values, in the order of their latest changes."""

    _most_gone: int = GONE_REMEMBERED
    #: The number of changes so far.
    revision: int = attrs.field(init=False, default=0)
    #: The revision of each key, and its value; None for one that is gone.
    _held: dict[str, tuple[int, str | None]] = attrs.field(init=False, factory=dict)
    #: The keys that are gone, in the order in which they went.
    _gone: dict[str, None] = attrs.field(init=False, factory=dict)
    #: Whoever has read up to an earlier revision may have missed that a key is gone.
    _complete_from: int = attrs.field(init=False, default=0)

    def __len__(self) -> int:
        """Return the number of keys that have a value."""
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
        """Return the newest value of ``key``, None if it has none."""
        held = self._held.get(key)
        return None if held is None else held[1]

    def _set(self, key: str, value: str | None) -> None:
        self.revision += 1
        self._held.pop(key, None)
        self._held[key] = (self.revision, value)

    def after(self, revision: int | None) -> Due:
        """Return what has changed after ``revision``; None is that of a reader that begins."""
        if revision is None or revision < self._complete_from:
            return Due(
                anew=True, keys=tuple(key for key in self._held if key not in self._gone), revision=self.revision
            )
        keys = list(itertools.takewhile(lambda key: self._held[key][0] > revision, reversed(self._held)))
        return Due(anew=False, keys=tuple(reversed(keys)), revision=self.revision)
