"""The order of dials, checked while a script is played: a plugin that is new never waits behind retries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.dial_queue import STARVED
from plugind.protocol.registration.lives import CRASH_LOOP

#: Seconds for which a new socket may not be dialed though it was looked at: after the crash of a watcher or of the
#: reconciler, and after a dial that has found no descriptor.
RECOVERY = 20.0


class DialOrderOracle:
    """No retry is dialed while a first attempt waits for a slot (faults 32 and 47).

    A retry waits from the time that was shown for it, and a new socket from the last look at its file, if nothing else
    keeps the node from dialing it. A retry that has waited for ten seconds is an exception.
    What happens in one instant has no order here: several slots may become free at once, and the tasks that get them
    run in any order.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        #: When each path is tried again, by what is shown.
        self._due: dict[str, float] = {}
        #: The file that was dialed last at each path, and since when nothing else keeps the path from being dialed.
        self._files: dict[str, tuple[int, Identity]] = {}
        self._free: dict[str, float] = {}
        #: The paths that were shown in a crash loop: their first dials, too, count as retries.
        self._looping: set[str] = set()
        #: When the last retries were dialed that had waited for a slot, and their paths.
        self._retries: deque[tuple[float, str]] = deque(maxlen=100)
        #: Until when new sockets may wait for something else than a slot, as far as is known.
        self._disturbed_until = -math.inf

    def forget(self, path: str | None = None) -> None:
        """Forget the dial of ``path`` that waits, or of any: the registration has ended."""
        if path is not None:
            self._due.pop(path, None)
            self._free[path] = math.inf
        else:
            self._due.clear()
            self.disturbed()

    def disturbed(self) -> None:
        """New sockets may have to wait for something else than a slot."""
        self._disturbed_until = trio.current_time() + RECOVERY

    def retried(self, path: str | None) -> None:
        """A retry of ``path``, or of any, is asked for: its dial counts as a first attempt."""
        if path is None:
            self._due.clear()
        else:
            self._due.pop(path, None)

    def deregistered(self, path: str) -> None:
        """The plugin at ``path`` was deregistered: another one there is dialed only now."""
        self._free[path] = trio.current_time()

    def shown(self, status: PluginStatus) -> None:
        """A state of rest is shown."""
        path = status.socket
        self._due.pop(path, None)
        self._free[path] = max(status.since, self._free.get(path, -math.inf))
        if status.state is StateName.WAITING and (status.reason or "").startswith(CRASH_LOOP):
            self._looping.add(path)
        elif status.state in (StateName.WAITING, StateName.STALE) and status.next_try is not None:
            self._due[path] = status.next_try

    def dialed(self, path: str, file: int, identity: Identity, looked_at: float) -> None:
        """The daemon tries to connect to a file that was ``looked_at`` then: the socket at ``path`` has a slot.

        It is known by its serial number, and to the daemon by its ``identity``, which may be that of an older file.
        """
        now, due = trio.current_time(), self._due.pop(path, math.inf)
        before, taken_for = self._files.get(path, (0, None))
        if before == file or (taken_for is not None and identity.is_same(taken_for)):
            if EPSILON < now - due < STARVED:
                self._retries.append((now, path))
            return
        self._files[path] = file, identity
        since = max(looked_at, self._free.pop(path, -math.inf))
        if path not in self._looping and since > self._disturbed_until:
            self._check(path, since, now)
        self._looping.discard(path)

    def _check(self, path: str, since: float, now: float) -> None:
        for time, other in self._retries:
            if since + EPSILON < time < now - EPSILON:
                waited = f"waits for a slot from {since:.6f} to {now:.6f}"
                self._violated("newcomers", f"{path} {waited}, and the retry of {other} is dialed at {time:.6f}")
                return
