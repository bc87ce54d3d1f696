"""The rule of crashes: the registration of a socket that crashed is not tried again too soon (fault 85)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import Backoff
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.crashes import MOST_CRASHES, REMEMBERED
from plugind.tests.fuzz.life_oracle import LifeOracle


@attrs.define(eq=False)
class _Row:
    """The crashes in a row of the registrations of one file."""

    identity: Identity
    count: int = 0
    last: float = -math.inf
    #: No dial of this file comes before.
    until: float = -math.inf


class CrashOracle:
    """After each crash a backoff follows, and after five in a row no dial of the same file.

    A file is known by its identity, which is exact where the file system has handles. What may be otherwise is not
    checked: the crashes of a path during a retry of it, for example.
    """

    def __init__(self, violated: Callable[[str, str], None], backoff: Backoff, lives: LifeOracle) -> None:
        self._violated = violated
        #: What checks the lives at each path; a retry ends its expectations too.
        self._lives = lives
        self._backoff = backoff
        self._rows: dict[str, _Row] = {}
        #: The file that was dialed last at each path.
        self._dialed: dict[str, Identity] = {}
        #: When each directory was removed last, and since when each socket was last shown as gone.
        self._removed: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        #: Since when each plugin is registered, by what its handler has answered.
        self._registered: dict[str, float] = {}
        #: How many retries of each path are under way; None stands for those that may concern any path.
        self._retries: Counter[str | None] = Counter()

    def forget(self, path: str | None = None) -> None:
        """Forget the crashes of ``path``, or of all paths, and the lives there."""
        self._lives.forget(path)
        if path is not None:
            self._rows.pop(path, None)
        else:
            self._rows.clear()
            self._removed.clear()

    def removed(self, directory: str) -> None:
        """A directory was removed. Until the daemon sees that, it may find a file that is made there anew twice."""
        self._removed[directory] = trio.current_time()

    def _may_be_found_again(self, path: str) -> bool:
        gone = self._gone.get(path, -math.inf)
        return any(at > gone for directory, at in self._removed.items() if path.startswith(f"{directory}/"))

    def retry_begins(self, path: str | None) -> None:
        """A retry of ``path``, or of a name, begins: from now on the path may be tried at once."""
        self._retries[path] += 1
        self.forget(path)

    def retry_ended(self, path: str | None) -> None:
        """The retry was answered, or given up."""
        self._retries[path] -= 1
        self.forget(path)

    def dialed(self, path: str, identity: Identity | None) -> None:
        """The daemon dials the file with this identity."""
        if identity is None or not identity.is_exact:
            return
        self._dialed[path] = identity
        row, now = self._rows.get(path), trio.current_time()
        if row is None or row.identity != identity or self._may_be_found_again(path):
            return
        if now < row.until - EPSILON:
            self._violated("backoff", f"{path} is dialed {row.until - now:.6f} s too soon after crash {row.count}")

    def crashed(self, path: str) -> None:
        """The registration of ``path`` crashed."""
        self._lives.crashed(path)
        identity, now = self._dialed.get(path), trio.current_time()
        registered = self._registered.pop(path, math.inf)
        if identity is None or self._retries[path] or self._retries[None]:
            return
        row = self._rows.get(path)
        stable = self._lives.is_stable(now - registered)
        if row is None or row.identity != identity or stable or now - row.last > REMEMBERED:
            row = self._rows[path] = _Row(identity)
        row.count, row.last = row.count + 1, now
        row.until = math.inf if row.count >= MOST_CRASHES else now + self._backoff.delay(row.count)

    def registered(self, path: str) -> None:
        """The handler has registered the plugin at ``path``."""
        self._lives.informed(path)
        self._registered[path] = trio.current_time()

    def deregistering(self, path: str) -> None:
        """The handler is asked to deregister the plugin at ``path``."""
        self._registered.pop(path, None)

    def informed(self, path: str) -> None:
        """The plugin at ``path`` is told whether it is registered."""
        self._lives.informed(path)

    def informed_late(self, path: str) -> None:
        """Some plugin at ``path`` reads what it, or the one before, was told at some time."""
        self._lives.informed_late(path)

    def reached(self, path: str, file: int, identity: Identity | None, began: float, *, connected: bool) -> None:
        """A dial of ``identity`` began then. This file was there, and the dial has ``connected`` unless it failed."""
        if self._retries[path] or self._retries[None]:
            self._lives.forget(path)
        self._lives.dialed(path, file, identity, began, connected=connected)

    def shown(self, status: PluginStatus) -> None:
        """A state of rest is shown."""
        if self._retries[status.socket] or self._retries[None]:
            self._lives.forget(status.socket)
        if status.state is StateName.GONE:
            self._gone[status.socket] = status.since
        self._lives.shown(status)
