"""The order of dials, checked while a script is played: a plugin that is new never waits behind retries.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from ....protocol.dial_queue import STARVED
from ....protocol.status import PluginStatus, StateName
from ..scheduling import EPSILON


@attrs.frozen
class _Request:
    """A dial that was shown and not made yet: it waits for a slot."""

    #: Virtual seconds.
    since: float
    retry: bool


class DialOrderOracle:
    """No retry is dialed while a first attempt waits for a slot (faults 32 and 47).

    A retry that has waited for ten seconds is an exception. What happens in one instant has no order here: several
    slots may become free at once, and the tasks that get them run in any order.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._waiting: dict[str, _Request] = {}
        self._last_dial: dict[str, float] = {}
        #: The generations of sockets that were shown in a crash loop: their first dials, too, count as retries.
        self._looping: dict[str, int] = {}
        #: When the last retries were dialed that had waited for a slot, and their paths.
        self._retries: deque[tuple[float, str]] = deque(maxlen=100)

    def forget(self, path: str | None = None) -> None:
        """Forget the dial of ``path`` that waits, or of any: the registration has ended."""
        if path is None:
            self._waiting.clear()
        else:
            self._waiting.pop(path, None)

    def shown(self, status: PluginStatus, *, to_notify: bool) -> None:
        """A state is shown; ``to_notify`` says that the dial is only to notify a registered plugin, and a retry."""
        path = status.socket
        if status.state is StateName.WAITING and (status.reason or "").startswith("crash loop"):
            self._looping[path] = status.generation
        # A process without descriptors dials again later, and a status actor that crashed shows everything again.
        waits = status.state is StateName.DIALING and status.reason is None
        if not waits or self._last_dial.get(path, -1.0) >= status.since:
            self.forget(path)
        else:
            is_looping = self._looping.get(path) == status.generation
            self._waiting[path] = _Request(status.since, retry=to_notify or status.attempt > 1 or is_looping)

    def dialed(self, path: str) -> None:
        """The daemon tries to connect: the socket at ``path`` has a slot."""
        now = self._last_dial[path] = trio.current_time()
        request = self._waiting.pop(path, None)
        if request is None:
            return
        if not request.retry:
            self._check(path, request, now)
        elif EPSILON < now - request.since < STARVED:
            self._retries.append((now, path))

    def _check(self, path: str, request: _Request, now: float) -> None:
        for time, other in self._retries:
            if request.since + EPSILON < time < now - EPSILON:
                waited = f"waits for a slot from {request.since:.6f} to {now:.6f}"
                self._violated("newcomers", f"{path} {waited}, and the retry of {other} is dialed at {time:.6f}")
                return
