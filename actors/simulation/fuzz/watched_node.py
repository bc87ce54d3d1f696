"""The node that scripts are played on: a :class:`SimulatedNode` that is watched by oracles, and whose actors can crash.

An actor crashes as a bug would make it: it is given a message that nobody sends, or its port raises what no port does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from typing import Literal, cast

import attrs
import trio

from ....protocol import messages as m
from ....protocol.config import Config, Timeouts
from ....protocol.discovery import Found
from ....protocol.plugins import InstancePolicy, Plugin
from ....protocol.status import PluginStatus, StateName
from ...io.directory import Chunk
from ...io.grpc_client.channel import Channel
from ...supervision import leaves
from ..directory import MemoryDirectory
from ..handlers import Ask, Behaviour, behave
from ..network import MemoryNetwork
from ..node import SimulatedNode
from .handler_oracle import EPSILON, BackoffOracle, HandlerOracle
from .trace import Trace

Actor = Literal["watcher", "reconciler", "registration", "status", "handler"]
ACTORS: tuple[Actor, ...] = ("watcher", "reconciler", "registration", "status", "handler")


class InjectedError(Exception):
    """The crash of an actor that the script asked for."""


@attrs.frozen
class Bomb:
    """A message that no actor knows; it crashes whoever takes it in."""


class CrashingDirectory(MemoryDirectory):
    """A directory whose next look or scan may crash the watcher."""

    #: The next so many looks and scans raise.
    crashes = 0

    def _crash(self) -> None:
        if self.crashes:
            self.crashes -= 1
            raise InjectedError

    def look(self, path: str) -> Found | None:
        """See :class:`MemoryDirectory`."""
        self._crash()
        return super().look(path)

    def scan(self, path: str, known: Mapping[str, int]) -> Generator[Chunk, None, None]:
        """See :class:`MemoryDirectory`."""
        for chunk in super().scan(path, known):
            yield chunk
            self._crash()


class WatchedNetwork(MemoryNetwork):
    """A network that tells of each dial, and may crash who dials."""

    def __init__(self, directory: MemoryDirectory, trace: Trace, backoff: BackoffOracle) -> None:
        super().__init__(directory)
        self._trace = trace
        self._backoff = backoff
        #: The next so many dials raise.
        self.crashes = 0

    async def dial(self, path: str, *, timeout: float, refused_grace: float = 1.0) -> Channel:
        """See :class:`MemoryNetwork`."""
        self._trace.line("dial", path)
        self._backoff.dialed(path)
        self.opened[:] = [(other, stream) for other, stream in self.opened if not stream.closed]
        if any(other == path for other, _ in self.opened):
            self._trace.violated("one-per-path", f"{path} is dialed while a connection to it is open")
        if self.crashes:
            self.crashes -= 1
            raise InjectedError
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

    def __init__(self, config: Config, trace: Trace, handlers: HandlerOracle, backoff: BackoffOracle) -> None:
        super().__init__(config)
        self.trace = trace
        self._seen = handlers
        self._backoff = backoff
        old = self.directory
        self.directory: CrashingDirectory = CrashingDirectory(now=old._now)
        self.network: WatchedNetwork = WatchedNetwork(self.directory, trace, backoff)
        for root in self.config.roots:
            self.directory.mkdir(root.path)
        #: Cancelled when tasks run and run, and time stands still.
        self.headway = trio.CancelScope()
        self._seen_at = -1.0
        #: Paths of the plugins that are registered and are still to be told so.
        self._owed_notices: set[str] = set()

    def _every_so_often(self) -> None:
        now = trio.current_time()
        if now == self._seen_at:
            self.headway.cancel()
        self._seen_at = now

    def watch_crashes(self) -> None:
        """Tell the trace of each crash of an actor, and of those that nobody asked for. Once for each daemon."""
        crashes = self.supervisor._crashes
        tell = crashes._report

        def told(name: str, error: Exception) -> None:
            kind = name.split()[0]
            self.trace.line("crash", kind)
            match kind:
                case "registration":
                    self._backoff.nudged(name.partition(" ")[2])
                    self._seen.orphan(name.partition(" ")[2])
                case "handler":
                    self._backoff.touched()
                case "node":
                    self._backoff.touched()
                    self._seen.orphan()
                case _:
                    pass
            if not all(isinstance(leaf, InjectedError) or "Bomb" in str(leaf) for leaf in leaves(error)):
                self.trace.violated("crash", f"{kind}: {error!r}: {[repr(leaf) for leaf in leaves(error)]}")
            tell(name, error)

        crashes._report = told

    def crash(self, actor: Actor, path: str | None, plugin_type: str) -> bool:
        """Crash an actor, the registration of ``path`` or the handler of ``plugin_type``; return whether there is one.

        A bug would be in an actor's own code, so what it is given are messages that only a bug could send.
        """
        supervisor, bomb = self.supervisor, Bomb()
        match actor:
            case "watcher":
                self.directory.crashes += 1
            case "reconciler":
                supervisor._to_reconciler.send_nowait(cast("m.ReconcilerMessage", bomb))
            case "status":
                supervisor._to_status.send_nowait(cast("m.StatusMessage", bomb))
            case "handler":
                handler = supervisor._handlers.address(plugin_type)
                if handler is None:
                    return False
                handler.send_nowait(cast("m.HandlerMessage", bomb))
            case "registration":
                inbox = supervisor._registrations.current(path or "")
                if inbox is None:
                    return False
                # Past the bell, whose rule would crash the sender.
                inbox._send.send_nowait(cast("m.RegistrationMessage", bomb))
                inbox.waiting += 1
        return True

    def _note(self, change: m.PluginChanged) -> None:
        status = change.plugin
        self.trace.line(
            "shown", status.socket, status.generation, status.state, status.attempt, status.next_try, status.reason
        )
        self._backoff.shown(status, owing=self._is_owed_notice(status))
        self._seen.shown(status)
        super()._note(change)

    def _is_owed_notice(self, status: PluginStatus) -> bool:
        """Whether the plugin was registered and is still to be told so, as far as is shown: that lags the handler."""
        path, before = status.socket, self._statuses.get(status.socket)
        if before is None or before.generation != status.generation:
            self._owed_notices.discard(path)
        match status.state:
            case StateName.NOTIFYING if status.reason is None:
                self._owed_notices.add(path)
            case StateName.DIALING | StateName.WAITING:
                pass
            case _:
                self._owed_notices.discard(path)
        return path in self._owed_notices

    def shown(self, state: StateName) -> dict[str, PluginStatus]:
        """What is shown in ``state`` now, by path."""
        return {path: status for path, status in self._statuses.items() if status.state is state}

    def actors(self) -> list[str]:
        """The paths that have a registration actor now."""
        return sorted(self.supervisor._registrations.paths)
