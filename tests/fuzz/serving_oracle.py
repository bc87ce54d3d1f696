"""Whether what is shown of listeners is so, checked while a script is played.

It knows the truth from the network in memory: which socket has a listener, and since when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.health.liveness import PLUGIN_PERIOD
from plugind.protocol.plugins.status import PluginStatus, StateName

#: Seconds until a killed plugin is shown as not serving: messages are read together, and looks are made in rounds.
KILLED_BOUND: Final = 5.0
#: Seconds until that is shown of one whose listener is closed while its process lives, or whose process has no pidfd.
CLOSED_BOUND: Final = PLUGIN_PERIOD + 5.0
#: Seconds after the period of a rescan until a listener that is back is noticed.
SLACK: Final = 1.5


@attrs.define
class _Truth:
    """What is at a path: since when somebody listens there, or nobody."""

    listens: bool | None
    since: float
    #: The process that called listen() was killed, and was watched by then.
    killed: bool = False


@attrs.define(eq=False)
class ServingOracle:
    """A socket is shown as not serving if and only if nobody listens, within a bound; a stale one is tried soon."""

    _node: SimulatedNode
    _violated: Callable[[str, str], None]
    _truths: dict[str, _Truth] = attrs.field(init=False, factory=dict)
    #: The paths whose process is being killed.
    _killed: set[str] = attrs.field(init=False, factory=set)

    def disturbed(self) -> None:
        """Something is wrong with the whole node, or was just now: every bound begins anew."""
        now = trio.current_time()
        for truth in self._truths.values():
            truth.since = now

    def forget(self) -> None:
        """Forget what was shown: the daemon ended."""
        self._truths.clear()

    def killed(self, path: str) -> None:
        """The process that called listen() on ``path`` is about to be killed."""
        status = self._node.statuses.get(path)
        # The daemon has not watched it before it has read the messages about it.
        watched = status is not None and status.since < trio.current_time() - 1.0
        # One that listens anew on the socket of another one is looked for only once in a while.
        is_met = self._is_registered(path) and self._node.network.is_met(path)
        if watched and is_met and status is not None and status.serving:
            self._killed.add(path)

    def _is_registered(self, path: str) -> bool:
        """Whether the socket at ``path`` was dialed, and not another one that it has replaced without being noticed."""
        directory = self._node.directory
        return directory.exists(path) and directory.inode(path) is self._node.network.reached.get(path)

    def look(self, *, disturbed: bool) -> None:
        """Check everything that is shown; to be called after each event and after each pause."""
        if disturbed:
            self.disturbed()
        # What is at a path is recorded only while the path is shown: of any other it is old by the next look.
        for path in self._truths.keys() - self._node.statuses.keys():
            del self._truths[path]
        for path, status in self._node.statuses.items():
            self._check(status, self._truth(path))

    def shown(self, status: PluginStatus) -> None:
        """A change of ``status`` is shown. After a crash of the status actor it may be shown late."""
        before, found_at = self._node.statuses.get(status.socket), status.not_serving_since
        if status.serving is not False or found_at is None or before is None or before.serving is False:
            return
        truth = self._truth(status.socket)
        if truth.listens and truth.since < found_at - EPSILON:
            self._violated("serving", f"{status.socket} is shown as not serving, and somebody listens")

    def _truth(self, path: str) -> _Truth:
        """Return what is at ``path`` now."""
        listens = self._node.network.listens(path)
        truth = self._truths.get(path)
        if truth is None or truth.listens is not listens:
            truth = self._truths[path] = _Truth(listens, trio.current_time(), path in self._killed)
            self._killed.discard(path)
        return truth

    def _check(self, status: PluginStatus, truth: _Truth) -> None:
        for_seconds = trio.current_time() - max(truth.since, status.since)
        back = self._node.config.rescan + SLACK
        if truth.listens is False and status.serving:
            bound = KILLED_BOUND if truth.killed else CLOSED_BOUND
            if for_seconds > bound:
                self._violated("serving", f"{status.socket} is shown as serving {bound:g} s after its listener ended")
        elif truth.listens and status.serving is False and for_seconds > back:
            # Another socket in the place of the registered one is not looked at while its directory is insecure.
            if self._is_registered(status.socket):
                self._violated("serving", f"{status.socket} is shown as not serving {back:g} s after somebody listens")
        elif truth.listens and status.state is StateName.STALE and for_seconds > back:
            self._violated("stale", f"{status.socket} is stale {back:g} s after somebody listens")
