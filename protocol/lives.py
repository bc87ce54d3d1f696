"""Short lives: plugins that crash in a loop wait ever longer, though each of their sockets is a new one (fault 49).

A *life* is that of the socket at one path, from its appearance to its end. It is *short* if it ended soon after the
plugin was told that it is registered, or that it is not. The next socket at the path is not dialed before the end of
the last short life plus a delay, which doubles with each; so the pause that a supervisor of the plugin makes counts as
part of the delay. A longer life, or a retry that is requested, ends the series (behaviour 24).

:class:`Lives` remembers the paths whose last life was short. It is bounded, whatever is made and removed in a root, and
forgets what is long past.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import OrderedDict

from .backoff import Backoff
from .values import value

#: How many paths are remembered; for another one the path whose last life ended first is forgotten.
MOST_PATHS = 4096
#: Seconds for which a path is remembered after the end of its last short life, beside the longest delay.
REMEMBERED = 600.0
CRASH_LOOP = "crash loop"


@value
class Hold:
    """When the next socket at a path may be dialed, and why."""

    not_before: float
    short_lives: int


@value
class _Series:
    """The short lives in a row at one path."""

    count: int
    #: When the last one ended.
    ended: float


class Lives:
    """The paths whose last life was short. All times are ``trio.current_time()`` in seconds."""

    def __init__(self, backoff: Backoff, stable_after: float) -> None:
        """Count a life as short that ended within ``stable_after`` seconds; with 0 none does."""
        self._backoff = backoff
        self._stable_after = stable_after
        self._remembered = REMEMBERED + backoff.cap
        #: By path, in the order in which they were added. An ``OrderedDict`` finds its first key at once, also after
        #: thousands were removed from the front.
        self._series: OrderedDict[str, _Series] = OrderedDict()

    def __len__(self) -> int:
        return len(self._series)

    def ended(self, path: str, notified_at: float, at: float) -> None:
        """Note the end of a life at the time ``at``, whose plugin was first notified at ``notified_at``."""
        series = self._series.pop(path, None)
        if at - notified_at >= self._stable_after:
            return
        self._forget_old(at)
        self._series[path] = _Series(1 if series is None or self._is_old(series, at) else series.count + 1, at)
        if len(self._series) > MOST_PATHS:
            self._series.popitem(last=False)

    def hold(self, path: str, now: float) -> Hold | None:
        """Return for how long a socket that appears ``now`` has to wait; None if it may be dialed at once."""
        series = self._series.get(path)
        if series is None or self._is_old(series, now):
            return None
        not_before = series.ended + self._backoff.delay(series.count)
        return Hold(not_before, series.count) if not_before > now else None

    def forget(self, path: str) -> None:
        """Forget the lives at ``path``: a retry was requested."""
        self._series.pop(path, None)

    def _is_old(self, series: _Series, now: float) -> bool:
        return now - series.ended > self._remembered

    def _forget_old(self, now: float) -> None:
        while self._series:
            path = next(iter(self._series))
            if not self._is_old(self._series[path], now):
                return
            del self._series[path]


def reason(short_lives: int) -> str:
    """Return what users are told of a socket that waits because of the lives before it."""
    return f"{CRASH_LOOP}: {short_lives} short {'life' if short_lives == 1 else 'lives'}"
