"""The line for a name: plugins that were refused it, perhaps because of another plugin.

When a plugin leaves the name, each of them may try again, one after the other. Plugins of root and of the user that
runs plugind go first, in a line of their own: the name may be free for them and taken for others (fault 80).
"""

from __future__ import annotations

import math
from collections import OrderedDict

import attrs

from ..values import record

#: Seconds until the next plugin in line may try, even if the one before it is not done.
TURN = 1.0

Named = tuple[str, str]

#: Paths in the order of their turns, with the number of the last release before each was refused or told.
_Paths = OrderedDict[str, int]


@record
class _Lines:
    """The plugins in line. Each is in ``privileged``, or in the other mappings."""

    privileged: _Paths = attrs.Factory(OrderedDict)
    others: _Paths = attrs.Factory(OrderedDict)
    #: The others by user: while a name is kept for a user, only that user's and privileged plugins have turns.
    by_user: dict[int | None, _Paths] = attrs.Factory(dict)
    users: dict[str, int | None] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len(self.privileged) + len(self.others)

    def add(self, path: str, uid: int | None, releases: int, *, privileged: bool) -> None:
        if privileged:
            self.privileged[path] = releases
        else:
            self.others[path] = releases
            self.by_user.setdefault(uid, OrderedDict())[path] = releases
            self.users[path] = uid

    def remove(self, path: str) -> None:
        self.privileged.pop(path, None)
        if self.others.pop(path, None) is not None:
            uid = self.users.pop(path)
            line = self.by_user[uid]
            del line[path]
            if not line:
                del self.by_user[uid]


@record
class NameLine:
    """The plugins that were refused one name, by path, and which of them has the turn."""

    releases: int = 0
    turn: str | None = None
    #: None while nobody is in line, to save memory.
    _lines: _Lines | None = None

    def __len__(self) -> int:
        return 0 if self._lines is None else len(self._lines)

    def add(self, path: str, uid: int | None, *, privileged: bool) -> None:
        """Put ``path`` at the end of its line, to be told of the next release."""
        self.remove(path)
        if self._lines is None:
            self._lines = _Lines()
        self._lines.add(path, uid, self.releases, privileged=privileged)

    def remove(self, path: str) -> None:
        """Take ``path`` out of the line, if it is in there."""
        if self._lines is not None:
            self._lines.remove(path)
            if not len(self._lines):
                self._lines = None

    def first(self) -> str | None:
        """Return the next path in line; None if all were told of the last release."""
        return None if self._lines is None else self._first(self._lines.privileged, self._lines.others)

    def first_of(self, uid: int | None) -> str | None:
        """Return the next path in line that is privileged or of ``uid``; None if all were told."""
        if self._lines is None:
            return None
        return self._first(self._lines.privileged, self._lines.by_user.get(uid))

    def _first(self, *lines: _Paths | None) -> str | None:
        # Paths that were told of the last release are at the end of each line.
        for line in filter(None, lines):
            path = next(iter(line))
            if line[path] < self.releases:
                return path
        return None

    def give_turn(self, path: str | None) -> str | None:
        """Give the turn to ``path``, which is in line, or to nobody; return the path."""
        self.turn = path
        if path is not None and self._lines is not None:
            self.add(path, self._lines.users.get(path), privileged=path in self._lines.privileged)
        return path


@record
class TurnEnds:
    """When the turns of all names end."""

    #: Earliest first, since all turns are equally long.
    _ends: OrderedDict[Named, float] = attrs.field(init=False, factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def next_end(self) -> float:
        """When :meth:`take_ended` has something to return; infinity without turns."""
        return next(iter(self._ends.values()), math.inf)

    def begin(self, named: Named, now: float) -> None:
        """Note that a turn for the name begins."""
        self.end(named)
        self._ends[named] = now + TURN

    def end(self, named: Named) -> None:
        """Drop the turn for the name, if there is one."""
        self._ends.pop(named, None)

    def take_ended(self, now: float) -> list[Named]:
        """Remove and return the names whose turns are over."""
        over = []
        while self._ends and self.next_end <= now:
            over.append(self._ends.popitem(last=False)[0])
        return over
