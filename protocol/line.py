"""The line for a name: the plugins that were refused it, perhaps because of another one.

When a plugin leaves the name, each of them may try again, one after the other. Those of root and of the user that runs
plugind go first: they may succeed any plugin of another user, so the name may be free for them and taken for the others
(fault 80). They stand in a line of their own, so that the next one is found without a search.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import attrs

#: Seconds after which the next plugin in line may try for a name, however far the one before it has come.
TURN = 1.0

#: A plugin's type and name.
Named = tuple[str, str]

#: Paths in the order in which they are told, and for each the number of the last release before it was refused, or of
#: the one that it was told of. An ``OrderedDict`` finds its first key at once, also after thousands were removed.
_Paths = OrderedDict[str, int]


@attrs.define
class Line:
    """The plugins that were refused one name, by path, and whose turn it is."""

    #: How often a plugin has left the name.
    releases: int = 0
    #: The path whose turn it is to try.
    turn: str | None = None
    #: Those that are privileged, and the others. They are made when they are needed.
    _lines: tuple[_Paths, _Paths] | None = None

    def __len__(self) -> int:
        return 0 if self._lines is None else sum(map(len, self._lines))

    def add(self, path: str, *, privileged: bool) -> None:
        """Put ``path`` at the end of its line. The next release is the first that it is told of."""
        self.remove(path)
        if self._lines is None:
            self._lines = OrderedDict(), OrderedDict()
        self._lines[0 if privileged else 1][path] = self.releases

    def remove(self, path: str) -> None:
        """Forget ``path``, if it is in line."""
        if self._lines is None:
            return
        for line in self._lines:
            line.pop(path, None)
        if not any(self._lines):
            self._lines = None

    def waiting(self) -> Iterator[str]:
        """Yield the paths that were not told of the last release, in order."""
        for line in self._lines or ():
            for path, notified_of in line.items():
                if notified_of >= self.releases:
                    break
                yield path

    def take_turn(self, path: str | None = None) -> str | None:
        """Give the turn to the next path in line, or to that one, and return it; None if each had its turn."""
        self.turn = next(self.waiting(), None) if path is None else path
        if self.turn is not None and self._lines is not None:
            self.add(self.turn, privileged=self.turn in self._lines[0])
        return self.turn


@attrs.define
class Turns:
    """When the turns end, those of all names."""

    #: The earliest first, since all turns are equally long.
    _ends: OrderedDict[Named, float] = attrs.field(init=False, factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def next_end(self) -> float:
        """When :meth:`take_ended` has something to return; infinity if it is nobody's turn."""
        return next(iter(self._ends.values()), math.inf)

    def begin(self, named: Named, now: float) -> None:
        """A plugin has its turn to try for the name from now on."""
        self.end(named)
        self._ends[named] = now + TURN

    def end(self, named: Named) -> None:
        """Forget the turn for the name, if there is one."""
        self._ends.pop(named, None)

    def take_ended(self, now: float) -> list[Named]:
        """Take the names for which a turn has lasted long enough."""
        over = []
        while self._ends and self.next_end <= now:
            over.append(self._ends.popitem(last=False)[0])
        return over
