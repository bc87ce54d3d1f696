"""The rule of turns: a privileged plugin does not wait for a name that only other users' plugins have (fault 80).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import attrs
import trio

from ....protocol.line import TURN
from ....protocol.status import PluginStatus, StateName
from ..scheduling import EPSILON

#: What the reason says of a plugin that was refused its name under the policy ``reject``.
_TAKEN = "is registered already, by the socket "


@attrs.define(eq=False)
class _Wait:
    """A privileged plugin that was refused its name."""

    name: str
    since: float
    next_try: float
    #: Its last try came when its backoff was over. After another one no release of the name shortens the wait.
    regular: bool
    #: When it is tried at the latest.
    due: float = math.inf


class TurnOracle:
    """Once no privileged plugin has the name, each that was refused it has its turn after those before it.

    The oracle sees only what is shown. As all privileged plugins of a name may be in line before it, it allows each of
    them a turn, and one more that is under way.
    """

    def __init__(self, violated: Callable[[str, str], None], privileged: Collection[int]) -> None:
        self._violated = violated
        self._privileged = privileged
        self._waits: dict[str, _Wait] = {}
        #: The names of privileged plugins by path: of those that are registered, and of the others.
        self._holders: dict[str, str] = {}
        self._others: dict[str, str] = {}
        #: The generations whose last try was brought forward, by path.
        self._hurried: dict[str, int] = {}

    def forget(self) -> None:
        """Expect nothing of what waits now: an actor crashed, or the daemon ended."""
        for path, wait in self._waits.items():
            wait.regular, wait.due = False, math.inf
            self._hurried[path] = -1

    def freed(self, name: str) -> None:
        """A plugin of ``name`` was deregistered."""
        if name in self._holders.values():
            return
        turns = sum(other == name for other in self._others.values()) + 1
        for wait in self._waits.values():
            if wait.name == name and wait.regular:
                wait.due = min(wait.due, trio.current_time() + turns * TURN)

    def shown(self, status: PluginStatus, *, to_notify: bool) -> None:
        """A state is shown; ``to_notify`` says that the plugin is registered and is still to be notified."""
        path, wait = status.socket, self._waits.get(status.socket)
        if wait is not None and status.state is StateName.WAITING and wait.since == status.since:
            return  # It is shown again.
        self._waits.pop(path, None)
        self._note(status, to_notify=to_notify)
        if status.state is StateName.DIALING:
            self._tried(status, wait)
        elif status.state is StateName.WAITING and status.uid in self._privileged and _TAKEN in (status.reason or ""):
            assert status.name is not None, "a plugin without a name is refused none"
            regular = path not in self._hurried
            self._waits[path] = _Wait(status.name, status.since, status.next_try or math.inf, regular)

    def _note(self, status: PluginStatus, *, to_notify: bool) -> None:
        path, name = status.socket, status.name
        self._holders.pop(path, None)
        self._others.pop(path, None)
        if name is None or status.state is StateName.GONE or status.uid not in self._privileged:
            return
        if not to_notify and status.state is not StateName.REGISTERED:
            self._others[path] = name
            return
        self._holders[path] = name
        for wait in self._waits.values():
            if wait.name == name:
                wait.due = math.inf

    def _tried(self, status: PluginStatus, wait: _Wait | None) -> None:
        path = status.socket
        if wait is not None and status.since > wait.due + EPSILON:
            late = f"{status.since - wait.due:.6f} s too late"
            self._violated("turns", f"{path} is tried for {wait.name} {late} after no other user's plugin may keep it")
        if status.attempt <= 1 or (wait is not None and status.since >= wait.next_try - EPSILON):
            self._hurried.pop(path, None)
        else:
            self._hurried[path] = status.generation
