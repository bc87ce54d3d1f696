"""The rule of turns: a privileged plugin does not wait for a name that only other users' plugins have (fault 80)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.world.line import TURN

#: What the reason says of a plugin that was refused its name under the policy ``reject``.
_TAKEN = "is registered already, by the socket "


@attrs.define(eq=False)
class _Wait:
    """A privileged plugin that was refused its name."""

    name: str
    generation: int
    since: float
    next_try: float
    #: Its last try came when its backoff was over. After another one no release of the name shortens the wait.
    regular: bool
    #: When it is tried at the latest.
    due: float = math.inf


class TurnOracle:
    """Once no privileged plugin has the name, each that was refused it has its turn after those before it.

    The oracle sees the refusals that are shown, the names that plugins give, and the calls of the handler. As all
    privileged plugins of a name may be in line before it, it allows each of them a turn, and one more under way.
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
        #: When each path was dialed last, and when a dial found no descriptor left.
        self._dialed: dict[str, float] = {}
        self._exhausted_at = -math.inf

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

    def exhausted(self) -> None:
        """A dial found no descriptor left: others wait for some (fault 46)."""
        self._exhausted_at = trio.current_time()

    def asked(self, path: str, name: str, uid: int) -> None:
        """The plugin at ``path`` is asked for its info, and gives this name."""
        self._others.pop(path, None)
        if uid in self._privileged:
            self._others[path] = name

    def registered(self, path: str, name: str, *, privileged: bool) -> None:
        """A plugin is registered."""
        if privileged:
            self._others.pop(path, None)
            self._holders[path] = name
            for wait in self._waits.values():
                if wait.name == name:
                    wait.due = math.inf

    def deregistering(self, path: str) -> None:
        """The plugin at ``path`` is about to be deregistered, and may be tried again."""
        if (name := self._holders.pop(path, None)) is not None:
            self._others[path] = name

    def shown(self, status: PluginStatus) -> None:
        """A state of rest is shown."""
        path, wait = status.socket, self._waits.get(status.socket)
        if status.since < self._dialed.get(path, -math.inf) - EPSILON:
            return  # It is shown late.
        if wait is not None and status.state is StateName.WAITING and wait.since == status.since:
            return  # It is shown again.
        self._waits.pop(path, None)
        if status.state is StateName.GONE:
            self._others.pop(path, None)
            self._holders.pop(path, None)
        if self._hurried.get(path, -1) not in (-1, status.generation):
            del self._hurried[path]
        if status.state is StateName.WAITING:
            # Any wait may be brought forward, and then the next one is not.
            is_taken = status.uid in self._privileged and _TAKEN in (status.reason or "")
            regular = is_taken and path not in self._hurried
            next_try = math.inf if status.next_try is None else status.next_try
            self._waits[path] = _Wait(status.name or "", status.generation, status.since, next_try, regular)

    def begun(self, path: str) -> None:
        """A try is shown. If a wait was shown since its dial, that dial was brought forward and ended the wait."""
        if (wait := self._waits.pop(path, None)) is not None:
            self._hurried[path] = wait.generation

    def dialed(self, path: str) -> None:
        """The plugin at ``path`` is tried."""
        now, wait = trio.current_time(), self._waits.pop(path, None)
        self._dialed[path] = now
        if wait is None:
            return
        if now > wait.due + EPSILON and self._exhausted_at < wait.since:
            late = f"{now - wait.due:.6f} s too late"
            self._violated("turns", f"{path} is tried for {wait.name} {late} after no other user's plugin may keep it")
        if now >= wait.next_try - EPSILON:
            self._hurried.pop(path, None)
        else:
            self._hurried[path] = wait.generation
