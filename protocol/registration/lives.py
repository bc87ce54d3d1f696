"""Short lives: a plugin that crashes in a loop waits ever longer, although each of its sockets is new (fault 49).

A *life* is the time of one socket, from the first dial that reaches a process to the end of the socket. It is *short*
if it ended soon after the plugin was first told that it is registered, or that it is not; if it was told neither, soon
after that dial. A socket on which nobody listens has no life, nor has one that is replaced before it is dialed. The
next socket at the path is dialed only after the end of the last short life plus a delay, which doubles with each short
life in a row. So the time that a supervisor waits before it restarts the plugin counts as part of the delay. A longer
life, or a requested retry, ends the series (behaviour 24).

:class:`Life` is the present life at a path. :class:`Lives` keeps the paths whose last life was short. It is bounded.
"""

from __future__ import annotations

from collections import OrderedDict

from ..backoff import Backoff
from ..plugins.info import PluginInfo
from ..values import record, value
from ..words import CRASH_LOOP

__all__ = ["CRASH_LOOP"]  # re-exported

#: The most paths that are kept. Another one displaces the path whose last life ended first.
MOST_PATHS = 4096
#: Seconds for which a path is kept after the end of its last short life, in addition to the longest delay.
REMEMBERED = 600.0


@value
class Hold:
    """When the next socket at a path may be dialed, and why."""

    not_before: float
    short_lives: int
    #: Type and name of the last plugin there, if known.
    last_known: PluginInfo | None = None


@record
class Life:
    """The life of the present socket at a path."""

    #: The start of the time that counts: when the plugin was first told that it is registered, or that it is not;
    #: before that, when a dial first reached the socket. None if no dial has.
    since: float | None = None
    #: Since when nobody listens on the socket, as far as is known.
    silent: float | None = None
    plugin: PluginInfo | None = None
    _was_notified: bool = False

    def dialed(self, at: float) -> None:
        """Note that a dial has reached the socket, so somebody listens."""
        self.silent = None
        if self.since is None:
            self.since = at

    def notified(self, at: float) -> None:
        """Note that the plugin is told that it is registered, or that it is not."""
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
    ended: float
    last_known: PluginInfo | None


class Lives:
    """The paths whose last life was short. All times are ``trio.current_time()`` in seconds."""

    def __init__(self, backoff: Backoff, stable_after: float) -> None:
        """Count a life as short if it ends within ``stable_after`` seconds; with 0 no life is short."""
        self.reconfigure(backoff, stable_after)
        #: By path, oldest first. ``OrderedDict`` finds its first key at once, even after thousands were removed there.
        self._series: OrderedDict[str, _Series] = OrderedDict()

    def reconfigure(self, backoff: Backoff, stable_after: float) -> None:
        """Use new settings for lives that end from now on. A socket that already waits keeps its time."""
        self._backoff = backoff
        self._stable_after = stable_after
        self._remembered = REMEMBERED + backoff.cap

    def __len__(self) -> int:
        return len(self._series)

    def is_stable(self, seconds: float) -> bool:
        """Whether a plugin that has been registered for ``seconds`` is stable; with a stable time of 0 none is."""
        return 0.0 < self._stable_after <= seconds

    def ended(self, path: str, life: Life, now: float) -> None:
        """Note that the socket of ``life`` is gone. A socket that was never dialed does not count."""
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
        """Return until when a socket that appears ``now`` has to wait; None if it can be dialed at once."""
        series = self._series.get(path)
        if series is None or self._is_old(series, now):
            return None
        not_before = series.ended + self._backoff.delay(series.count)
        return Hold(not_before, series.count, series.last_known) if not_before > now else None

    def forget(self, path: str) -> None:
        """Drop the lives at ``path``, because a retry was requested."""
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
    """Return only type and name, since thousands of these are kept."""
    return PluginInfo(plugin.type, plugin.name, "", ())


def reason(short_lives: int) -> str:
    """Return the reason that is shown for a socket that waits because of short lives."""
    return f"{CRASH_LOOP}: {short_lives} short {'life' if short_lives == 1 else 'lives'}"
