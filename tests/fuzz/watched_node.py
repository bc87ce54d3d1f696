"""The node that scripts are played on: a :class:`SimulatedNode` that reports to oracles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import trio

from plugind.actors.grpc.client.dial import Judge
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.handlers.handler import Handler
from plugind.actors.simulation.directory import MemoryDirectory, Telling
from plugind.actors.simulation.faults import Actor, is_injected
from plugind.actors.simulation.network import MemoryNetwork, Process
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import RESTART_PAUSE
from plugind.protocol.errors import leaves
from plugind.protocol.health.liveness import ConnectAnswer, answer_of
from plugind.protocol.identity import Identity
from plugind.protocol.messages.reconciler import RetryAnswer
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.settings.config import Config
from plugind.protocol.wire.errors import DialError, DialFailure
from plugind.tests.fuzz.backoff_oracle import BackoffOracle
from plugind.tests.fuzz.crash_oracle import CrashOracle
from plugind.tests.fuzz.device_oracle import DeviceOracle
from plugind.tests.fuzz.dial_order_oracle import DialOrderOracle
from plugind.tests.fuzz.directory_oracle import DirectoryOracle
from plugind.tests.fuzz.generation_oracle import GenerationOracle
from plugind.tests.fuzz.handler_oracle import HandlerOracle
from plugind.tests.fuzz.life_oracle import LifeOracle
from plugind.tests.fuzz.log_oracle import LogOracle
from plugind.tests.fuzz.notice_oracle import NoticeDisk, NoticeOracle
from plugind.tests.fuzz.patience_oracle import PatienceOracle
from plugind.tests.fuzz.script import PRIVILEGED, SOCKETS, TRUSTED
from plugind.tests.fuzz.sentinels import ACTOR_RECOVERY, RECONCILER_RECOVERY, Sentinels
from plugind.tests.fuzz.serving_oracle import ServingOracle
from plugind.tests.fuzz.trace import Trace
from plugind.tests.fuzz.trust_oracle import TrustOracle
from plugind.tests.fuzz.turn_oracle import TurnOracle

#: The states that oracles are shown. What lies between them they take from the network and the handlers.
SETTLED = frozenset(
    {
        StateName.REGISTERED,
        StateName.WAITING,
        StateName.STALE,
        StateName.PARKED,
        StateName.LEAVING,
        StateName.GONE,
    }
)


class WatchedNetwork(MemoryNetwork):
    """A network that reports each dial."""

    def __init__(
        self,
        directory: MemoryDirectory,
        trace: Trace,
        backoff: BackoffOracle,
        trust: TrustOracle,
        crashes: CrashOracle,
        generations: GenerationOracle,
        order: DialOrderOracle,
        modes: DirectoryOracle,
        patience: PatienceOracle,
        turns: TurnOracle,
        root: str,
    ) -> None:
        super().__init__(directory)
        self._turns = turns
        self._patience = patience
        self._root = root
        self._order = order
        self._modes = modes
        self._trust = trust
        self._trace = trace
        self._backoff = backoff
        self._crashes = crashes
        self._generations = generations

    async def dial(
        self,
        path: str,
        *,
        identity: Identity | None = None,
        root: str | None = None,
        timeout: float,
        refused_grace: float = 1.0,
        judge: Judge | None = None,
    ) -> RegistrationChannel:
        """See :class:`MemoryNetwork`."""
        self._trace.line("dial", path)
        if not path.startswith(f"{self._root}/"):
            # The plugins of other directories have oracles of their own.
            return await super().dial(
                path, identity=identity, root=root, timeout=timeout, refused_grace=refused_grace, judge=judge
            )
        self._backoff.dialed(path)
        self._crashes.dialed(path, identity)
        self._turns.dialed(path)
        file = self._directory.inode(path) if self._directory.exists(path) else None
        if file is not None and identity is not None and self._directory.identity(file).is_same(identity):
            self._order.dialed(path, file.serial, identity, file.looked_at)
        self.opened[:] = [(other, stream) for other, stream in self.opened if not stream.closed]
        if any(other == path for other, _ in self.opened):
            self._trace.violated("one-per-path", f"{path} is dialed while a connection to it is open")
        began = trio.current_time()
        try:
            channel = await super().dial(
                path, identity=identity, root=root, timeout=timeout, refused_grace=refused_grace, judge=judge
            )
        except DialError as error:
            if error.kind is DialFailure.REPLACED:
                self._trace.line("replaced", path)
                self._backoff.replaced(path)
            if error.kind is DialFailure.EXHAUSTED:
                self._turns.exhausted()
                self._order.disturbed()
            if file is not None and error.kind not in (DialFailure.REPLACED, DialFailure.GONE):
                self._crashes.reached(path, file.serial, identity, began, connected=False)
            if error.kind is DialFailure.FULL:
                self._patience.found_full(path, identity, began)
            else:
                self._patience.failed(path)
            raise
        assert channel.peer is not None, "a simulated connection has credentials"
        self._patience.connected(path, identity, began, self.opened[-1][1])
        self._crashes.reached(path, self.reached[path].serial, identity, began, connected=True)
        self._trust.connected(path, channel.peer.uid)
        self._modes.connected(path, self.reached[path], channel.peer.uid)
        if self._directory.telling is Telling.HANDLES:
            self._generations.connected(path, self.reached[path].serial)
        return channel

    def look(self, path: str, identity: Identity | None = None) -> Process:
        """See :class:`MemoryNetwork`. A stale socket on which somebody listens is dialed at once."""
        try:
            found = super().look(path, identity)
        except OSError as error:
            # A full backlog says that somebody listens, too.
            if answer_of(error) is ConnectAnswer.ACCEPTED:
                self._backoff.listener_found(path)
            raise
        self._backoff.listener_found(path)
        return found


class WatchedNode(SimulatedNode):
    """A simulated node that reports crashes and what is shown to the trace and the oracles."""

    def __init__(
        self,
        config: Config,
        trace: Trace,
        oracle: HandlerOracle,
        backoff: BackoffOracle,
        generations: GenerationOracle,
        trust: TrustOracle,
        *,
        handlers: Mapping[str, Handler],
        apart: Mapping[str, Callable[[PluginChanged], None]] | None = None,
    ) -> None:
        #: What is given the changes of plugins in other directories than the root of all others, by directory.
        self._apart = dict(apart or {})
        self.log = LogOracle(trace.violated)
        super().__init__(config, handlers=handlers, log=self.log)
        self.trace = trace
        self._oracle = oracle
        self._backoff = backoff
        self._order = DialOrderOracle(trace.violated)
        self._patience = PatienceOracle(trace.violated, config.timeouts)
        #: What checks who is tried when a name is free.
        self.turns = TurnOracle(trace.violated, PRIVILEGED)
        #: What watches whether somebody listens on what is shown.
        self.serving = ServingOracle(self, trace.violated)
        self._generations = generations
        #: What checks the pauses after crashes.
        self.crashes = CrashOracle(
            trace.violated, config.backoff, LifeOracle(trace.violated, config.backoff, config.stable_after)
        )
        #: What checks that nothing new is dialed below directories to which others may write.
        self.modes = DirectoryOracle(self.directory, trace.violated, self.root, PRIVILEGED, TRUSTED)
        self.network: WatchedNetwork = WatchedNetwork(
            self.directory,
            trace,
            backoff,
            trust,
            self.crashes,
            generations,
            self._order,
            self.modes,
            self._patience,
            self.turns,
            self.root,
        )
        self.notice_store: NoticeDisk = NoticeDisk()
        #: What checks who is notified after a restart, in the scripts that leave out notifications.
        self.notices: NoticeOracle | None = None
        if not config.renotify:
            self.notices = NoticeOracle(trace.violated, [*map(self.path, SOCKETS)], self.network, self.notice_store)
        oracle.steps = self
        #: What checks that the devices are shown that plugins have listed.
        self.devices = DeviceOracle(trace.violated)
        #: Cancelled when tasks run and virtual time stands still.
        self.livelock_guard = trio.CancelScope()
        self._checked_at = -1.0
        #: When an actor crashed last.
        self.crashed_at = -math.inf
        #: The plugins that no other may delay. They are plugged into this node.
        self.sentinels = Sentinels(self, trace.violated, oracle.registrations)
        #: The instances that are registered, or were last, by path: their generations, and from when to when.
        self._instances: dict[str, tuple[int, float, float]] = {}

    def crash(self, actor: Actor, of: str = "") -> bool:
        """See :class:`SimulatedNode`. Whichever act crashes an actor, the oracles know."""
        crashed = super().crash(actor, of)
        if crashed:
            self.sentinels.grant_grace(RECONCILER_RECOVERY if actor == "reconciler" else ACTOR_RECOVERY)
            if actor == "devices":
                self.devices.crashed(trio.current_time(), RESTART_PAUSE.cap)
        return crashed

    async def retry(self, target: str, path: str | None) -> tuple[RetryAnswer, ...]:
        """Ask for a retry of a name, or of the socket at ``path``."""
        self._order.retried(path)
        return await self.supervisor.retry(target)

    def check_progress(self) -> None:
        """Cancel the script if virtual time has stood still since the last check."""
        now = trio.current_time()
        if now == self._checked_at:
            self.livelock_guard.cancel()
        self._checked_at = now

    async def start(self, *, handlers: Mapping[str, Handler] | None = None) -> None:
        """See :class:`SimulatedNode`. Each crash of an actor is traced, and a violation if no script asked for it."""
        self.serving.forget()
        self.crashes.forget()
        self.log.restarted()
        self._order.forget()
        self._patience.forget()
        self.turns.forget()
        self._instances.clear()
        if self.notices is not None:
            self.notices.restarted()
        await super().start(handlers=handlers)
        self.supervisor.internals.crashes.watch(self._record_crash)

    def _record_crash(self, name: str, error: Exception) -> None:
        kind, _, of = name.partition(" ")
        self.crashed_at = trio.current_time()
        self.trace.line("crash", kind)
        self.serving.disturbed()
        self.turns.forget()
        match kind:
            case "watcher":
                self._order.disturbed()
            case "registration":
                self._order.forget(of)
                self._patience.failed(of)
                self._end_instance(of)
                self._backoff.retriggered(of)
                self.crashes.crashed(of)
                self._oracle.orphan(of)
                self.log.crashed(of)
            case "node":
                self._order.forget()
                self._backoff.touched()
                self.crashes.forget()
                self._oracle.orphan()
                self.log.crashed(None)
                self._generations.crashed()
            case _:
                pass
        if not is_injected(error):
            self.trace.violated("crash", f"{kind}: {error!r}: {[repr(leaf) for leaf in leaves(error)]}")

    def record(self, change: PluginChanged) -> None:
        """Record one change, after the oracles have checked it."""
        status = change.plugin
        self.trace.line(
            "shown", status.socket, status.generation, status.state, status.attempt, status.next_try, status.reason
        )
        if status.root in self._apart:
            self._apart[status.root](change)
            return
        if status.state in SETTLED:
            if self.notices is not None:
                self.notices.shown(status)
            self._generations.shown(status)
            self._backoff.shown(status, to_notify=self._is_registered(status))
            self.crashes.shown(status)
            self._order.shown(status)
            self._patience.shown(status)
            self.turns.shown(status)
            self._oracle.shown(status)
            self.serving.shown(status)
        else:
            self.turns.begun(status.socket)
        super().record(change)

    def _is_registered(self, status: PluginStatus) -> bool | None:
        """Whether the plugin was registered when this began; None if that has ended in the same instant, or before."""
        generation, since, until = self._instances.get(status.socket, (0, math.inf, math.inf))
        if generation > status.generation:
            return None  # What is shown lags behind the handler.
        if generation != status.generation or not since <= status.since <= until + EPSILON:
            return False
        return True if status.since < until - EPSILON else None

    def _end_instance(self, path: str) -> None:
        if path in self._instances:
            generation, since, until = self._instances[path]
            self._instances[path] = generation, since, min(until, trio.current_time())

    # --- the steps of registrations, as plugins and handlers see them ---

    def asked(self, path: str, plugged: PluggedIn) -> None:
        """See :class:`plugind.tests.fuzz.handler_oracle.Steps`."""
        self._generations.asked(path)
        if isinstance(plugged.plugin, FakePlugin):
            self._backoff.asked(path, plugged.plugin.name)
            self.turns.asked(path, plugged.plugin.name, plugged.uid)

    def informed(self, path: str, plugged: PluggedIn, *, registered: bool) -> None:
        """See :class:`plugind.tests.fuzz.handler_oracle.Steps`."""
        late = plugged.process is not self.network.met.get(path)
        if self.notices is not None:
            file = self.directory.identity(self.directory.inode(path)) if self.directory.exists(path) else None
            self.notices.told(path, file, registered=registered, late=late)
        # Another one may read what it was sent only now.
        if not late:
            self.crashes.informed(path)
        else:
            self.crashes.informed_late(path)

    def was_registered(self, plugin: Plugin) -> None:
        """See :class:`plugind.tests.fuzz.handler_oracle.Steps`."""
        self._instances[plugin.socket] = plugin.generation, trio.current_time(), math.inf
        if self.notices is not None:
            self.notices.registered(plugin)
        self.crashes.registered(plugin.socket)
        self.turns.registered(plugin.socket, plugin.name, privileged=plugin.privileged)

    def deregistering(self, plugin: Plugin) -> None:
        """See :class:`plugind.tests.fuzz.handler_oracle.Steps`."""
        self.crashes.deregistering(plugin.socket)
        if self.notices is not None:
            self.notices.disturbed(plugin.socket)
        self.turns.deregistering(plugin.socket)

    def deregistered(self, plugin: Plugin) -> None:
        """See :class:`plugind.tests.fuzz.handler_oracle.Steps`."""
        self._end_instance(plugin.socket)
        self._backoff.deregistered(plugin.socket)
        self._order.deregistered(plugin.socket)
