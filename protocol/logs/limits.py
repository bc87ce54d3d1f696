"""Limits on similar lines of the log: a pure rule, by windows of time.

Whatever can cause one log line can cause a thousand (faults 48 and 91): sockets that come and go, or a root that is
removed again and again. So three counts have limits: lines with the same message and cause about one socket, root,
actor or user; all lines about one of these; and all lines. Lines over a limit are left out until the window is over,
and then one line reports their number. Grants and ends of leases are never left out. The limits apply only to the log.

A bug of a handler raises at each retry of each plugin. So a traceback is logged once an hour; the lines that repeat it
have none.
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

#: The most things whose lines are counted. Beyond that, the oldest windows end early.
MAX_COUNTED: Final = 4096
#: The seconds in which a traceback is logged once, and the most tracebacks that are known. Of more, the oldest are
#: logged again earlier.
TRACEBACK_PERIOD: Final = 3600.0
MAX_TRACEBACKS: Final = 64
#: The record of who had which devices is complete. Each of these lines costs a lease, which costs far more.
NEVER_LEFT_OUT: Final = frozenset({"lease is granted", "lease has ended"})
#: The fields that name the subject of a line, and those that name its cause. The first one present counts.
_SUBJECTS: Final = ("socket", "path", "root", "actor", "user")
_CAUSES: Final = ("lease", "cause", "reason", "error")
#: Causes that differ only in numbers are the same, such as those of a crash loop that counts its lives.
_NUMBERS: Final = re.compile(r"\d+")


@value
class LogLimits:
    """The limits of the log in each window. Lines over a limit are counted, and one line reports their number.

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
        """Return the value of the first of the fields ``names`` that is present; empty if there is none."""
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
        self.last: LogLine | None = None


#: The key of a window: a subject; or a subject, a message and a cause; or nothing, for all lines.
_Key = tuple[str, ...]


class LineCounts:
    """Counts lines, and decides which to leave out. Times are in seconds, on any clock that does not go back."""

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        #: The windows, oldest first, since all have the same length.
        self._windows: OrderedDict[_Key, _Window] = OrderedDict()
        self._all = _Window(-math.inf)
        self._ends: dict[_Key, float] = {}
        self._summaries: list[LogLine] = []
        #: When each traceback was logged, oldest first.
        self._tracebacks: OrderedDict[Field, float] = OrderedDict()

    @property
    def due(self) -> float:
        """When a summary is due; infinity if no line was left out."""
        return -math.inf if self._summaries else min(self._ends.values(), default=math.inf)

    @property
    def has_summaries(self) -> bool:
        """Whether an ended window has a summary."""
        return bool(self._summaries)

    def without_known_traceback(self, line: LogLine, now: float) -> LogLine:
        """Return ``line`` without its traceback if that was logged within :data:`TRACEBACK_PERIOD`."""
        logged = self._tracebacks.get(line.fields.get("traceback"), -math.inf)
        return (
            attrs.evolve(line, fields={**line.fields, "traceback": None}) if now < logged + TRACEBACK_PERIOD else line
        )

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
        if (traceback := line.fields.get("traceback")) is not None:
            self._tracebacks[traceback] = now
            self._tracebacks.move_to_end(traceback)
            if len(self._tracebacks) > MAX_TRACEBACKS:
                self._tracebacks.popitem(last=False)
        return False

    def _leave_out(self, line: LogLine, key: _Key, window: _Window) -> bool:
        window.left_out += 1
        window.last = line
        self._ends.setdefault(key, window.began + self._limits.window)
        return True

    def take_summaries(self, now: float) -> list[LogLine]:
        """Return the summaries of the windows that have ended by ``now``; with infinity, of all windows."""
        self._end_windows(now)
        summaries, self._summaries = self._summaries, []
        return summaries

    def _window(self, key: _Key, now: float) -> _Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now)
        return window

    def _make_room(self) -> None:
        """End the oldest windows, to make room for both windows of a line, which must not end while it is counted."""
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
