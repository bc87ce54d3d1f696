"""Short lives: plugins that crash in a loop wait ever longer, though each of their sockets is a new one (fault 49).

A *life* is that of the socket at one path, from the first dial that reaches a process to its end. It is *short* if it
ended soon after the plugin was told that it is registered, or that it is not; or, if it was told neither, soon after
that dial. A socket on which nobody listens has no life, nor has one that is replaced before it is dialed. The next
socket at the path is not dialed before the end of the last short life plus a delay, which doubles with each; so the
pause that a supervisor of the plugin makes counts as part of the delay. A longer life, or a retry that is requested,
ends the series (behaviour 24).

:class:`Life` is the one that goes on at a path. :class:`Lives` remembers the paths whose last life was short, and what
the plugin there was called. It is bounded, whatever is made and removed in a root, and forgets what is long past.
"""

from __future__ import annotations

from collections import OrderedDict

from ..backoff import Backoff
from ..plugins.info import PluginInfo
from ..values import record, value
from ..words import CRASH_LOOP

__all__ = ["CRASH_LOOP"]  # what is defined elsewhere

#: How many paths are remembered; for another one the path whose last life ended first is forgotten.
MOST_PATHS = 4096
#: Seconds for which a path is remembered after the end of its last short life, beside the longest delay.
REMEMBERED = 600.0


@value
class Hold:
    """When the next socket at a path may be dialed, and why."""

    not_before: float
    short_lives: int
    #: Type and name of the plugin that was there last, as far as is known.
    last_known: PluginInfo | None = None


@record
class Life:
    """The life of the socket that is at a path now."""

    #: Since when it counts: since the plugin was first told that it is registered, or that it is not; before that,
    #: since the first dial that reached the socket. None if no dial has.
    since: float | None = None
    #: Since when nobody listens on the socket, as far as was seen.
    silent: float | None = None
    #: Type and name that the plugin gave.
    plugin: PluginInfo | None = None
    _was_notified: bool = False

    def dialed(self, at: float) -> None:
        """Note that a dial has reached the socket: somebody listens, also if nobody did before."""
        self.silent = None
        if self.since is None:
            self.since = at

    def notified(self, at: float) -> None:
        """Note that the plugin is told yes or no."""
        self.silent = None
        if not self._was_notified:
            self.since, self._was_notified = at, True

    def heard(self, at: float, *, listening: bool) -> None:
        """Note whether somebody listens on the socket."""
        if listening:
            self.silent = None
        elif self.silent is None:
            self.silent = at


@value
class _Series:
    """The short lives in a row at one path."""

    count: int
    #: When the last one ended.
    ended: float
    last_known: PluginInfo | None


class Lives:
    """The paths whose last life was short. All times are ``trio.current_time()`` in seconds."""

    def __init__(self, backoff: Backoff, stable_after: float) -> None:
        """Count a life as short that ended within ``stable_after`` seconds; with 0 none is."""
        self.reconfigure(backoff, stable_after)
        #: By path, in the order in which they were added. An ``OrderedDict`` finds its first key at once, also after
        #: thousands were removed from the front.
        self._series: OrderedDict[str, _Series] = OrderedDict()

    def reconfigure(self, backoff: Backoff, stable_after: float) -> None:
        """Judge the lives that end from now on by these; a socket that waits already waits on as long as it was to."""
        self._backoff = backoff
        self._stable_after = stable_after
        self._remembered = REMEMBERED + backoff.cap

    def __len__(self) -> int:
        return len(self._series)

    def is_stable(self, seconds: float) -> bool:
        """Whether a plugin that has been registered for so long is stable; with a stable time of 0 none ever is."""
        return 0.0 < self._stable_after <= seconds

    def ended(self, path: str, life: Life, now: float) -> None:
        """Note that the socket of ``life`` is gone; what was never dialed counts for nothing."""
        if life.since is None:
            return
        series, at = self._series.pop(path, None), now if life.silent is None else life.silent
        if at - life.since >= self._stable_after:
            return
        self._forget_old(at)
        before, named = (0, None) if series is None else (series.count, series.last_known)
        if series is not None and self._is_old(series, at):
            before = 0
        self._series[path] = _Series(before + 1, at, named if life.plugin is None else _to_show(life.plugin))
        if len(self._series) > MOST_PATHS:
            self._series.popitem(last=False)

    def hold(self, path: str, now: float) -> Hold | None:
        """Return for how long a socket that appears ``now`` has to wait; None if it may be dialed at once."""
        series = self._series.get(path)
        if series is None or self._is_old(series, now):
            return None
        not_before = series.ended + self._backoff.delay(series.count)
        return Hold(not_before, series.count, series.last_known) if not_before > now else None

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


def _to_show(plugin: PluginInfo) -> PluginInfo:
    """Return type and name alone: nothing else is kept for thousands of paths."""
    return PluginInfo(plugin.type, plugin.name, "", ())


def reason(short_lives: int) -> str:
    """Return what users are told of a socket that waits because of the lives before it."""
    return f"{CRASH_LOOP}: {short_lives} short {'life' if short_lives == 1 else 'lives'}"
