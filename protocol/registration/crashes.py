"""Crashes of registrations: how many came in a row, and what the successor of a crashed registration does (fault 85).

A crash is a bug in plugind that one plugin can reach, so only that plugin may suffer from it. The successor first
deregisters what its predecessor may have registered, and then waits out a backoff of its own. After
:data:`MOST_CRASHES` crashes in a row the socket is parked.
"""

from __future__ import annotations

from ..values import value

#: After so many crashes in a row, no more attempts are made until the socket is replaced or a retry is requested.
MOST_CRASHES = 5
#: Seconds after which a crash no longer counts. The longest backoff is much shorter.
REMEMBERED = 3600.0
#: Characters of an error that are shown.
MAX_ERROR = 200
INTERNAL = "internal error"


@value
class CrashSeries:
    """The crashes in a row of the registrations of one socket."""

    count: int = 0
    #: ``trio.current_time()`` of the last crash.
    last: float = 0.0

    def add(self, now: float, *, was_stable: bool) -> CrashSeries:
        """Return the series with one more crash; a new series if the plugin ``was_stable``, or after a long time."""
        anew = was_stable or now - self.last > REMEMBERED
        return CrashSeries(1 if anew else self.count + 1, now)


#: The series of a socket whose registration has not crashed.
NO_CRASH = CrashSeries()


@value
class Crash:
    """The crash that a successor begins with."""

    #: The number of the crash in its series.
    count: int
    error: str

    @property
    def settles(self) -> bool:
        """Whether the successor deregisters what is pending. After too many crashes in a row it does not."""
        return self.count <= MOST_CRASHES

    @property
    def parks(self) -> bool:
        """Whether the successor makes no more attempts."""
        return self.count >= MOST_CRASHES

    @property
    def reason(self) -> str:
        """The reason that users are shown."""
        if not self.parks:
            return f"{INTERNAL}: {self.error}"
        return f"{INTERNAL}, {self.count} times in a row: {self.error}; see the log, report it, then use plugind retry"


def in_one_line(error: BaseException) -> str:
    """Return the class of ``error`` and the first line of its text."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text[:MAX_ERROR]
