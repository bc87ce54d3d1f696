"""A node: its parts, and how its actors are started, restarted and stopped.

:class:`Node` is the supervisor of all actors, and only it starts actors. It adds the handlers, starts its children in
order and stops them in reverse. The child ``node`` is the reconciler with the liveness actor and one watcher for each
root. The reconciler requests registration actors and gets their addresses. When it crashes, both worlds are lost. Then
the registrations deregister their plugins, and the child ``node`` starts again from the file system (fault 85).

An embedding program uses :class:`plugind.Supervisor`, which delegates to this class.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from ...protocol.devices.messages import DevicesAsked, DevicesSubscribed, DevicesUnsubscribed, ResourceChanged
from ...protocol.errors import ConfigError, leaves
from ...protocol.health.progress import Condition
from ...protocol.logs.lines import Level, Logger
from ...protocol.messages.config import ConfigurationRead
from ...protocol.messages.liveness import LivenessMessage
from ...protocol.messages.reconciler import ReconcilerMessage, ReportAsked, RetryAsked, StopAsked, StopForced
from ...protocol.messages.status import (
    ActorRestarted,
    CountsAsked,
    PluginChanged,
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    Subscribed,
    Unsubscribed,
)
from ...protocol.plugins.devices import DevicesSnapshot
from ...protocol.plugins.info import CSI, DRA
from ...protocol.plugins.status import PluginCounts, StateName
from ...protocol.registration.lives import Lives
from ...protocol.settings.config import Config, Root, check_renotify
from ...protocol.values import value
from ...protocol.world.effects import HandlerRetired, StartRegistration
from ..devices.unit import Devices, StaticUnit
from ..discovery import watcher
from ..handlers.by_type import Handlers
from ..handlers.calls import CallConfig
from ..handlers.csi.handler import CSIHandler
from ..handlers.dra.handler import DRAHandler
from ..handlers.handler import Handler
from ..handlers.links import Links, LinksConfig
from ..handlers.observers import Observers
from ..health import liveness, watchdog
from ..health.endpoint_checks import EndpointChecks
from ..health.inboxes import Inboxes
from ..health.liveness import LivenessConfig
from ..io.descriptors import RESERVED, DescriptorReserve, most_connections
from ..io.exact_connect import can_connect_to_descriptors
from ..io.node_access import NodeAccess
from ..leases.embedding import LeaseCalls
from ..logs.limited import LimitedLog
from ..messaging.callers import Callers
from ..messaging.mailbox import Inbox, send
from ..registration import actor as registration
from ..registration.config import RegistrationConfig
from ..registration.conversation import ConversationConfig
from ..registration.dial_slots import DialSlots
from ..registration.inbox import RegistrationInbox
from ..registration.notices import Notices
from ..registration.registrations import Registrations
from ..registration.timers import TryTimers
from ..status import actor as status
from ..status.actor import StatusConfig
from ..world import reconciler
from . import wiring
from .handlers import handlers_at_start
from .paths import check_places, directories_of
from .ports import Ports, real_ports
from .supervision import Children, ChildSpec, Crashes, GaveUpError, Restart
from .watchers import Watchers

if TYPE_CHECKING:
    from ..devices.server import DeviceServer
    from ..devices.static import StaticDevices
    from ..handlers.remote import RemoteHandlers

#: The size of the inboxes of the reconciler, the liveness and the status actor. Writers to a full inbox wait.
INBOX_SIZE = 4096
#: What is lost without ``/proc`` (faults 23 and 41).
_NO_PROC = (
    "/proc cannot be read: a socket that is replaced while it is dialed is found out only afterwards, and paths over "
    "107 bytes cannot be dialed"
)
#: Seconds in which the status actor can end its streams and send its last answers.
STATUS_GRACE = 2.0


@value
class Unfinished:
    """What keeps a stopping node from ending."""

    actors: tuple[str, ...]
    #: Calls of handlers that have not ended, in words, including those of ``follow`` that were cancelled.
    calls: tuple[str, ...]


class Node:
    """The actors of a node, their inboxes, and the state that outlives their crashes."""

    def __init__(
        self,
        config: Config,
        handlers: Mapping[str, Handler],
        ports: Ports | None,
        status_config: StatusConfig,
        log: Logger,
    ) -> None:
        """Create what can be created before anything is opened.

        Raises:
          ConfigError: if the configuration contradicts itself, or a handler needs more time than it has.
        """
        self.status_socket = status_config.socket
        check_places(config, self.status_socket)
        check_renotify(config)
        limits = config.log_limits
        self._limited = None if limits is None else LimitedLog(log, limits)
        self._log: Logger = self._limited or log
        self._by_path_only = ports is None and not can_connect_to_descriptors()
        self.ports = ports = ports or real_ports(config)
        seed = self._seed = int.from_bytes(os.urandom(8)) if config.seed is None else config.seed
        #: One sequence of generations for all watchers.
        self._generations = itertools.count(1)
        self.callers = Callers()
        self.crashes = Crashes(config.intensity, self._report_crash)

        # A reload replaces these.
        self.config = config
        self.rules = wiring.rules_of(config, ports.users(config.trust))
        self.endpoints = wiring.endpoints_of(self.rules, ports.endpoints, self.status_socket)
        #: Held by the reload under way.
        self.reload = trio.Semaphore(1)

        self.reconciler = Inbox[ReconcilerMessage](INBOX_SIZE)
        self.liveness = Inbox[LivenessMessage](INBOX_SIZE)
        self.status = Inbox[StatusMessage](INBOX_SIZE)
        to_reconciler, to_status = self.reconciler.address, self.status.address

        state = ports.state(config, self._log)
        open_ports = partial(ports.leases, config, self.status_socket)
        access = NodeAccess(ports.nodes)
        self.leases = wiring.leases_of(config, self.rules.users, state, open_ports, access, self._log)
        #: The leases of the program that embeds the node.
        self.lease_calls = LeaseCalls(self.leases, self.callers, self.rules.users.own)
        self.devices = Devices(state.devices, self._log, self.leases.inbox)
        #: The handlers in other processes; None as long as there was no such process, and the configuration names none.
        self._remote: RemoteHandlers | None = None
        # Separate random sequences, so that others do not depend on how often drivers or endpoints are asked.
        csi_rng, checks_rng = random.Random(f"CSI drivers {seed}"), random.Random(f"health checks {seed}")
        csi = CSIHandler(config.csi, strict=config.strict, status=to_status, rng=csi_rng)

        def static_devices() -> StaticDevices:
            from ..devices.static import StaticDevices

            own = self.rules.users.own
            return StaticDevices(ports.nodes(), self.devices.inbox, config.rescan, own, access, self._log)

        self.static = StaticUnit(config.devices, static_devices)
        self.dra = DRAHandler(config.dra, status=to_status, wall=status_config.wall)
        # Here, so that its errors are not raised from the block.
        self._handlers_at_start = handlers_at_start(
            config, handlers, self.devices.inbox, csi, self.dra, self.static.offers
        )
        self.inboxes = Inboxes(config.hung_after or math.inf, self._log)
        connect = wiring.connect_endpoints(lambda: self.endpoints)
        checks, pauses = EndpointChecks(config.health_checks, to_status, checks_rng), wiring.follow_pauses(config)
        self.links = Links(
            LinksConfig(
                *(connect, to_reconciler, to_status, checks, seed, pauses, self.devices.inbox, self._log),
                self.static.offers,
            )
        )
        self._blocked_steps = watchdog.BlockedSteps()
        calls = self.call_config(config)
        self.handlers = Handlers(calls, self.inboxes, self.links)
        followings = {CSI: csi.observe, DRA: self.dra.observe}
        observers = Observers(self.links, followings, calls) if config.observe else None

        # A node without a status socket reserves no descriptors for clients.
        self._reserve = DescriptorReserve(RESERVED if self.status_socket is not None else 0)
        self._metrics_port = wiring.metrics_port_of(config, self._log)
        # Shared by all restarts, so that a crash of the status actor does not end the streams of changes.
        self._status_memory = status.Memory()
        self._run_status = partial(
            status.run,
            attrs.evolve(
                status_config,
                roots=tuple(directories_of(config)),
                expected=config.expected,
                ready_when=config.ready_when,
                expected_devices=config.expected_devices,
                rules=self.rules,
                observes=config.observe,
                lease_users=wiring.lease_users_of(config, self.rules.users),
                handler_users=frozenset().union(*config.handler_uids.values()) - wiring.operators_of(self.rules.users),
                heartbeat=max(StatusConfig().heartbeat, 3 * config.rescan),
            ),
            inbox=self.status,
            reconciler=to_reconciler,
            log=self._log,
            memory=self._status_memory,
            health=self.inboxes.check,
            reserve=self._reserve,
            devices=self.devices.inbox,
            leases=self.leases.inbox,
            history=self.leases.history,
            refresh_facts=self.links.refresh_facts,
            port=self._metrics_port,
            remote=self.remote_handlers,
        )
        self.watchers = Watchers(config.roots, ports.directory, self._run_watcher)
        self._device_server = self._make_device_server()
        count = ports.count_descriptors or self._reserve.count_left
        self.dial_slots = DialSlots(limit=ports.dial_slots, most_open=most_connections, count_descriptors=count)
        timers = self._try_timers = TryTimers()
        conversation = ConversationConfig(ports.dial, self.dial_slots, self.endpoints, self.watchers.owner_above)
        settings, again = wiring.registration_settings(config, self.rules.users), config.observe_again
        actors = to_reconciler, self.liveness.address, to_status
        self.notices = Notices(state.notices, self._log, renotify=config.renotify)
        notices = None if config.renotify else self.notices
        told = notices, ports.process_of
        #: The configuration of new registrations; a reload replaces its settings.
        self.registration = RegistrationConfig(conversation, settings, seed, *actors, timers, *told, observers, again)
        # A crash of a registration concerns one plugin only, and never ends the node (fault 85).
        self.registrations = Registrations(self._run_registration, to_reconciler, self.crashes.report)
        # One record for all reconcilers: a crash of the reconciler must not restart a crash loop.
        self._lives = Lives(config.backoff, config.stable_after)
        #: The readings of the actors without which a node does nothing.
        self.core = {
            "status": self.status.read,
            "reconciler": self.reconciler.read,
            "liveness": self.liveness.read,
            "dial slots": self.dial_slots.read,
            "devices": self.devices.inbox.read,
            "leases": self.leases.inbox.read,
            "registrations": self.registrations.read,
        }
        for actor, read in self.core.items():
            self.inboxes.add(actor, read)
        self.nursery: trio.Nursery
        self._children: Children

    def _make_device_server(self) -> DeviceServer | None:
        config, where = self.config, self.config.device_plugins
        if where is None:
            return None
        # Imports a gRPC server, which no other node needs.
        from ..devices.register_calls import CallsConfig
        from ..devices.server import DeviceServer

        to_reconciler, to_status = self.reconciler.address, self.status.address
        calls = CallsConfig(where.directory, self.rules, self._generations, to_reconciler, to_status)
        directory = self.ports.device_directory(where, bool(config.trust.uids), self._log)
        return DeviceServer(calls, directory, heartbeat=config.rescan)

    def call_config(self, config: Config) -> CallConfig:
        """Return the configuration of handlers' calls."""
        limit, timeouts, sigint = config.blocked_after, config.timeouts, config.handles_sigint
        steps = None if limit is None else self._blocked_steps
        return CallConfig(timeouts.handler, self._log, steps, limit or math.inf, sigint, timeouts=timeouts.handlers)

    # --- start and stop ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node in this block; see :class:`plugind.Supervisor`."""
        failure: BaseException | None = None
        try:
            self.watchers.hold()
            if self._device_server is not None:
                with suppress(OSError):
                    self._device_server.hold()
            if self._metrics_port is not None:
                self._metrics_port.open()
            await self.devices.open()
            await self.leases.open()
            await self.notices.open()
            with self._reserve:
                async with trio.open_nursery() as nursery:
                    self._start(nursery)
                    try:
                        yield
                    except BaseException as error:
                        failure = error
                        raise
                    await self._stop()
        except BaseExceptionGroup as group:
            # The nursery is an implementation detail, so an error of the block is raised without a group.
            errors = list(leaves(group))
            if failure is not None and all(error in list(leaves(failure)) for error in errors):
                raise failure from failure.__cause__
            if len(errors) == 1 and isinstance(errors[0], GaveUpError | ConfigError):
                raise errors[0] from errors[0].__cause__
            raise
        finally:
            if self._metrics_port is not None:
                self._metrics_port.close()
            if self._device_server is not None:
                self._device_server.release()
            self.watchers.release()
            self.devices.close()
            self.leases.close()
            self.notices.close()
            if self._limited is not None:
                self._limited.close()
            self.callers.end()

    def _start(self, nursery: trio.Nursery) -> None:
        if self._by_path_only:
            self._log.event(Level.WARNING, "sockets are dialed by path", reason=_NO_PROC)
        self.nursery = nursery
        self._children = Children(nursery, self.crashes)
        if self.config.expected_devices:
            self.devices.inbox.send_nowait(wiring.expectation_of(self.config))
        for plugin_type, handler in self._handlers_at_start.items():
            self.handlers.add(plugin_type, handler)
        for spec in self._specs():
            self._children.start(spec)
        if self.config.handler_uids or self.config.handler_grace:
            self.remote_handlers().add_all()

    def remote_handlers(self) -> RemoteHandlers:
        """Return the handlers in other processes, which most nodes never have."""
        if self._remote is None:
            from ..handlers.remote import RemoteHandlers

            config = self.config
            epoch = f"{random.Random(f'epoch {self._seed}').getrandbits(48):012x}"
            self._remote = RemoteHandlers(
                self.handlers,
                self.reconciler.address,
                epoch,
                config.handler_uids,
                config.handler_grace,
                observes=config.observe,
                log=self._log,
            )
            self._children.start(ChildSpec("remote handlers", self._remote.serve))
        return self._remote

    def _specs(self) -> Iterator[ChildSpec]:
        """Yield the children in the order of their start; they are stopped in reverse."""
        if self._limited is not None:
            yield ChildSpec("log limits", self._limited.run)
        yield ChildSpec("status", self._run_status, Restart.TRANSIENT)
        for name, run in self.leases.parts.items():
            yield ChildSpec(name, run)
        yield ChildSpec("devices", self.devices.run)
        yield ChildSpec("static devices", self.static.run)
        yield ChildSpec("links", self.links.serve)
        yield ChildSpec("dra drivers", self.dra.serve)
        yield ChildSpec("dial slots", self.dial_slots.run)
        yield ChildSpec("try timers", self._try_timers.serve)
        if not self.config.renotify:
            yield ChildSpec("notices", self.notices.serve)
        yield ChildSpec("registrations", self.registrations.serve, Restart.TRANSIENT)
        yield ChildSpec("node", self._run_reconciler, Restart.TRANSIENT)
        if self._device_server is not None:
            # Not part of ``node``, so that callers of Register can wait while the reconciler restarts.
            yield ChildSpec("device server", self._device_server.run)
        if self.config.blocked_after is not None:
            config = watchdog.WatchdogConfig(self.config.blocked_after)
            yield ChildSpec("watchdog", partial(watchdog.run, config, self._blocked_steps, self.status.address))
        if self.config.hung_after is not None:
            yield ChildSpec("inboxes", self.inboxes.run)

    async def _stop(self) -> None:
        """Stop in reverse order; what is in flight is rolled back after half of the grace (fault 87)."""
        grace = self.config.timeouts.stop_grace
        # Before any plugin is left: who asks for a lease is told to ask again.
        self._status_memory.stopping.set()
        # Before any registration ends, since a follow has nothing to follow then.
        self.links.cancel_all()
        for message in (StopAsked(self.config.deregister_at_stop), StopForced()):
            with trio.move_on_after(grace / 2) as scope:
                await self.reconciler.report(message)
                await self._children.wait("node")
            if not scope.cancelled_caught:
                break
        await self.links.close_all()
        await self.leases.settle()
        await self.notices.settle()
        # A follow that does not let itself be cancelled keeps the links from their end, and nothing else.
        await self._children.stop_all(but=("status", "links"))
        # The status actor ends by itself when it has read the last messages of the others.
        self.status.address.close()
        with trio.move_on_after(STATUS_GRACE):
            await self._children.wait("status")
        await self._children.stop_all()
        self.callers.end_streams()

    def unfinished(self) -> Unfinished:
        """Return what keeps a node that stops from its end."""
        return Unfinished(self._children.stopping, (*map(str, self.handlers.calls), *self.links.unfinished))

    # --- the reconciler, and those that start again with it ---

    async def _run_reconciler(self) -> None:
        """Run the reconciler, the liveness actor and the watchers.

        After a crash of the reconciler, deregister all plugins first.
        """
        await self.registrations.wait_started()
        async with trio.open_nursery() as nursery:
            children = Children(nursery, self.crashes)
            children.start(ChildSpec("liveness", self._run_liveness))
            self.watchers.start_all(children, self.config.roots)
            # The registrations that were left of removed roots are no longer known.
            for root in tuple(self.watchers.directories):
                self._leave_root(root.path)
            if self._device_server is not None:
                nursery.start_soon(self._device_server.report_again)
            self.registrations.when_none_is_detached(self.handlers.retirements())
            # A change that was sent to the crashed reconciler may be lost.
            self._lives.reconfigure(self.config.backoff, self.config.stable_after)
            try:
                await reconciler.run(
                    self.reconciler,
                    self.status.address,
                    self.registrations.start,
                    self._retire,
                    {root.path: inbox for root, inbox in self.watchers.inboxes.items()},
                    self.handlers.added,
                    users=self.rules.users,
                    max_instances=self.config.max_instances,
                    lives=self._lives,
                    end_handled=self.registrations.end_handled,
                    links=self.links,
                    root_left=self._leave_root,
                )
            except Exception:
                await self._let_go()
                raise
            finally:
                nursery.cancel_scope.cancel()
                self.watchers.end()

    def _retire(self, effect: HandlerRetired) -> None:
        # Registrations of a crashed reconciler may still deregister, and this reconciler does not count them.
        self.registrations.when_none_is_detached([partial(self.handlers.retire, effect.handler)])

    def _leave_root(self, path: str) -> None:
        self.watchers.leave(path, self.config.roots)

    def _run_registration(self, start: StartRegistration, inbox: RegistrationInbox) -> Awaitable[None]:
        # A coroutine of its own would keep a frame for each registration.
        return registration.run(self.registration, inbox, start.appeared, start.to_deregister, start.crash)

    def _run_watcher(self, root: Root) -> Awaitable[None]:
        return watcher.run(
            wiring.watcher_config(self.config, self.rules, root),
            self.watchers.inboxes[root],
            directory=self.watchers.directories[root],
            reconciler=self.reconciler.address,
            status=self.status.address,
            generations=self._generations,
            # Separate random sequences, so that none depends on the order of the scans.
            rng=random.Random(f"rescans {self._seed} {root.path}"),
        )

    def _run_liveness(self) -> Awaitable[None]:
        processes, rescan = self.ports.processes, self.config.rescan
        # An observed plugin without a listener is dialed again, and is stale then.
        deregister = self.config.deregister_not_serving or self.config.observe
        config = LivenessConfig(processes, self.endpoints, rescan, deregister_not_serving=deregister)
        return liveness.run(config, self.liveness.address, self.liveness, self.status.address, self.reconciler.address)

    # --- crashes ---

    def _report_crash(self, name: str, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self.nursery.start_soon(self.status.report, ActorRestarted(name, text))
        if name in ("status", "liveness"):
            self.nursery.start_soon(self.reconciler.report, ReportAsked())
        if name == "status":
            self.links.report_again()

    async def _let_go(self) -> None:
        """Deregister all plugins after a crash of the reconciler, as far as that succeeds within the grace.

        The registrations whose handler hangs become detached; only their successors wait for them.
        """
        if self._device_server is not None:
            self._device_server.suspend()
        self.registrations.let_go()
        unread: list[ReconcilerMessage] = []
        with trio.move_on_after(self.config.timeouts.stop_grace):
            while self.registrations.any_current:
                # The registrations would wait for room in the inbox, since no reconciler reads it.
                unread.append(await self.reconciler.receive())
        with suppress(trio.WouldBlock):
            while True:
                unread.append(self.reconciler.receive_nowait())
        for message in unread:
            if isinstance(message, RetryAsked | StopAsked | StopForced):
                # A caller waits for the effect of these. Scans find the rest again.
                self.nursery.start_soon(self.reconciler.report, message)
        self.registrations.detach()
        await self._show_all_as_gone()

    async def _show_all_as_gone(self) -> None:
        """Show every socket as gone: one that vanished before the next scan would be shown for ever."""
        with trio.move_on_after(STATUS_GRACE):
            for plugin in (await self.snapshot()).plugins:
                if plugin.socket in self.registrations.detached:
                    continue
                socket, now = (plugin.socket, plugin.root, plugin.generation), trio.current_time()
                gone = StateChanged(*socket, StateName.GONE, now, "started anew", still_there=True)
                await self.status.report(gone)

    async def snapshot(self) -> Snapshot:
        """Return everything that is known at this moment; see :meth:`plugind.Supervisor.snapshot`."""
        return await self.callers.ask(self.status.report, SnapshotAsked, "has no snapshot to give")

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Snapshot | PluginChanged]]:
        """Open a stream: first a snapshot, then each change of a plugin, until the node ends."""
        opened: AbstractAsyncContextManager[AsyncIterator[Snapshot | PluginChanged]]
        opened = self.callers.stream(self.status.report, Subscribed, Unsubscribed, "has no changes to tell")
        return opened

    async def resources(self) -> DevicesSnapshot:
        """Return all resources, and what is wrong with their file."""
        return await self.callers.ask(partial(send, self.devices.inbox), DevicesAsked, "has no devices to show")

    def resource_changes(self) -> AbstractAsyncContextManager[AsyncIterator[DevicesSnapshot | ResourceChanged]]:
        """Open a stream: first all resources, then each one that has changed, until the node ends."""
        opened: AbstractAsyncContextManager[AsyncIterator[DevicesSnapshot | ResourceChanged]]
        send_to, what = partial(send, self.devices.inbox), "has no devices to show"
        opened = self.callers.stream(send_to, DevicesSubscribed, DevicesUnsubscribed, what)
        return opened

    # --- for the daemon ---

    async def counts(self) -> PluginCounts:
        """Return how many plugins are in each state and how many devices there are; this costs less than a snapshot."""
        counts = await self.callers.ask(self.status.report, CountsAsked, "does not count its plugins")
        listed = (await self.resources()).counts.values()
        devices = sum(healthy for healthy, _ in listed), sum(unhealthy for _, unhealthy in listed)
        queued, withheld = self.dial_slots.read().waiting, self.leases.memory.withheld is not None
        return attrs.evolve(counts, queued=queued, devices=devices, withheld=withheld)

    def hung(self) -> tuple[str, ...]:
        """Return the actors that hang and without which the node does nothing, each with the reason.

        A handler that hangs is not included, since it delays only the plugins of its type.
        """
        failed = [actor for actor in self.inboxes.check() if actor.condition is Condition.FAILED]
        return tuple(f"{actor.actor}: {actor.reason}" for actor in failed if actor.actor in self.core)

    async def note_reload(self, refused: str | None) -> None:
        """Show in health and metrics that the configuration was read again, and why it was ``refused``, if it was."""
        with self.callers.asking("shows no configuration"):
            await self.status.report(ConfigurationRead(trio.current_time(), refused))
