"""The supervisor: it connects the channels, starts and stops the actors, and is the interface for embedding programs.

It starts the status actor, adds the handlers, starts the *node*, and stops them in reverse. The node is
the reconciler with its registration actors and one watcher for each root. Only the supervisor starts actors: the
reconciler asks it for a registration actor and gets the address. When the reconciler crashes, both worlds are lost.
Then the registrations deregister their plugins, and the node starts again from the file system (fault 85).
"""

from __future__ import annotations

import itertools
import math
import os
import random
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs
import trio

from .actors.devices.unit import Devices
from .actors.discovery import watcher
from .actors.discovery.roots import RootBusyError
from .actors.grpc.client.turns import Shared
from .actors.handlers.by_type import Handlers
from .actors.handlers.calls import CallConfig
from .actors.handlers.csi.handler import CSIHandler
from .actors.handlers.dra.handler import DRAHandler
from .actors.handlers.handler import Handler, check_handler
from .actors.handlers.links import Links, LinksConfig
from .actors.handlers.observers import Observers
from .actors.health import liveness, watchdog
from .actors.health.endpoint_checks import EndpointChecks
from .actors.health.inboxes import Inboxes
from .actors.health.liveness import LivenessConfig
from .actors.io.beneath import root_of
from .actors.io.descriptors import RESERVED, DescriptorReserve, most_connections
from .actors.io.exact_connect import can_connect_to_descriptors
from .actors.io.worker_thread import WorkerThread
from .actors.leases.embedding import LeaseCalls, request_of
from .actors.leases.unit import LeaseUnit
from .actors.messaging.callers import Callers, Changes, LaggedError, NodeEndedError
from .actors.messaging.mailbox import Inbox, report
from .actors.node.handlers import built_in_handlers
from .actors.node.paths import check_device_directory, check_status_socket, directories_of
from .actors.node.ports import Ports, real_ports
from .actors.node.supervision import Children, ChildSpec, Crashes, GaveUpError, Restart
from .actors.node.wiring import (
    check_pools,
    connect_endpoints,
    endpoints_of,
    follow_pauses,
    lease_users_of,
    leases_of,
    limited_log,
    metrics_port_of,
    operators_of,
    registration_settings,
    rules_of,
    watchers_of,
)
from .actors.registration import actor as registration
from .actors.registration.config import RegistrationConfig
from .actors.registration.conversation import ConversationConfig, Dialer
from .actors.registration.dial_slots import DialSlots
from .actors.registration.inbox import RegistrationInbox
from .actors.registration.registrations import Registrations
from .actors.registration.timers import TryTimers
from .actors.status import actor as status
from .actors.status.actor import StatusConfig
from .actors.world import reconciler
from .protocol.devices.messages import (
    DevicesAsked,
    DevicesSubscribed,
    DevicesUnsubscribed,
    DevicesViewMessage,
    ResourceChanged,
)
from .protocol.errors import ConfigError, leaves
from .protocol.handlers.facts_asking import ask_for_facts
from .protocol.health.progress import Condition
from .protocol.leases.messages import LeaseChanged, LeasesSnapshot, Released
from .protocol.leases.values import Lease
from .protocol.logs.lines import SILENT, Level, Logger
from .protocol.messages.addresses import Address
from .protocol.messages.config import (
    ConfigurationRead,
    ExpectationChanged,
    PausesChanged,
    RootRemoved,
    RootsChanged,
    SettingsChanged,
    TrustChanged,
    WorldChanged,
)
from .protocol.messages.discovery import RescanNow
from .protocol.messages.liveness import LivenessMessage
from .protocol.messages.reconciler import (
    HandlerRemoved,
    ReconcilerMessage,
    ReportAsked,
    RetryAnswer,
    RetryAnswered,
    RetryAsked,
    RootAdded,
    StopAsked,
    StopForced,
)
from .protocol.messages.status import (
    ActorRestarted,
    CountsAsked,
    PluginChanged,
    ScansAwaited,
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    Subscribed,
    Unsubscribed,
    ViewMessage,
)
from .protocol.plugins.devices import DevicesSnapshot
from .protocol.plugins.info import CSI, DRA
from .protocol.plugins.status import PluginCounts, PluginStatus, StateName
from .protocol.registration.lives import Lives
from .protocol.settings.config import Config, Root, check_roots
from .protocol.trust.users import Trust, Users
from .protocol.values import value
from .protocol.wire.limits import ENDPOINT_LIMITS
from .protocol.world import worlds as world

if TYPE_CHECKING:
    from .actors.devices.server import DeviceServer
    from .actors.handlers.dra.calls import DRADriver

__all__ = ["GaveUpError", "LaggedError", "NodeEndedError", "Ports", "RootBusyError", "Supervisor"]

#: How many messages the inboxes of the reconciler, the liveness and the status actor hold before their writers wait.
INBOX_SIZE = 4096
#: How many changes may wait for one reader of :meth:`Supervisor.changes` before it is dropped.
SUBSCRIBER_SIZE = 8192
#: The actors without which a node does nothing.
CORE_ACTORS = frozenset({"status", "reconciler", "liveness", "dial slots", "devices", "leases", "registrations"})
#: What is lost without ``/proc``, in the log (faults 23 and 41).
_NO_PROC = (
    "/proc cannot be read: a socket that is replaced while it is dialed is found out only afterwards, and paths over "
    "107 bytes cannot be dialed"
)
#: Seconds that the status actor has to end its streams and send its last answers.
STATUS_GRACE = 2.0


