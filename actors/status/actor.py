"""The status actor: it receives every change of state, and owns the view that users and programs see.

Its loop waits only for its inbox. Changes are sent to subscribers with ``send_nowait``, and a subscriber that lags is
dropped. The actor's nursery has a task for each connection to the status socket, which reads the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import trio

from ...protocol.devices.messages import DevicesMessage
from ...protocol.handlers.facts_asking import RefreshFacts
from ...protocol.health.progress import ActorHealth
from ...protocol.leases.messages import LeasesMessage
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.messages.addresses import Address
from ...protocol.messages.config import ConfigurationRead, ExpectationChanged, RootsChanged, TrustChanged
from ...protocol.messages.consumers import CallsEnded, EventNoted
from ...protocol.messages.discovery import EntryIgnored
from ...protocol.messages.reconciler import ReconcilerMessage
from ...protocol.messages.status import (
    ActorRestarted,
    CountsAsked,
    EndpointChanged,
    FollowEnded,
    HandlersChanged,
    HealthChecked,
    HealthReported,
    LoopBlocked,
    NameDefended,
    NamePassed,
    OwnerChanged,
    PluginChanged,
    PluginDisplaced,
    RegisterCalled,
    RegisterRefused,
    RoleChanged,
    RootStatus,
    ScansAwaited,
    ServingChanged,
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    Subscribed,
    Unsubscribed,
)
from ...protocol.plugins.info import DEVICE
from ...protocol.plugins.status import StateName
from ...protocol.settings.socket_users import SocketUsers
from ...protocol.status.early import OF_A_PLUGIN
from ...protocol.status.view import Row, has_only_other_facts
from ...protocol.values import record
from ..io.descriptors import DescriptorReserve
from ..io.unix_socket import UnixListener
from ..messaging.mailbox import Readable, offer
from .event_log import EventLog
from .listener import StatusSocket
from .memory import LastCrash, Memory, StatusConfig
from .metrics_port import MetricsPort

if TYPE_CHECKING:
    from ..handlers.remote import RemoteHandlers
    from .history_api import HistoryReader
    from .serving import ServedRoutes

__all__ = ["Memory", "StatusConfig", "run"]

#: How many messages are taken before other tasks run: less than a millisecond of work.
BATCH = 128


async def run(
    config: StatusConfig,
    *,
    inbox: Readable[StatusMessage],
    reconciler: Address[ReconcilerMessage],
    log: Logger = SILENT,
    memory: Memory | None = None,
    health: Callable[[], tuple[ActorHealth, ...]] = tuple,
    reserve: DescriptorReserve | None = None,
    devices: Address[DevicesMessage] | None = None,
    leases: Address[LeasesMessage] | None = None,
    refresh_facts: RefreshFacts | None = None,
    port: MetricsPort | None = None,
    remote: Callable[[], RemoteHandlers] | None = None,
    history: HistoryReader | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the view and serve the status socket until ``inbox`` ends; started once the socket listens.

    The metrics ``port``, if there is one, must be open. A crash leaves it open for the restarted actor.

    While the process has no descriptors left, the status socket takes those of ``reserve`` (fault 46). ``health``
    returns the health of the node's actors; it works even if this actor hangs. ``devices`` and ``leases`` are
    the addresses of the devices actor and the lease actor, if there are any. ``remote`` returns the handlers in other
    processes; None if the node takes none. ``history`` reads the history of leases, if there is one.

    A restarted actor that cannot make the socket goes on without it and tries again.

    Raises:
      ConfigError: if the status socket cannot be made at the start.
    """
    memory = memory or Memory()
    actor = _Status(config, log, memory, EventLog(log, memory))
    if config.socket is None and port is None:
        task_status.started()
        await actor.run(inbox)
        return
    again, users = memory.has_served, SocketUsers(config.lease_users, config.readers, config.handler_users)
    status_socket = (
        None
        if config.socket is None
        else StatusSocket(config.socket, log, again=again, failed=memory.note_unmade, users=users)
    )
    memory.has_served = True

    def made() -> ServedRoutes:
        # The HTTP server and its routes are imported for the first client.
        from .serving import served

        return served(
            config,
            memory,
            reconciler,
            health,
            devices=devices,
            leases=leases,
            refresh_facts=refresh_facts,
            reserve=reserve,
            remote=remote,
            history=history,
        )

    server = _Server(made)
    try:
        async with trio.open_nursery() as nursery:
            if status_socket is not None:
                nursery.start_soon(status_socket.serve, nursery, server.serve)
            if port is not None:
                nursery.start_soon(server.serve_port, port)
            task_status.started()
            await actor.run(inbox)
            # Requests under way have the grace to be answered; streams end now.
            nursery.cancel_scope.deadline = trio.current_time() + config.grace
            server.end_watches()
            if status_socket is not None:
                status_socket.close()
            if port is not None:
                port.close()
    finally:
        if status_socket is not None:
            status_socket.close()


