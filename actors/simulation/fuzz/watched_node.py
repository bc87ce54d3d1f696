"""The node that scripts are played on: a :class:`SimulatedNode` that reports to oracles.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque

import trio

from ....protocol import messages as m
from ....protocol.config import Config, Timeouts
from ....protocol.plugins import InstancePolicy, Plugin
from ....protocol.status import PluginStatus, StateName
from ...io.grpc_client.channel import Channel
from ...supervision import leaves
from ..directory import MemoryDirectory
from ..faults import is_injected
from ..handlers import Ask, Behaviour, behave
from ..network import MemoryNetwork
from ..node import SimulatedNode
from .backoff_oracle import BackoffOracle
from .handler_oracle import HandlerOracle
from .trace import EPSILON, Trace


class WatchedNetwork(MemoryNetwork):
    """A network that reports each dial."""

    def __init__(self, directory: MemoryDirectory, trace: Trace, backoff: BackoffOracle) -> None:
        super().__init__(directory)
        self._trace = trace
        self._backoff = backoff

    async def dial(self, path: str, *, timeout: float, refused_grace: float = 1.0) -> Channel:
        """See :class:`MemoryNetwork`."""
        self._trace.line("dial", path)
        self._backoff.dialed(path)
        self.opened[:] = [(other, stream) for other, stream in self.opened if not stream.closed]
        if any(other == path for other, _ in self.opened):
            self._trace.violated("one-per-path", f"{path} is dialed while a connection to it is open")
        return await super().dial(path, timeout=timeout, refused_grace=refused_grace)


class WatchedHandler:
    """A handler that behaves as it is told, and tells the oracle of each call."""

    def __init__(self, number: int, policy: InstancePolicy, oracle: HandlerOracle, backoff: BackoffOracle) -> None:
        self.instances = policy
        self.number = number
        #: What the next calls do, by call and name.
        self.script: dict[tuple[Ask, str], deque[Behaviour]] = {}
        self._oracle = oracle
        self._backoff = backoff

    async def validate(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.actor.Handler`."""
        await self._call("validate", plugin)

    async def register(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.actor.Handler`."""
        await self._call("register", plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.actor.Handler`."""
        try:
            await self._call("deregister", plugin)
        finally:
            self._backoff.freed(plugin.name)

    async def _call(self, ask: Ask, plugin: Plugin) -> None:
        call = self._oracle.began(self.number, ask, plugin)
        ok = cut_off = False
        deadline = trio.current_time() + Timeouts().handler - EPSILON
        try:
            scripted = self.script.get((ask, plugin.name))
            await behave(scripted.popleft() if scripted else None)
            ok = True
        except trio.Cancelled:
            cut_off = trio.current_time() < deadline
            raise
        finally:
            self._oracle.ended(call, ok=ok, cut_off=cut_off)


class WatchedNode(SimulatedNode):
    """A simulated node that tells its trace and its oracles what is shown, and counts crashes."""

    def __init__(
        self,
        config: Config,
        trace: Trace,
        handlers: HandlerOracle,
        backoff: BackoffOracle,
        *,
        handler: tuple[str, WatchedHandler],
    ) -> None:
        super().__init__(config, handlers=dict([handler]))
        self.trace = trace
        self._seen = handlers
        self._backoff = backoff
        self.network: WatchedNetwork = WatchedNetwork(self.directory, trace, backoff)
        #: Cancelled when tasks run and virtual time stands still.
        self.livelock_guard = trio.CancelScope()
        self._checked_at = -1.0
        #: Paths of plugins that are registered and that have not been notified of it.
        self._to_notify: set[str] = set()

    def check_progress(self) -> None:
        """Cancel the script if virtual time has stood still since the last check."""
        now = trio.current_time()
        if now == self._checked_at:
            self.livelock_guard.cancel()
        self._checked_at = now

    def watch_crashes(self) -> None:
        """Trace each crash of an actor, and report those that no script asked for. Call it once for each daemon."""
        self.supervisor.internals.crashes.watch(self._record_crash)

    def _record_crash(self, name: str, error: Exception) -> None:
        kind, _, of = name.partition(" ")
        self.trace.line("crash", kind)
        match kind:
            case "registration":
                self._backoff.retriggered(of)
                self._seen.orphan(of)
            case "handler":
                self._backoff.touched()
            case "node":
                self._backoff.touched()
                self._seen.orphan()
            case _:
                pass
        if not is_injected(error):
            self.trace.violated("crash", f"{kind}: {error!r}: {[repr(leaf) for leaf in leaves(error)]}")

    def record(self, change: m.PluginChanged) -> None:
        """Show the change to the oracles first."""
        status = change.plugin
        self.trace.line(
            "shown", status.socket, status.generation, status.state, status.attempt, status.next_try, status.reason
        )
        self._backoff.shown(status, owing=self._must_be_notified(status))
        self._seen.shown(status)
        super().record(change)

    def _must_be_notified(self, status: PluginStatus) -> bool:
        """Whether the plugin is registered and not yet notified, by what is shown, which lags the handler."""
        path, before = status.socket, self.status(status.socket)
        if before is None or before.generation != status.generation:
            self._to_notify.discard(path)
        match status.state:
            case StateName.NOTIFYING if status.reason is None:
                self._to_notify.add(path)
            case StateName.DIALING | StateName.WAITING:
                pass
            case _:
                self._to_notify.discard(path)
        return path in self._to_notify

    def shown(self, state: StateName) -> dict[str, PluginStatus]:
        """What is shown in ``state`` now, by path."""
        return {path: status for path, status in self.statuses.items() if status.state is state}