@attrs.frozen(eq=False)
class Internals:
    """The units of a supervisor, for tools that test it: where to send messages, and what to count."""

    reconciler: Address[ReconcilerMessage]
    liveness: Address[LivenessMessage]
    status: Address[StatusMessage]
    handlers: Handlers
    registrations: Registrations
    links: Links
    devices: Devices
    leases: LeaseUnit
    callers: Callers
    crashes: Crashes
    reconciler_inbox: Inbox[ReconcilerMessage]
    status_inbox: Inbox[StatusMessage]
    inboxes: Inboxes


@value
class Unfinished:
    """What keeps a node that stops from its end."""

    #: The names of actors.
    actors: tuple[str, ...]
    #: The calls of handlers that have not ended, in words. Those of ``follow`` are here once they were cancelled.
    calls: tuple[str, ...]


class Supervisor:
    """A node that discovers plugins and registers them, for as long as the ``async with`` block runs.

    ::

        async with Supervisor(Config(roots=(Root("/run/my/plugins"),)), handlers={"Colour": ColourHandler()}) as node:
            plugin = await node.wait_for("red.example.com", type="Colour")

    Leaving the block stops the node: what is in flight finishes within ``config.timeouts.stop_grace``, or is rolled
    back. ``handlers`` are added to the built-in ones, and replace those of the same type. If ``status_config`` names a
    socket, the node serves its status there; if ``config.metrics`` names an address, its metrics are served there, too.
    Events are logged to ``log``; without it they are not logged.

    A root that is missing or cannot be read is retried while the node runs. The roots are
    locked: no other node, in this process or in another one, can use them at the same time.

    Raises, from the block:
      ConfigError: if a root is no directory or others may write to it, or the status socket or the port for metrics
        cannot be made.
      RootBusyError: if another node uses a root.
      GaveUpError: if actors crash more often than ``config.intensity`` allows.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
        ports: Ports | None = None,
        status_config: StatusConfig | None = None,
        log: Logger | None = None,
    ) -> None:
        self.config = config or Config()
        check_roots(self.config.roots)
        self._limited = None if log is None else limited_log(log, self.config)
        self._log: Logger = self._limited or log or SILENT
        self._by_path_only = ports is None and not can_connect_to_descriptors()
        ports = ports or real_ports(self.config)
        self._users_of = ports.users
        self._users = ports.users(self.config.trust)
        status_config = status_config or StatusConfig()
        state = ports.state(self.config, self._log)
        open_ports = partial(ports.leases, self.config, status_config.socket)
        self._leases = leases_of(self.config, self._users, state.leases, open_ports, self._log)
        self._devices = Devices(state.devices, self._log, self._leases.inbox)
        self._to_reconciler, reconciler_inbox = trio.open_memory_channel[ReconcilerMessage](INBOX_SIZE)
        self._to_liveness, liveness_inbox = trio.open_memory_channel[LivenessMessage](INBOX_SIZE)
        self._to_status, status_inbox = trio.open_memory_channel[StatusMessage](INBOX_SIZE)
        seed = int.from_bytes(os.urandom(8)) if self.config.seed is None else self.config.seed
        # A sequence of its own, so that no other chance depends on how often drivers are asked.
        rng_of_drivers = random.Random(f"CSI drivers {seed}")
        csi = CSIHandler(self.config.csi, strict=self.config.strict, status=self._to_status, rng=rng_of_drivers)
        self._dra = DRAHandler(self.config.dra, status=self._to_status, wall=status_config.wall)
        if self.config.observe and handlers:
            raise ConfigError(f"a node that observes has no handlers: leave out those for {', '.join(handlers)}")
        followings = {CSI: csi.observe, DRA: self._dra.observe}
        self._handlers_at_start = (
            {}
            if self.config.observe
            else {
                **built_in_handlers(self._devices.inbox, strict=self.config.strict, csi=csi, dra=self._dra),
                **(handlers or {}),
            }
        )
        for plugin_type, handler in self._handlers_at_start.items():
            # It raises here, and not from the block.
            check_handler(plugin_type, handler, self.config.timeouts.of_handler(plugin_type))
        self._reconciler_inbox, self._status_inbox = Inbox(reconciler_inbox), Inbox(status_inbox)
        self._liveness_inbox = Inbox(liveness_inbox)
        self._status_socket = status_config.socket
        self._check_places(self.config)
        self._inboxes = Inboxes(self.config.hung_after or math.inf, self._log)
        # A node without a status socket has no clients to keep descriptors for.
        self._reserve = DescriptorReserve(RESERVED if status_config.socket is not None else 0)
        self._dial_slots = DialSlots(
            limit=ports.dial_slots,
            most_open=most_connections,
            count_descriptors=ports.count_descriptors or self._reserve.count_left,
        )
        self._crashes = Crashes(self.config.intensity, self._report_crash)
        self._rules = rules_of(self.config, self._users)
        self._endpoints = endpoints_of(self._rules, ports.endpoints, status_config.socket)
        # A sequence of its own, so that no other chance depends on how often endpoints are checked.
        checks = EndpointChecks(self.config.health_checks, self._to_status, random.Random(f"health checks {seed}"))
        self._link_account = Shared(ENDPOINT_LIMITS.unparsed_bytes)
        self._links = Links(self._links_config(seed, checks))
        self._metrics_port = metrics_port_of(self.config, self._log)
        self._run_status = partial(
            status.run,
            attrs.evolve(
                status_config,
                roots=tuple(directories_of(self.config)),
                expected=self.config.expected,
                ready_when=self.config.ready_when,
                expected_devices=self.config.expected_devices,
                rules=self._rules,
                observes=self.config.observe,
                lease_users=lease_users_of(self.config, self._users),
                heartbeat=max(StatusConfig().heartbeat, 3 * self.config.rescan),
            ),
            inbox=self._status_inbox,
            reconciler=self._to_reconciler,
            log=self._log,
            # All restarts share one memory, so that a crash of the status actor does not end the streams of changes.
            memory=status.Memory(),
            health=self._inboxes.check,
            reserve=self._reserve,
            devices=self._devices.inbox,
            leases=self._leases.inbox,
            links=self._links,
            port=self._metrics_port,
        )
        # A directory lives as long as the node, or until its root is removed and no plugin of it is left to deregister,
        # since it has the lock of its root.
        self._open_directory = ports.directory
        self._directories = {root: ports.directory(root) for root in self.config.roots}
        self._blocked_steps = watchdog.BlockedSteps()
        calls = self._call_config(self.config)
        self._handlers = Handlers(calls, self._inboxes, self._links)
        observers = Observers(self._links, followings, calls) if self.config.observe else None
        self._try_timers = TryTimers()
        self._registration_config = self._make_registration_config(ports.dial, seed, observers)
        self._registrations = Registrations(
            partial(_run_registration, self._registration_config),
            self._to_reconciler,
            # A crash of one plugin's registration is that plugin's alone, and never ends the node (fault 85).
            self._crashes.report,
        )
        # All reconcilers share one record of short lives: a crash of the reconciler lets no crash loop start anew.
        self._lives = Lives(self.config.backoff, self.config.stable_after)
        self._processes = ports.processes
        self._watchers = {root: watcher.WatcherInbox() for root in self.config.roots}
        # All that reports sockets counts generations together.
        generations = itertools.count(1)
        self._run_watcher = watchers_of(
            self.config,
            lambda: self._rules,
            self._directories,
            self._watchers,
            self._to_reconciler,
            self._to_status,
            seed,
            generations,
        )
        self._device_server = self._make_device_server(ports, generations)
        for actor, read in (
            ("status", self._status_inbox.read),
            ("reconciler", self._reconciler_inbox.read),
            ("liveness", self._liveness_inbox.read),
            ("dial slots", self._dial_slots.read),
            ("devices", self._devices.inbox.read),
            ("leases", self._leases.inbox.read),
            ("registrations", self._registrations.read),
        ):
            self._inboxes.add(actor, read)
        self._callers = Callers()
        self._lease_calls = LeaseCalls(self._leases, self._callers, self._users.own)
        self._context: AbstractAsyncContextManager[None] | None = None
        self._nursery: trio.Nursery
        self._children: Children
        #: The watchers of the last node, and whether others may start beside them: not while that node ends.
        self._watching: Children | None = None
        self._may_watch = False
        self._reconfiguring = False

    @property
    def internals(self) -> Internals:
        """The units that the node consists of, for tools that test it; they may change with any release."""
        return Internals(
            self._to_reconciler,
            self._to_liveness,
            self._to_status,
            self._handlers,
            self._registrations,
            self._links,
            self._devices,
            self._leases,
            self._callers,
            self._crashes,
            self._reconciler_inbox,
            self._status_inbox,
            self._inboxes,
        )

    def _check_places(self, config: Config) -> None:
        """Check that roots, the status socket and the directory of device plugins do not lie in each other.

        Raises:
          ConfigError: if one does.
        """
        check_roots(config.roots)
        check_status_socket(config.roots, self._status_socket)
        check_device_directory(config, self._status_socket)

    def _call_config(self, config: Config) -> CallConfig:
        limit = config.blocked_after
        to_watchdog = None if limit is None else self._blocked_steps
        return CallConfig(
            config.timeouts.handler,
            self._log,
            to_watchdog,
            limit or math.inf,
            config.handles_sigint,
            timeouts=config.timeouts.handlers,
        )

    def _owner_above(self, path: str) -> int | None:
        """Return the trusted user who owns a directory on the way to the socket; None if only root and this user do."""
        directories = {root.path: directory for root, directory in self._directories.items() if not root.insecure}
        root = root_of(path, directories)
        return None if root is None else directories[root].owner_above(path, root)

    def _links_config(self, seed: int, checks: EndpointChecks) -> LinksConfig:
        return LinksConfig(
            connect_endpoints(self._endpoints, self._link_account),
            self._to_reconciler,
            self._to_status,
            checks,
            seed,
            follow_pauses(self.config),
            self._log,
        )

    def _make_registration_config(self, dialer: Dialer, seed: int, observers: Observers | None) -> RegistrationConfig:
        return RegistrationConfig(
            ConversationConfig(dialer, self._dial_slots, self._endpoints, self._owner_above),
            registration_settings(self.config, self._users),
            seed,
            self._to_reconciler,
            self._to_liveness,
            self._to_status,
            self._try_timers,
            observers,
            self.config.observe_again,
        )

    def _make_device_server(self, ports: Ports, generations: Iterator[int]) -> DeviceServer | None:
        where = self.config.device_plugins
        if where is None:
            return None
        # It brings a gRPC server, which no other node needs.
        from .actors.devices.register_calls import CallsConfig
        from .actors.devices.server import DeviceServer

        config = CallsConfig(where.directory, self._rules, generations, self._to_reconciler, self._to_status)
        directory = ports.device_directory(where, bool(self.config.trust.uids), self._log)
        return DeviceServer(config, directory, heartbeat=self.config.rescan)

    # --- the block ---

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise RuntimeError("a Supervisor runs once; make another")
        self._context = self._running()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        failure: BaseException | None = None
        try:
            self._hold_roots()
            if self._metrics_port is not None:
                self._metrics_port.open()
            await self._devices.open()
            await self._leases.open()
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
            # The nursery is a detail of the node, so an error of the block is raised without a group around it.
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
            for directory in self._directories.values():
                directory.release()
            self._devices.close()
            self._leases.close()
            if self._limited is not None:
                self._limited.close()
            self._callers.end()

    def _hold_roots(self) -> None:
        """Lock all roots that are there. A watcher tries the others again, and shows why they cannot be had (fault 4).

        Raises:
          ConfigError: if a root is no directory, or others may write to it (faults 2 and 3).
          RootBusyError: if another node has locked one (fault 96).
        """
        for root, directory in self._directories.items():
            with suppress(OSError):
                directory.check_above(root.path)
                directory.hold(root.path)
        if self._device_server is not None:
            with suppress(OSError):
                self._device_server.hold()

    def _start(self, nursery: trio.Nursery) -> None:
        if self._by_path_only:
            self._log.event(Level.WARNING, "sockets are dialed by path", reason=_NO_PROC)
        self._nursery = nursery
        self._children = Children(nursery, self._crashes)
        if self._limited is not None:
            self._children.start(ChildSpec("log limits", self._limited.run))
        self._children.start(ChildSpec("status", self._run_status, Restart.TRANSIENT))
        for name, run in self._leases.parts.items():
            self._children.start(ChildSpec(name, run))
        if self.config.expected_devices:
            self._devices.inbox.send_nowait(_expectation_of(self.config))
        self._children.start(ChildSpec("devices", self._devices.run))
        for plugin_type, handler in self._handlers_at_start.items():
            self._handlers.add(plugin_type, handler)
        self._children.start(ChildSpec("links", self._links.serve))
        self._children.start(ChildSpec("dra drivers", self._dra.serve))
        self._children.start(ChildSpec("dial slots", self._dial_slots.run))
        self._children.start(ChildSpec("try timers", self._try_timers.serve))
        self._children.start(ChildSpec("registrations", self._registrations.serve, Restart.TRANSIENT))
        self._children.start(ChildSpec("node", self._run_node, Restart.TRANSIENT))
        if self._device_server is not None:
            # Callers of Register wait on while the node starts again.
            self._children.start(ChildSpec("device server", self._device_server.run))
        if self.config.blocked_after is not None:
            config = watchdog.WatchdogConfig(self.config.blocked_after)
            watch = partial(watchdog.run, config, self._blocked_steps, self._to_status)
            self._children.start(ChildSpec("watchdog", watch))
        if self.config.hung_after is not None:
            self._children.start(ChildSpec("inboxes", self._inboxes.run))

    async def _stop(self) -> None:
        """Stop in reverse order; what is in flight is rolled back after half of the grace (fault 87)."""
        grace = self.config.timeouts.stop_grace
        # Before any registration ends, since a follow has nothing to follow then.
        self._links.cancel_all()
        for message in (StopAsked(self.config.deregister_at_stop), StopForced()):
            with trio.move_on_after(grace / 2) as scope:
                await report(self._to_reconciler, message)
                await self._children.wait("node")
            if not scope.cancelled_caught:
                break
        await self._links.close_all()
        await self._leases.settle()
        # A follow that does not let itself be cancelled keeps the links from their end, and nothing else.
        await self._children.stop_all(but=("status", "links"))
        # The status actor ends by itself when it has read the last messages of the others.
        self._to_status.close()
        with trio.move_on_after(STATUS_GRACE):
            await self._children.wait("status")
        await self._children.stop_all()
        self._callers.end_streams()

    def unfinished(self) -> Unfinished:
        """Return what keeps a node that stops from its end."""
        return Unfinished(self._children.stopping, (*map(str, self._handlers.calls), *self._links.unfinished))

    # --- children ---

    def _retire(self, effect: world.HandlerRetired) -> None:
        # The registrations of a reconciler that crashed may still deregister, and this one does not count them.
        self._registrations.when_none_is_detached([partial(self._handlers.retire, effect.handler)])

    async def _run_node(self) -> None:
        """Run the reconciler, the liveness actor and the watchers.

        After a crash of the reconciler, deregister all plugins first.
        """
        await self._registrations.wait_started()
        async with trio.open_nursery() as nursery:
            children = Children(nursery, self._crashes)
            children.start(ChildSpec("liveness", self._run_liveness))
            self._watching, self._may_watch = children, True
            for root in self._watchers:
                if root in self.config.roots:
                    self._start_watcher(root)
            # What was left to deregister of removed roots is not known any more.
            for path in [root.path for root in self._directories]:
                self._leave_root(path)
            if self._device_server is not None:
                nursery.start_soon(self._device_server.report_again)
            self._registrations.when_none_is_detached(self._handlers.retirements())
            # A change that was sent to the reconciler before may be lost.
            self._lives.reconfigure(self.config.backoff, self.config.stable_after)
            try:
                await reconciler.run(
                    self._reconciler_inbox,
                    self._to_status,
                    self._registrations.start,
                    self._retire,
                    {root.path: inbox for root, inbox in self._watchers.items()},
                    self._handlers.added,
                    users=self._users,
                    max_instances=self.config.max_instances,
                    lives=self._lives,
                    end_handled=self._registrations.end_handled,
                    links=self._links,
                    root_left=self._leave_root,
                )
            except Exception:
                await self._let_go()
                raise
            finally:
                nursery.cancel_scope.cancel()
                self._may_watch = False

    def _start_watcher(self, root: Root) -> None:
        if self._watching is not None and self._may_watch:
            self._watching.start(ChildSpec(_watcher_of(root), partial(self._run_watcher, root)))

    def _leave_root(self, path: str) -> None:
        """Release the lock of a root that was removed, unless it was added again."""
        for root in [root for root in self._directories if root.path == path and root not in self.config.roots]:
            self._directories.pop(root).release()

    async def _run_liveness(self) -> None:
        config = LivenessConfig(
            self._processes,
            self._endpoints,
            self.config.rescan,
            # One that is only observed is dialed again, and is stale then.
            deregister_not_serving=self.config.deregister_not_serving or self.config.observe,
        )
        await liveness.run(config, self._to_liveness, self._liveness_inbox, self._to_status, self._to_reconciler)

    async def _let_go(self) -> None:
        """Deregister all plugins after a crash of the reconciler, as far as that succeeds within the grace.

        The registrations whose handler hangs become detached; only their successors wait for them.
        """
        if self._device_server is not None:
            self._device_server.suspend()
        self._registrations.let_go()
        unread: list[ReconcilerMessage] = []
        with trio.move_on_after(self.config.timeouts.stop_grace):
            while self._registrations.any_current:
                # The registrations wait here when the inbox is full, and no reconciler reads it.
                unread.append(await self._reconciler_inbox.receive())
        with suppress(trio.WouldBlock):
            while True:
                unread.append(self._reconciler_inbox.receive_nowait())
        for message in unread:
            if isinstance(message, RetryAsked | StopAsked | StopForced):
                # A caller waits for what the next reconciler does about it. The rest is found again by scans.
                self._nursery.start_soon(report, self._to_reconciler, message)
        self._registrations.detach()
        await self._show_all_as_gone()

    async def _show_all_as_gone(self) -> None:
        """Show every socket as gone: one that vanished before the next scan would be shown for ever."""
        with trio.move_on_after(STATUS_GRACE):
            for plugin in (await self.snapshot()).plugins:
                if plugin.socket in self._registrations.detached:
                    continue
                gone = StateChanged(
                    plugin.socket,
                    plugin.root,
                    plugin.generation,
                    StateName.GONE,
                    trio.current_time(),
                    "started anew",
                    still_there=True,
                )
                await report(self._to_status, gone)

    def _report_crash(self, name: str, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self._nursery.start_soon(report, self._to_status, ActorRestarted(name, text))
        if name in ("status", "liveness"):
            self._nursery.start_soon(report, self._to_reconciler, ReportAsked())
        if name == "status":
            self._links.report_again()

    # --- the interface for embedding programs ---

    async def add_handler(self, plugin_type: str, handler: Handler) -> None:
        """Serve plugins of ``plugin_type`` from now on; those that are parked for it are tried at once (behaviour 29).

        Raises:
          ValueError: if the type has a handler.
          ConfigError: if a call of the handler may take longer than it is given, or the node only observes.
          NodeEndedError: if the node ended before.
        """
        if self.config.observe:
            raise ConfigError(f"a node that observes has no handlers: add none for {plugin_type}")
        if plugin_type in self._handlers:
            raise ValueError(f"{plugin_type} has a handler: remove it first")
        with self._callers.asking(f"no handler was added for {plugin_type}"):
            await report(self._to_reconciler, self._handlers.add(plugin_type, handler))

    async def remove_handler(self, plugin_type: str) -> None:
        """Deregister and park all plugins of ``plugin_type``, and return when the handler has none left.

        Raises:
          KeyError: if the type has no handler.
          NodeEndedError: if the node ends before that.
        """
        if plugin_type not in self._handlers:
            raise KeyError(f"{plugin_type} has no handler")
        with self._callers.asking(f"not all plugins of {plugin_type} were deregistered"):
            retired = self._handlers.remove(plugin_type)
            await report(self._to_reconciler, HandlerRemoved(plugin_type))
            await retired.wait()

    async def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on. It may differ only in what a node takes while it runs.

        That are ``backoff``, ``deregister_at_stop``, ``endpoint_directories``, ``expected``,
        ``expected_devices``, ``info_limits``,
        ``intensity``, ``max_instances``, ``ready_when``, ``stable_after``, ``timeouts``, the pools, limits and
        operators of ``leases``, without ``device_plugins`` also ``trust``, and which ``roots`` there are, as long as
        none that stays has other options. What is under way keeps its deadline, and what begins from now on has the
        new one. Plugins that are registered stay so, though they may exceed a lower limit, and leases keep their
        devices. Plugins of a user who is not trusted any more are deregistered, and so are those of a root that is
        removed. The watcher of a root that is added makes and locks it; a root that cannot be used is shown as such,
        and is tried again. A caller who is cancelled leaves either the old configuration in force or the whole new one.

        Raises:
          RuntimeError: if an earlier change is still being put in force.
          ConfigError: if it differs in more, or cannot work, or leases of another state may be held of devices in
            ``roots`` that are added. Nothing has changed then.
          NodeEndedError: if the node ended before.
        """
        from .protocol.settings.reload import changed_while_running

        if self._reconfiguring:
            raise RuntimeError("another configuration is being put in force: wait for that")
        if changed_while_running(self.config, config) != config:
            raise ConfigError("this configuration needs another node: a running one does not take all of its fields")
        self._handlers.check(self._call_config(config))
        check_pools(config.leases.pools)
        self._check_places(config)
        if config.roots != self.config.roots:
            self._leases.serve(tuple(directories_of(config)))
        with self._callers.asking("has no other configuration"), ExitStack() as under_way:
            self._reconfiguring = True
            under_way.callback(self._end_reconfiguring)
            users = self._users if config.trust == self.config.trust else await self._find_users(config.trust)
            applied = trio.Event()
            # A task of the node, so that a caller who is cancelled does not leave a half of it in force.
            self._nursery.start_soon(self._apply, config, users, applied, under_way.pop_all())
            await applied.wait()

    def _end_reconfiguring(self) -> None:
        self._reconfiguring = False

    async def _apply(self, config: Config, users: Users, applied: trio.Event, under_way: ExitStack) -> None:
        # Once the actors have ended, the node ends, and the caller is told so.
        with under_way, suppress(trio.ClosedResourceError):
            await self._reconfigure(config, users)
            applied.set()

    async def _reconfigure(self, config: Config, users: Users) -> None:
        before, self.config = self.config, config
        if config.trust != before.trust:
            await self._trust(config, users)
        moved = (config.roots, config.endpoint_directories) != (before.roots, before.endpoint_directories)
        if moved:
            await self._place(config)
        await self._send_configuration(config)
        if moved:
            # Registrations have the new settings by then.
            await self._change_watchers(config.roots)
        if config.leases != before.leases:
            # Most nodes lease nothing, and need not have the actor that does.
            self._leases.reconfigure(config.leases, operators_of(self._users))

    async def _find_users(self, trust: Trust) -> Users:
        if not trust.names:
            return self._users_of(trust)
        # It may wait for a server that knows the names of users.
        thread = WorkerThread("users")
        try:
            return await thread.run(partial(self._users_of, trust))
        finally:
            thread.close()

    async def _trust(self, config: Config, users: Users) -> None:
        """Let the actors that do not register plugins trust others from now on."""
        self._users, self._rules = users, rules_of(config, users)
        self._endpoints = self._endpoints.trusting(self._rules.distrust)
        self._links.connect_by(connect_endpoints(self._endpoints, self._link_account))
        changed = TrustChanged(config.trust, users)
        for inbox in self._watchers.values():
            inbox.send_nowait(changed)
        await report(self._to_liveness, changed)
        await report(self._to_status, changed)

    async def _place(self, config: Config) -> None:
        """Let the actors that do not register plugins go by other places of sockets and endpoints from now on."""
        self._rules = rules = rules_of(config, self._users)
        directories = tuple(directories_of(config))
        files = self._endpoints.files.below(directories)
        self._endpoints = attrs.evolve(self._endpoints.within(rules.endpoint_directories), files=files)
        self._links.connect_by(connect_endpoints(self._endpoints, self._link_account))
        await report(self._to_liveness, RootsChanged(config.roots, directories, rules.endpoint_directories))

    async def _change_watchers(self, roots: Sequence[Root]) -> None:
        """Have these roots watched, and no others.

        The reconciler learns that a root is gone when its watcher has ended: no message of the watcher comes later.
        """
        for root in [root for root in self._watchers if root not in roots]:
            if self._watching is not None:
                await self._watching.stop(_watcher_of(root))
            await report(self._to_reconciler, RootRemoved(root.path))
            del self._watchers[root]
        rules = self._rules
        await report(
            self._to_status, RootsChanged(rules.roots, tuple(directories_of(self.config)), rules.endpoint_directories)
        )
        for root in [root for root in roots if root not in self._watchers]:
            if root not in self._directories:
                self._directories[root] = self._open_directory(root)
            self._watchers[root] = inbox = watcher.WatcherInbox()
            self._start_watcher(root)
            await report(self._to_reconciler, RootAdded(root.path, inbox))

    async def _send_configuration(self, config: Config) -> None:
        """Send the actors what they go by from now on."""
        self._crashes.allow(config.intensity)
        self._handlers.reconfigure(self._call_config(config))
        self._links.send_nowait(PausesChanged(follow_pauses(config)))
        number = self._registration_config.settings.number + 1
        settings = registration_settings(config, self._users, self._rules.endpoint_directories, number)
        self._registration_config = attrs.evolve(self._registration_config, settings=settings)
        run = partial(_run_registration, self._registration_config)
        await self._registrations.reconfigure(run, SettingsChanged(settings))
        await report(self._to_reconciler, WorldChanged(config.max_instances, config.backoff, config.stable_after))
        expectation = _expectation_of(config)
        self._devices.inbox.send_nowait(expectation)
        await report(self._to_status, expectation)

    async def note_reload(self, refused: str | None) -> None:
        """Show in health and metrics that the configuration was read again, and why it is not used if it is not.

        Raises:
          NodeEndedError: if the node ended before.
        """
        with self._callers.asking("shows no configuration"):
            await report(self._to_status, ConfigurationRead(trio.current_time(), refused))

    async def snapshot(self) -> Snapshot:
        """Return everything that is known at this moment.

        Raises:
          NodeEndedError: if the node ended before.
        """
        reply, answer = trio.open_memory_channel[Snapshot](1)
        with self._callers.asking("has no snapshot to give"):
            await report(self._to_status, SnapshotAsked(reply))
            return await answer.receive()

    async def counts(self) -> PluginCounts:
        """Return how many plugins are in each state, for far less than a snapshot costs.

        Raises:
          NodeEndedError: if the node ended before.
        """
        reply, answer = trio.open_memory_channel[PluginCounts](1)
        with self._callers.asking("does not count its plugins"):
            await report(self._to_status, CountsAsked(reply))
            return attrs.evolve(await answer.receive(), queued=self._dial_slots.read().waiting)

    def hung(self) -> tuple[str, ...]:
        """Return the actors that hang and without which the node does nothing, each with the reason.

        It is empty while all of them work. A program that a service manager watches feeds its watchdog only then. A
        handler that hangs is not among them, since it delays the plugins of its type alone.
        """
        failed = [actor for actor in self._inboxes.check() if actor.condition is Condition.FAILED]
        return tuple(f"{actor.actor}: {actor.reason}" for actor in failed if actor.actor in CORE_ACTORS)

    async def rescan(self) -> None:
        """Ask for a scan of each root now, and return at once. It makes up for events that inotify lost.

        Raises:
          NodeEndedError: if the node ended before.
        """
        with self._callers.asking("no root is scanned"):
            for inbox in self._watchers.values():
                inbox.send_nowait(RescanNow())
            await trio.lowlevel.checkpoint()

    async def wait_scanned(self) -> None:
        """Return once a scan of each root was tried: what can be found now was found, and the rest has a reason.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        reply, answer = trio.open_memory_channel[bool](1)
        with self._callers.asking("has not scanned all roots"):
            await report(self._to_status, ScansAwaited(reply))
            await answer.receive()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Snapshot | PluginChanged]]:
        """Open a stream: one :class:`Snapshot` of the present, then a :class:`PluginChanged` for each change.

        ::

            async with node.changes() as changes:
                async for change in changes: ...

        It ends when the node does.

        Raises, from the iteration:
          LaggedError: if thousands of changes wait for the reader.

        Raises:
          NodeEndedError: if the node ended before.
        """
        subscriber, stream = trio.open_memory_channel[ViewMessage](SUBSCRIBER_SIZE)
        self._callers.streams.add(subscriber)
        try:
            with self._callers.asking("has no changes to tell"):
                await report(self._to_status, Subscribed(subscriber))
            with stream:
                yield Changes(stream)
        finally:
            self._callers.streams.discard(subscriber)
            # The status actor may have ended before its readers.
            with trio.move_on_after(1, shield=True), suppress(trio.ClosedResourceError):
                await report(self._to_status, Unsubscribed(subscriber))

    async def devices(self) -> DevicesSnapshot:
        """Return the resources of device plugins and their devices at this moment.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        reply, answer = trio.open_memory_channel[DevicesSnapshot](1)
        with self._callers.asking("has no devices to show"):
            self._devices.inbox.send_nowait(DevicesAsked(reply))
            return await answer.receive()

    @asynccontextmanager
    async def device_changes(self) -> AsyncIterator[AsyncIterator[DevicesSnapshot | ResourceChanged]]:
        """Open a stream: a :class:`DevicesSnapshot` first, then a :class:`ResourceChanged` for each change.

        ::

            async with node.device_changes() as changes:
                async for change in changes: ...

        Each change is the whole resource as it is then. The stream ends when the node does.

        Raises, from the iteration:
          LaggedError: if thousands of changes wait for the reader.

        Raises:
          NodeEndedError: if the node ended before.
        """
        subscriber, stream = trio.open_memory_channel[DevicesViewMessage](SUBSCRIBER_SIZE)
        with self._callers.asking("has no devices to show"):
            self._devices.inbox.send_nowait(DevicesSubscribed(subscriber))
            await trio.lowlevel.checkpoint()
        self._callers.streams.add(subscriber)
        try:
            with stream:
                yield Changes(stream)
        finally:
            self._callers.streams.discard(subscriber)
            self._devices.inbox.send_nowait(DevicesUnsubscribed(subscriber))

    def allocate(
        self,
        wanted: Mapping[str, int],
        *,
        ids: Sequence[str] = (),
        include: Sequence[str] = (),
        id: str | None = None,  # noqa: A002 - the word of the command
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        wait: float | None = None,
        ignore_missing: bool = False,
    ) -> AbstractAsyncContextManager[Lease]:
        """Lease devices for this process, for the time of an ``async with`` block.

        ::

            async with node.allocate({"vendor.com/gpu": 1}) as lease:
                devices = lease.devices["vendor.com/gpu"]
                variables = lease.answer.env

        ``wanted`` says how many devices of each resource: all are given, or none. Of one resource, ``ids`` says which
        ones exactly, and ``include`` which ones among others. Without ``wait`` there is a lease now or an error; with
        it, the caller waits in line for so many seconds. A lease with an ``id`` is given again to the same process that
        asks for the same; the end of any of these blocks ends it. Devices of a ``pool`` are given only if it is named.
        ``labels`` are shown with the lease. With ``ignore_missing`` the devices of leases count as free that their
        plugin does not list any more.

        The lease ends with the block, or with this process.

        Raises, from the start of the block:
          AllocationError: if there is no lease; its ``problem`` and text say why, and its ``holders`` have the devices.
          NodeEndedError: if the node ends before that.
        """
        request = request_of(wanted, ids, include, labels, pool, ignore_missing=ignore_missing)
        return self._lease_calls.allocate(request, id, wait)

    async def leases(self) -> LeasesSnapshot:
        """Return all leases at this moment.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        return await self._lease_calls.snapshot()

    def lease_changes(
        self,
    ) -> AbstractAsyncContextManager[AsyncIterator[LeasesSnapshot | LeaseChanged]]:
        """Open a stream: a :class:`LeasesSnapshot` first, then a :class:`LeaseChanged` for each change.

        It is read as that of :meth:`device_changes`, and ends when the node does.
        """
        return self._lease_calls.changes()

    async def release(self, *ids: str) -> Released:
        """End leases, whoever has them; return which of them there were.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        return await self._lease_calls.release(ids)

    async def renew(self, id: str) -> Lease:  # noqa: A002 - the word of the command
        """Let the time of a lease begin again that ends at a time.

        Raises:
          AllocationError: if there is no such lease, or it does not end at a time.
          NodeEndedError: if the node ends before that.
        """
        return await self._lease_calls.renew(id)

    def dra_driver(self, name: str) -> DRADriver:
        """Return a DRA driver by its name, to have the devices of resource claims prepared.

        ::

            prepared = await node.dra_driver("gpu.example.com").prepare([DRAClaim("default", uid, "train")])

        Raises:
          DRADriverUnknownError: if no instance of it is registered, or DRA drivers have another handler.
        """
        return self._dra.driver(name)

    async def wait_for(self, name: str, *, type: str | None = None) -> PluginStatus:  # noqa: A002 - the field's word
        """Return the status of a plugin of that ``name`` as soon as one is registered; at once if one is.

        In observe mode it is one that is observed.

        It has no deadline of its own; use ``trio.fail_after`` for one.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        wanted = (StateName.REGISTERED, StateName.OBSERVED)
        async with self.changes() as changes:
            async for change in changes:
                plugins = change.plugins if isinstance(change, Snapshot) else (change.plugin,)
                for plugin in plugins:
                    if plugin.name == name and type in (None, plugin.type) and plugin.state in wanted:
                        return plugin
        raise NodeEndedError(f"the node ended, and {name!r} was not registered")

    async def retry(self, target: str) -> tuple[RetryAnswer, ...]:
        """Try now, with a fresh backoff, and say for each socket whether it is tried; empty if nothing is known.

        ``target`` is a socket path, or the name of a plugin.

        Raises:
          NodeEndedError: if the node ends before it answers.
        """
        plugins = (await self.snapshot()).plugins
        answers: list[RetryAnswer] = []
        with self._callers.asking(f"{target!r} was not tried again"):
            # A socket whose first try has just begun is not shown yet, and is known by its path.
            for socket in [plugin.socket for plugin in plugins if target in (plugin.socket, plugin.name)] or [target]:
                answers += await self._retry(socket)
        return tuple(answers)

    async def ask_for_facts(self, target: str) -> tuple[RetryAnswer, ...]:
        """Ask registered plugins anew for what is known of them, and say for each whether that is done.

        ``target`` is a socket path, or the name of a plugin. What they answer is in their status later.

        Raises:
          NodeEndedError: if the node ended before.
        """
        plugins = (await self.snapshot()).plugins
        return ask_for_facts(self._links, [plugin for plugin in plugins if target in (plugin.socket, plugin.name)])

    async def _retry(self, socket: str) -> Sequence[RetryAnswer]:
        reply, answer = trio.open_memory_channel[RetryAnswered](1)
        with reply, answer:
            await report(self._to_reconciler, RetryAsked(socket, reply))
            return (await answer.receive()).answers


def _watcher_of(root: Root) -> str:
    return f"watcher {root.path}"


def _run_registration(
    config: RegistrationConfig, start: world.StartRegistration, inbox: RegistrationInbox
) -> Awaitable[None]:
    # Not a coroutine of its own, of which each registration would keep a frame.
    return registration.run(config, inbox, start.appeared, start.to_deregister, start.crash)


def _expectation_of(config: Config) -> ExpectationChanged:
    """Return the message that says which plugins and devices are expected."""
    return ExpectationChanged(config.expected, healthy=config.ready_when == "healthy", devices=config.expected_devices)