class _Server:
    """The HTTP server of the status socket and of the metrics port, made for the first client."""

    def __init__(self, make: Callable[[], ServedRoutes]) -> None:
        self._make = make
        self._served: ServedRoutes | None = None

    async def serve(self, listener: UnixListener) -> None:
        """Serve the clients of ``listener`` until it is closed."""
        if (served := await self._awaited(listener.socket)) is not None:
            await served.serve(listener)

    async def serve_port(self, port: MetricsPort) -> None:
        """Serve the clients of ``port`` until it is closed."""
        if (served := await self._awaited(port.listener.socket)) is not None:
            await served.serve_port(port)

    async def _awaited(self, listening: trio.socket.SocketType) -> ServedRoutes | None:
        """Wait for the first client of a socket, and return its server; None if the socket was closed before."""
        if self._served is None:
            if listening.fileno() < 0:
                return None  # The node ended before this task began.
            try:
                await trio.lowlevel.wait_readable(listening)
            except trio.ClosedResourceError:
                return None
        if self._served is None:
            self._served = self._make()
        return self._served

    def end_watches(self) -> None:
        """End the streams of changes."""
        if self._served is not None:
            self._served.api.end_watches()


@record
class _Status:
    _config: StatusConfig
    _log: Logger
    memory: Memory
    _events: EventLog

    async def run(self, inbox: Readable[StatusMessage]) -> None:
        while True:
            try:
                message = await inbox.receive()
            except trio.EndOfChannel:
                return
            for _ in range(BATCH):
                if isinstance(message, StateChanged):
                    self._change(message)
                    for early in self.memory.early.take(message) if self.memory.early else ():
                        await self._take(early)
                elif isinstance(message, OF_A_PLUGIN) and self.memory.view.is_behind(
                    message.socket, message.generation
                ):
                    self.memory.early.keep(message, trio.current_time())
                else:
                    await self._take(message)
                try:
                    message = inbox.receive_nowait()
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            else:
                await self._take(message)
            if self.memory.audience.lagging:
                self.memory.audience.tell_lagging()
            await trio.lowlevel.checkpoint()

    def _change(self, change: StateChanged) -> None:
        """Apply a change of state, the most frequent message."""
        before, after = self.memory.view.apply(change)
        self.memory.metrics.count(change, after or before)
        if change.deregistered is not None:
            self._events.note_deregistered(change, change.deregistered)
        if after is not None:
            if before is not None and before.last.generation != after.last.generation:
                self._events.note_replaced(before, after)
            self._events.note_change(before, after)
            if change.state is StateName.REGISTERED and after.type == DEVICE and after.name is not None:
                self.memory.refused_calls.forget(after.name)
            if self.memory.audience.subscribers:
                self._publish(after, change.time)

    async def _take(self, message: StatusMessage) -> None:
        if isinstance(message, OF_A_PLUGIN) and self.memory.view.is_behind(message.socket, message.generation):
            self.memory.early.keep(message, trio.current_time())
            return
        view, metrics = self.memory.view, self.memory.metrics
        match message:
            case StateChanged():
                self._change(message)
            case RoleChanged():
                row = view.set_active(message.socket, message.generation, active=message.active)
                self._publish_if_changed(row, trio.current_time())
            case NameDefended():
                self._events.note_defended(message)
            case NamePassed():
                view.add_remark(message.socket, message.generation, trio.current_time(), message.reason)
                self._events.note_passed(message)
            case PluginDisplaced():
                if (row := self._publish_if_changed(view.set_displaced(message), trio.current_time())) is not None:
                    self._events.note_displaced(message, row)
            case OwnerChanged():
                self._publish_if_changed(view.set_owner(message), trio.current_time())
            case ServingChanged():
                if (row := self._publish_if_changed(view.set_serving(message), message.time)) is not None:
                    self._events.note_serving(message, row)
            case EndpointChanged():
                if (row := self._publish_if_changed(view.set_endpoint(message), message.time)) is not None:
                    self._events.note_endpoint(message, row)
            case HealthReported():
                if (noted := view.set_health(message)) is not None:
                    before, after = noted
                    self._publish_if_changed(after, message.time, only_facts=has_only_other_facts(before, after.health))
                    self._events.note_health(message, before, after)
            case HealthChecked():
                metrics.count_check(message)
            case CallsEnded():
                for call in message.calls:
                    self.memory.calls.observe(call)
            case EventNoted():
                self._take_event(message)
            case FollowEnded():
                metrics.count_link_restart(message.plugin.type)
                self._events.note_follow_ended(message)
            case EntryIgnored():
                self._events.note_ignored(message)
            case RootStatus():
                self._events.note_root(view.roots.get(message.root), message)
                self._events.note_directories(view.roots.get(message.root), message)
                self._events.note_refused(message.root)
                view.roots[message.root] = message
                metrics.count_root(message)
                self._answer_waiting()
            case RegisterCalled():
                metrics.register_calls.count(message.resource, may_be_new=message.registered)
            case RegisterRefused():
                self._events.note_refused_call(message)
                self.memory.refused_calls.note(message, trio.current_time())
            case HandlersChanged():
                view.handlers = message.types
                metrics.learn_types(message.types)
                self._log.event(Level.INFO, "handlers changed", types=", ".join(message.types))
            case ActorRestarted():
                self._take_restart(message)
            case LoopBlocked():
                self.memory.blocked = message
                metrics.blocks += 1
                metrics.blocked_seconds += message.seconds
                self._events.note_blocked(message)
            case SnapshotAsked():
                offer(message.reply, await self._snapshot(history=True))
            case CountsAsked():
                offer(message.reply, view.counts())
            case TrustChanged():
                self.memory.trust = message
            case RootsChanged():
                self.memory.change_roots(message)
                self._answer_waiting()
            case ExpectationChanged():
                self.memory.expectation = message
            case ConfigurationRead():
                self.memory.note_configuration(message)
            case ScansAwaited():
                self.memory.awaiting_scans.append(message.reply)
                self._answer_waiting()
            case Subscribed():
                snapshot = await self._snapshot(history=False)
                self.memory.audience.add(message.subscriber, snapshot)
            case Unsubscribed():
                self.memory.audience.remove(message.subscriber)
            case _:
                assert_never(message)

    def _answer_waiting(self) -> None:
        """Answer the callers that wait for a scan of each root."""
        if self.memory.awaiting_scans and self.memory.view.roots.keys() >= set(self.memory.roots(self._config)):
            for address in self.memory.awaiting_scans:
                offer(address, message=True)
            self.memory.awaiting_scans.clear()

    async def _snapshot(self, *, history: bool) -> Snapshot:
        """Return the whole view at one moment: the actor reads no message meanwhile, but other tasks run."""
        plugins = []
        for number, row in enumerate(self.memory.view.rows.values()):
            plugins.append(row.status_with_history if history else row.status)
            if number % BATCH == BATCH - 1:
                await trio.lowlevel.checkpoint()
        view = self.memory.view
        return Snapshot(trio.current_time(), tuple(plugins), tuple(view.roots.values()), view.handlers)

    def _take_restart(self, message: ActorRestarted) -> None:
        # The error can be a whole traceback; its last line is the message.
        error = (message.error.rstrip().splitlines() or ["unknown"])[-1]
        metrics = self.memory.metrics
        kind = metrics.count_restart(message.name)
        self.memory.restarts[kind] = LastCrash(trio.current_time(), error, metrics.restarts[kind])
        self._events.note_restart(message, error)

    def _take_event(self, message: EventNoted) -> None:
        remark, plugin = f"{message.event}: {message.text}", message.plugin
        row = self.memory.view.add_remark(plugin.socket, plugin.generation, message.time, remark)
        self._events.note_event(message)
        if row is not None:
            self._publish(row, message.time, remark)

    def _publish_if_changed(self, row: Row | None, time: float, *, only_facts: bool = False) -> Row | None:
        """Publish the row that a message has changed, and return it; None if nothing has changed."""
        if row is not None and self.memory.audience.subscribers:
            self._publish(row, time, only_facts=only_facts)
        return row

    def _publish(self, row: Row, time: float, event: str | None = None, *, only_facts: bool = False) -> None:
        self.memory.audience.tell(PluginChanged(time, row.status, event, only_facts), self._log)
