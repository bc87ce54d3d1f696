"""How many lines the log has of one thing: a pure rule, by windows of time.

Whatever can make plugind log a line can make it log a thousand (faults 48 and 91): sockets that come and go, a root
that is removed again and again. So the lines are counted: those with the same message and cause of one socket, root,
actor or user; all of that one; and all together. Beyond a limit they are left out until the window is over, and one
line says then how many there were. Who got devices and gave them back is never left out. Only the log is thinned:
``watch``, histories and metrics are not.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import attrs

from ..checks import above_zero, at_least_one
from ..values import value
from .lines import Field, Level

#: For how many things lines are counted at once: of more, those are forgotten whose window began first.
MAX_COUNTED: Final = 4096
#: Who had which devices, and when, is kept in full. Each of these lines costs a lease, which costs far more.
NEVER_LEFT_OUT: Final = frozenset({"lease is granted", "lease has ended"})
#: The fields that say what a line is about, and the ones that say why; the first that a line has counts.
_SUBJECTS: Final = ("socket", "path", "root", "actor", "user")
_CAUSES: Final = ("lease", "cause", "reason", "error")
#: Causes that differ in their numbers alone are one: a crash loop that counts its lives would have a new one each time.
_NUMBERS: Final = re.compile(r"\d+")


@value
class LogLimits:
    """How many lines the log has in each window; what is more is counted, and one line says how many there were.

    Raises:
      ConfigError: if a number is out of range.
    """

    #: Lines with the same message and cause of one socket, root, actor or user.
    same: int = attrs.field(default=10, validator=at_least_one)
    #: Lines of one socket, root, actor or user.
    each: int = attrs.field(default=100, validator=at_least_one)
    #: All lines. A node may have tens of thousands of plugins that vanish at once.
    total: int = attrs.field(default=30_000, validator=at_least_one)
    #: Seconds from the first line that is counted until counting begins anew.
    window: float = attrs.field(default=60.0, validator=above_zero)


@value
class LogLine:
    """An event to be logged."""

    level: Level
    message: str
    fields: Mapping[str, Field]

    def first_of(self, names: tuple[str, ...]) -> str:
        """Return the value of the first of the fields ``names`` that it has; empty if it has none."""
        for name in names:
            found = self.fields.get(name)
            if found is not None:
                return str(found)
        return ""


class _Window:
    __slots__ = ("began", "last", "left_out", "lines")

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines = 0
        self.left_out = 0
        #: The last line that was left out.
        self.last: LogLine | None = None


#: What is counted together: a subject; or a subject, a message and a cause.
_Key = tuple[str, ...]


class LineCounts:
    """Counts lines, and says which ones to leave out. Times are in seconds, on any clock that does not go back."""

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        #: The windows, in the order of their beginnings: all are of one length.
        self._windows: OrderedDict[_Key, _Window] = OrderedDict()
        self._all = _Window(-math.inf)
        #: When each window ends that has left lines out.
        self._ends: dict[_Key, float] = {}
        self._summaries: list[LogLine] = []

    @property
    def due(self) -> float:
        """When there is a summary to write; infinity if no line was left out."""
        return -math.inf if self._summaries else min(self._ends.values(), default=math.inf)

    @property
    def has_summaries(self) -> bool:
        """Whether there is a summary of a window that was found to have ended."""
        return bool(self._summaries)

    def leaves_out(self, line: LogLine, now: float) -> bool:
        """Count ``line``, and return whether to leave it out."""
        if line.message in NEVER_LEFT_OUT:
            return False
        windows, limits = self._windows, self._limits
        self._end_windows(now)
        if len(windows) > MAX_COUNTED - 2:
            self._make_room()
        subject = line.first_of(_SUBJECTS)
        cause = line.first_of(_CAUSES)
        same = (subject, line.message, _NUMBERS.sub("#", cause) if cause else cause)
        counted = self._window(same, now)
        own = self._window((subject,), now) if subject else None
        if counted.lines >= limits.same:
            return self._leave_out(line, same, counted)
        if own is not None and own.lines >= limits.each:
            return self._leave_out(line, (subject,), own)
        if self._all.lines >= limits.total:
            return self._leave_out(line, (), self._all)
        counted.lines += 1
        if own is not None:
            own.lines += 1
        self._all.lines += 1
        return False

    def _leave_out(self, line: LogLine, key: _Key, window: _Window) -> bool:
        window.left_out += 1
        window.last = line
        self._ends.setdefault(key, window.began + self._limits.window)
        return True

    def take_summaries(self, now: float) -> list[LogLine]:
        """Return the summaries of the windows that have ended by ``now``; at infinity, of all."""
        self._end_windows(now)
        summaries, self._summaries = self._summaries, []
        return summaries

    def _window(self, key: _Key, now: float) -> _Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now)
        return window

    def _make_room(self) -> None:
        """End the oldest windows, so that both windows of a line fit: neither may end while the line is counted."""
        while len(self._windows) > MAX_COUNTED - 2:
            self._end(*self._windows.popitem(last=False))

    def _end_windows(self, now: float) -> None:
        while self._windows and self._has_ended(next(iter(self._windows.values())), now):
            self._end(*self._windows.popitem(last=False))
        if self._has_ended(self._all, now):
            self._end((), self._all)
            self._all = _Window(now)

    def _has_ended(self, window: _Window, now: float) -> bool:
        return window.began + self._limits.window <= now

    def _end(self, key: _Key, window: _Window) -> None:
        self._ends.pop(key, None)
        if window.last is not None:
            self._summaries.append(_summary(key, window.last, window.left_out))


def _summary(key: _Key, last: LogLine, count: int) -> LogLine:
    match key:
        case (_, _, _):
            return attrs.evolve(last, message=f"{last.message} … repeated {times(count)}")
        case (subject,):
            about = next(name for name in _SUBJECTS if last.fields.get(name) is not None)
            return LogLine(last.level, "more lines than are logged of one thing", {about: subject, "left_out": count})
        case _:
            return LogLine(Level.WARNING, "more lines than are logged", {"left_out": count})


def times(count: int) -> str:
    """Return ``count`` in words."""
    return "once" if count == 1 else f"{count} times"
