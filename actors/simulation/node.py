"""A simulated node: plugind's test kit, for its own actors and for your plugins and handlers.

::

    async def test_our_driver_survives_a_slow_start(node: SimulatedNode) -> None:
        plugin = node.plug("csi.sock", FakePlugin("CSIPlugin", "csi.example.com", get_info_fails=1))
        await node.settled()
        assert node.timeline("csi.sock") == [
            (0.0, "dialing"), (0.0, "asking-info"), (0.0, "waiting"),
            (0.5, "dialing"), (0.5, "asking-info"), (0.5, "validating"), (0.5, "registering"),
            (0.5, "notifying"), (0.5, "registered"),
        ]
        assert plugin.calls[-1] == Call(0.5, "NotifyRegistrationStatus", registered=True)

The node runs plugind itself: the real supervisor, the real actors and the real HTTP/2, over streams in memory. Only its
two ports differ. The directory is a :class:`~plugind.actors.simulation.directory.MemoryDirectory` and the network a
:class:`~plugind.actors.simulation.network.MemoryNetwork`; both fail on request in all the ways of the real ones.

**Time is virtual.** Run it under a :class:`trio.testing.MockClock` with ``autojump_threshold=0``, as the fixture
``node`` does (or the fixture ``autojump_clock`` of pytest-trio): whenever all tasks wait, the clock jumps to the next
deadline, so an hour of backoff takes milliseconds. All times are those of that clock, which starts at zero with the
test, in seconds, rounded to the microsecond. Nothing takes virtual time unless a script says so.

**Plugins** are scripted (:class:`FakePlugin`), or services of your own, built on the base classes that grpclib
generates; see :meth:`SimulatedNode.plug`. **Handlers** are scripted (:class:`FakeHandler`), or your own. All
**randomness** comes from one seed, ``Config.seed``: the jitter of backoff (off by default) and of rescans, and the
order in which Trio runs tasks that are ready at the same time. So one script gives one timeline; other seeds try other
orders.

Not simulated: permissions and credentials beyond "denied", bytes per second of the file system, and the kernel's
buffers, so that a send never blocks.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, assert_never

import attrs
import trio
import trio.testing

from ...protocol.backoff import Backoff
from ...protocol.devices.calls import RegisterCall
from ...protocol.health.progress import ActorHealth
from ...protocol.logs.lines import Field, Level, Logger
from ...protocol.messages.addresses import Address
from ...protocol.messages.status import PluginChanged, Snapshot
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.plugins.status import PluginStatus, StateName
from ...protocol.settings.config import Config, Root
from ...protocol.trust.users import Users
from ...supervisor import NodeSupervisor, Supervisor
from ..devices.directory import RealDeviceDirectory
from ..devices.state import MemoryStore
from ..grpc.server.serve import Service
from ..handlers.calls import HANDLER_BROKE
from ..handlers.handler import Handler
from ..io.unix_socket import Credentials
from ..leases.cdi_writer import MemoryCdiStore
from ..leases.history import HistoryStore, LeaseHistory
from ..leases.store import MemoryLeaseStore
from ..leases.unit import LeasePorts
from ..logs.lines import STANDARD, logger_of
from ..messaging.mailbox import Inbox
from ..node.node import Node
from ..node.ports import NodeState, Ports
from ..registration.notices import MemoryNoticeStore
from ..status.memory import StatusConfig
from .device_directory import MemoryDeviceDirectory, RegisterAttempt
from .device_nodes import MemoryNodes
from .directory import MemoryDirectory
from .endpoints import MemoryEndpointFiles
from .faults import ACTORS, HANGABLE, Actor, Hangable, PoisonMessage, Stuck, WaitFailedError
from .lease_owners import MemoryBootClock
from .network import MemoryNetwork
from .plugins import FakePlugin, PluggedIn
from .processes import MemoryProcesses
from .scheduling import pinned

T = TypeVar("T")

#: The root, unless the configuration names its own roots.
ROOT: Final = "/plugins"
#: The user that the daemon runs as.
DAEMON_UID: Final = 500
#: The overflow uid. Not all users are mapped, so it is never trusted.
OVERFLOW_UID: Final = 65534
#: Without jitter, so that delays are round numbers.
DEFAULT_CONFIG: Final = Config(roots=(Root(ROOT),), backoff=Backoff(jitter=0.0), seed=0)


class LeakError(Exception):
    """The node ended and left something open."""


@attrs.frozen
class Entry:
    """One change in the life of a socket."""

    #: Virtual seconds.
    time: float
    state: StateName
    reason: str | None
    attempt: int
    generation: int
    #: The time of the next try, in virtual seconds.
    next_try: float | None
    #: The reason in few words.
    cause: str | None = None

    def same(self, other: Entry) -> bool:
        """Whether nothing but the time differs."""
        return (
            self.state is other.state
            and self.reason == other.reason
            and self.attempt == other.attempt
            and self.generation == other.generation
            and self.next_try == other.next_try
            and self.cause == other.cause
        )


@attrs.define
class _HandlerErrors:
    """A :class:`~plugind.protocol.logs.lines.Logger` that keeps the last error of a handler for each socket."""

    _log: Logger
    #: When and where it was raised, and the traceback, by path. The last one raised is the last entry.
    by_socket: dict[str, str] = attrs.field(init=False, factory=dict)
    #: The last traceback by the text of the error. The lines that repeat one have none.
    _tracebacks: dict[Field, Field] = attrs.field(init=False, factory=dict)

    def enabled(self, level: Level) -> bool:
        # Errors are kept also where the log leaves them out.
        return level >= Level.ERROR or self._log.enabled(level)

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if message == HANDLER_BROKE:
            socket, error = str(fields["socket"]), fields["error"]
            if fields["traceback"] is not None:
                self._tracebacks[error] = fields["traceback"]
            self.by_socket.pop(socket, None)
            when = f"at {_rounded(trio.current_time()):g} s the handler broke in {fields['call']} of {socket}"
            self.by_socket[socket] = f"  {when}:\n{self._tracebacks.get(error, error)}"
        if self._log.enabled(level):
            self._log.event(level, message, **fields)


class SimulatedNode:
    """A simulated node, which runs for as long as its ``async with`` block.

    ``config`` is that of a real node; without roots, :data:`ROOT` is the root, and without a seed, the seed is 0.
    Without a ``config`` the backoff has no jitter. ``handlers`` are added to the built-in ones, as in
    :class:`~plugind.supervisor.Supervisor`, and ``log`` gets the events that a daemon logs.

    Plugins can be plugged in before the block, to be there when the node starts. Leaving the block stops the node like
    a real one, then checks that nothing was left open.

    Raises, from the block:
      RuntimeError: if the clock is not a MockClock.
      LeakError: if a connection or a watch was left open.
      GaveUpError: if actors crash more often than ``config.intensity`` allows.
    """

    def __init__(
        self,
        config: Config = DEFAULT_CONFIG,
        *,
        handlers: Mapping[str, Handler] | None = None,
        log: Logger | logging.Logger = STANDARD,
    ) -> None:
        if config.roots == Config().roots:
            config = attrs.evolve(config, roots=(Root(ROOT),))
        if config.seed is None:
            config = attrs.evolve(config, seed=0)
        self.config = config
        self.root = config.roots[0].path
        #: The file system, with its faults as methods.
        self.directory = MemoryDirectory(now=_now_or_zero)
        #: What the system reports about users: the daemon runs as :data:`DAEMON_UID`, and not all uids are mapped.
        self.users = Users(DAEMON_UID, OVERFLOW_UID)
        #: The listening sockets; it records every attempt to connect.
        self.network = MemoryNetwork(self.directory, follow_symlinks=config.follow_symlinks_inside_root)
        where = config.device_plugins
        #: The directory where device plugins call Register, if ``config`` has one.
        self.device_directory = (
            None if where is None else MemoryDeviceDirectory(where.directory, self.directory, self._note_change)
        )
        #: The device nodes of the machine, for static devices.
        self.device_nodes = MemoryNodes()
        #: What survives the daemon: the known resources, the leases, the files for container engines, the notices.
        self.store = MemoryStore()
        self.lease_store = MemoryLeaseStore(lasting=True)
        self.cdi_store = MemoryCdiStore()
        #: What keeps the history of leases; None for none.
        self.history_store: HistoryStore | None = None
        self.notice_store = MemoryNoticeStore()
        #: The processes that can own leases, one of which is this program, and the clock of the boot.
        self.owners = self.network.owners
        self.owners.start(os.getpid())
        self.boot_clock = MemoryBootClock()
        self._handlers = dict(handlers or {})
        self._log = _HandlerErrors(logger_of(log))
        self._histories: defaultdict[str, list[Entry]] = defaultdict(list)
        self._statuses: dict[str, PluginStatus] = {}
        #: The last plugin plugged in at each path.
        self._plugged: dict[str, PluggedIn] = {}
        self._changed = trio.Event()
        self._to_start: list[Callable[[], Awaitable[None]]] = []
        self._pids = (pid for pid in range(1000, 1_000_000) if pid != os.getpid())
        self._bits = random.Random(f"leases {config.seed}")
        self._context: AbstractAsyncContextManager[None] | None = None
        self._world: trio.Nursery | None = None
        self._supervisor: Supervisor | None = None
        self._ending = trio.Event()
        self._ended = trio.Event()
        self._daemon = trio.CancelScope()
        for root in config.roots:
            self.directory.mkdir(root.path)
        self.directory.insecure_roots.update(root.path for root in config.roots if root.insecure)

    # --- the block ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not _time_is_virtual():
            raise RuntimeError("a simulated node needs virtual time: run it under trio.testing.MockClock")
        if self._context is not None:
            raise RuntimeError("a SimulatedNode runs once; make another")
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
        try:
            with pinned(self.config.seed or 0, self.check_progress):
                async with trio.open_nursery() as world:
                    self._world = world
                    for run in self._to_start:
                        world.start_soon(run)
                    await self.start()
                    yield
                    if self._supervisor is not None:
                        await self.stop()
                    await trio.testing.wait_all_tasks_blocked()
                    world.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A single error is raised without the group: that of the block, or the one that ended the node.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise
        self._check_leaks()

    def check_progress(self) -> None:
        """Do nothing. Called every so many rounds of the scheduler, for subclasses that look for a livelock."""

    def _check_leaks(self) -> None:
        connections = [path for path, stream in (*self.network.opened, *self.network.linked) if not stream.closed]
        watched = sum(len(process.watchers) for process in self.network.processes.values())
        if connections or watched or self.directory.inotify.instances:
            raise LeakError(
                f"left open: connections to {connections}, {len(self.directory.inotify.instances)} instances of"
                f" inotify, {watched} processes"
            )

    # --- the daemon ---------------------------------------------------------------------------------------------------

    @property
    def supervisor(self) -> Supervisor:
        """The running daemon, as a program embeds it. Raises RuntimeError between stop and start."""
        if self._supervisor is None:
            raise RuntimeError("the daemon does not run")
        return self._supervisor

    async def start(self, *, handlers: Mapping[str, Handler] | None = None) -> None:
        """Start the daemon again, with other ``handlers`` if given. Entering the block starts it the first time."""
        if self._supervisor is not None or self._world is None:
            raise RuntimeError("the daemon runs already, or its block was not entered")
        if handlers is not None:
            self._handlers = dict(handlers)
        self._ending, self._ended, self._daemon = trio.Event(), trio.Event(), trio.CancelScope()
        await self._world.start(self._run_daemon)

    async def reconfigure(self, config: Config) -> None:
        """Give the daemon another configuration, as a reload does; see :meth:`.Supervisor.reconfigure`."""
        self.directory.insecure_roots.update(root.path for root in config.roots if root.insecure)
        await self.supervisor.reconfigure(config)
        self.config = config

    async def stop(self) -> None:
        """Stop the daemon as a signal does: operations under way finish, or are rolled back, within the grace.

        Raises:
          RuntimeError: if the block was not entered.
        """
        self._check_entered()
        self._ending.set()
        await self._ended.wait()

    async def kill(self) -> None:
        """End the daemon as kill -9 does: it sends nothing more, and its connections close (fault 88).

        Raises:
          RuntimeError: if the block was not entered.
        """
        self._check_entered()
        self.begin_kill()
        await self._ended.wait()

    def begin_kill(self) -> None:
        """End the daemon as :meth:`kill` does, without waiting, for functions that are called amid its work."""
        self._daemon.cancel()

    def _check_entered(self) -> None:
        if self._world is None:
            raise RuntimeError("the daemon does not run: the block of the node was not entered")

    async def _run_daemon(self, task_status: trio.TaskStatus[None]) -> None:
        network = self.network
        ports = Ports(
            network.dial,
            lambda _root: self.directory,
            lambda: MemoryProcesses(network),
            MemoryEndpointFiles(self.directory, network),
            network.count_descriptors,
            lambda _trust: self.users,
            network.dial_slots,
            state=self._state,
            process_of=network.owners.find,
            leases=self._lease_ports,
            nodes=lambda: self.device_nodes,
            device_directory=RealDeviceDirectory if self.device_directory is None else self.device_directory.open,
        )
        # Dates are virtual, too, because some are among the facts of plugins.
        status = StatusConfig(wall=trio.current_time)
        node = Node(self.config, self._handlers, ports, status, self._log)
        supervisor = NodeSupervisor(node)
        reading = trio.CancelScope()
        assert self._world is not None
        try:
            with self._daemon:
                # The subscription covers the whole run, so no change is missed.
                async with node.changes() as changes:
                    self._world.start_soon(self._read, changes, reading)
                    try:
                        async with supervisor:
                            self._supervisor = supervisor
                            task_status.started()
                            await self._ending.wait()
                        await trio.testing.wait_all_tasks_blocked()
                    finally:
                        reading.cancel()
        finally:
            self._supervisor = None
            self._statuses.clear()
            self._ended.set()

    def _state(self, _config: Config, log: Logger) -> NodeState:
        store = self.history_store
        history = None if store is None else LeaseHistory(store, trio.current_time, log)
        return NodeState(self.store, self.lease_store, history, self.notice_store)

    def _lease_ports(self, _config: Config, _status_socket: str | None) -> LeasePorts:
        return LeasePorts(
            self.owners, self.boot_clock, lambda _instance: self.cdi_store, trio.current_time, self._next_bits
        )

    def _next_bits(self) -> int:
        return self._bits.getrandbits(128)

    async def _read(self, changes: AsyncIterator[Snapshot | PluginChanged], scope: trio.CancelScope) -> None:
        with scope:
            async for change in changes:
                if isinstance(change, PluginChanged):
                    self.record(change)

    def record(self, change: PluginChanged) -> None:
        """Record one change that the daemon reports. Subclasses can override this."""
        plugin = change.plugin
        if plugin.state is StateName.GONE:
            self._statuses.pop(plugin.socket, None)
        else:
            self._statuses[plugin.socket] = plugin
        next_try = None if plugin.next_try is None else _rounded(plugin.next_try)
        entry = Entry(
            _rounded(change.time),
            plugin.state,
            plugin.reason,
            plugin.attempt,
            plugin.generation,
            next_try,
            plugin.cause,
        )
        history = self._histories[plugin.socket]
        # Roles, and actors after a loss of the view, can report a change twice.
        if not history or not history[-1].same(entry):
            history.append(entry)
        self._note_change()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def crash(self, actor: Actor, of: str = "") -> bool:
        """Crash an actor as a bug would; the daemon starts it again.

        ``of`` is the socket of the ``registration``. The crash comes when the actor next runs: the watcher's with its
        next look or scan, the others' with their next message. Return False if there is no such actor now.

        Raises:
          ValueError: if ``actor`` is not in :data:`~plugind.testing.ACTORS`.
        """
        if actor not in ACTORS:
            raise ValueError(f"no actor is called {actor!r}; there are {', '.join(ACTORS)}")
        if actor == "watcher":
            self.directory.crashes += 1
            return True
        address = self._address(actor, of)
        if address is None:
            return False
        address.send_nowait(PoisonMessage())
        return True

    def hang(self, actor: Hangable) -> Callable[[], None]:
        """Make an actor hang as a bug would, once it has taken its next message; return a function that ends the hang.

        Raises:
          ValueError: if ``actor`` is neither the ``reconciler`` nor the ``status`` actor.
        """
        internals = self.supervisor.internals
        match actor:
            case "reconciler":
                return _stuck(internals.reconciler)
            case "status":
                return _stuck(internals.status)
            case _:
                raise ValueError(f"{actor!r} cannot hang here; {' and '.join(HANGABLE)} can")

    def health(self) -> Mapping[str, ActorHealth]:
        """Return the health of the actors by their names, as the health report has it."""
        return {health.actor: health for health in self.supervisor.internals.inboxes.check()}

    def _address(
        self,
        actor: Literal["reconciler", "registration", "status", "liveness", "devices", "leases"],
        of: str,
    ) -> Address[Any] | None:
        internals = self.supervisor.internals
        match actor:
            case "reconciler":
                return internals.reconciler.address
            case "status":
                return internals.status.address
            case "liveness":
                return internals.liveness.address
            case "devices":
                return internals.devices.inbox
            case "leases":
                return internals.leases.inbox
            case "registration":
                return internals.registrations.current(self.path(of))
        assert_never(actor)

    # --- the script ---------------------------------------------------------------------------------------------------

    def plug(
        self,
        socket: str,
        plugin: FakePlugin | Service | Collection[Service],
        *,
        listening: bool = True,
        uid: int = 0,
        pid: int | None = None,
    ) -> PluggedIn:
        """Start a plugin's process, which binds ``socket`` and listens on it; return a handle of the process.

        ``socket`` is relative to the first root, or absolute; missing directories are made. ``plugin`` is a
        :class:`FakePlugin`, or one or several services built on grpclib's generated base classes, one of them a
        ``RegistrationBase``. With ``listening`` false the socket is only bound (behaviour 12). Each plugin has its own
        ``pid`` unless one is given; 0 is that of a process in another pid namespace. Plugins of root and of the user
        that runs the daemon (:data:`DAEMON_UID`) are trusted; another ``uid`` needs ``Config.trust``.

        Raises:
          OSError: if something is at ``socket``.
        """
        path = self.path(socket)
        self.directory.mkdir(os.path.dirname(path))
        if not isinstance(plugin, FakePlugin | Collection):
            plugin = (plugin,)
        peer = Credentials(next(self._pids) if pid is None else pid, uid, uid)
        plugged = PluggedIn(path, plugin, self.directory, self.network, self._start, peer)
        plugged.bind()
        self._plugged[path] = plugged
        if listening:
            plugged.listen()
        return plugged

    def register(
        self,
        endpoint: str,
        resource: str,
        *,
        version: str = "v1beta1",
        uid: int = 0,
        pid: int = 999,
        options: DeviceOptions | None = None,
    ) -> RegisterAttempt:
        """Call Register as a device plugin whose socket is ``endpoint``; return the call, which gets the answer.

        Raises:
          RuntimeError: if the configuration has no directory of device plugins.
        """
        if self.device_directory is None:
            raise RuntimeError("Config.device_plugins names no directory")
        return self.device_directory.call(RegisterCall(version, endpoint, resource, uid, pid, options))

    def _start(self, run: Callable[[], Awaitable[None]]) -> None:
        if self._world is None:
            self._to_start.append(run)
        else:
            self._world.start_soon(run)

    def path(self, socket: str) -> str:
        """Return the absolute path of ``socket``, which can be relative to the first root."""
        return os.path.join(self.root, socket)

    async def settled(self, *, patience: float = 5.0, timeout: float = 3600.0) -> None:
        """Let virtual time pass until the node is at rest; return at once if it is.

        At rest, all tasks wait; every socket in the roots is known, and every known socket exists; and each socket is
        registered, parked, or waits (``waiting``, ``stale``) for a try that is more than ``patience`` seconds away. So
        near retries are waited for, and a plugin that always fails comes to rest too, as its delays double. With a
        ``patience`` of 0, every wait counts as rest. The clock must jump by itself.

        Raises:
          WaitFailedError: if that takes more than ``timeout`` virtual seconds.
        """
        deadline = trio.current_time() + timeout
        while True:
            await trio.testing.wait_all_tasks_blocked()
            restless = self._restless(patience)
            if not restless:
                return
            if trio.current_time() >= deadline:
                moving = [path for path, plugin in self._statuses.items() if plugin.state not in _AT_REST]
                raise self._failed(f"after {timeout:g} s: {'; '.join(restless)}", sorted(moving))
            with trio.move_on_at(deadline):
                await self._changed.wait()

    def _restless(self, patience: float) -> list[str]:
        there = {path for root in self.config.roots for path in self.directory.sockets(root.path)}
        refused = {path for path, plugin in self._statuses.items() if plugin.state is StateName.PARKED}
        restless = [f"{path} is not known" for path in sorted(there - self._statuses.keys())]
        called = {path for path, plugin in self._statuses.items() if plugin.called}
        restless += [f"{path} is gone" for path in sorted(self._statuses.keys() - there - refused - called)]
        if self.device_directory is not None:
            calls = [attempt.call for attempt in self.device_directory.attempts if not attempt.answers]
            restless += [f"the call of {call.endpoint} for {call.resource} is not answered" for call in calls]
        soon = trio.current_time() + patience
        for path, plugin in sorted(self._statuses.items()):
            if plugin.state in _WAITING and plugin.next_try is not None and plugin.next_try > soon:
                continue
            if plugin.state not in _AT_REST:
                restless.append(f"{path} is {plugin.state}")
        return restless

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return _rounded(trio.current_time())

    def timeline(self, socket: str) -> list[tuple[float, str]]:
        """Return the states of ``socket`` so far, each with the virtual time at which it began, over all generations.

        A state is listed again when its reason or its attempt count changes.
        """
        return [(entry.time, entry.state.value) for entry in self.history(socket)]

    def history(self, socket: str) -> tuple[Entry, ...]:
        """Return :meth:`timeline` with reasons, attempts, generations and next tries."""
        return tuple(self._histories.get(self.path(socket), ()))

    def status(self, socket: str) -> PluginStatus | None:
        """Return the present status of ``socket``, without its history; None if it is not there."""
        return self._statuses.get(self.path(socket))

    @property
    def statuses(self) -> Mapping[str, PluginStatus]:
        """The present statuses, by absolute path."""
        return self._statuses

    def actors(self) -> list[str]:
        """Return the paths that have a registration actor now."""
        return sorted(self.supervisor.internals.registrations.paths)

    def leftovers(self) -> list[str]:
        """Describe what a daemon without any plugin still holds open beyond its needs."""
        internals = self.supervisor.internals
        handlers, streams = internals.handlers, internals.callers.streams
        found = [f"{path} has an actor" for path in self.actors()]
        connections = (*self.network.opened, *self.network.linked)
        found += [f"a connection to {path} is open" for path, stream in connections if not stream.closed]
        found += [f"{path} has a link" for path, _ in internals.links.instances]
        if handlers.count != len(handlers.added):
            found.append(f"{handlers.count} handlers are kept for {len(handlers.added)} handlers")
        # One of them belongs to this node.
        if len(streams) != 1:
            found.append(f"{len(streams)} readers of the stream of changes")
        if len(self.directory.inotify.instances) != len(self.config.roots):
            found.append(f"{len(self.directory.inotify.instances)} instances of inotify")
        return found

    def state(self, socket: str) -> str | None:
        """Return the state of ``socket`` now; None if it is not there."""
        status = self.status(socket)
        return None if status is None else status.state.value

    async def snapshot(self) -> Snapshot:
        """Return everything that the daemon knows; see :meth:`plugind.supervisor.Supervisor.snapshot`."""
        return await self.supervisor.snapshot()

    async def wait_for(
        self,
        name: str,
        *,
        type: str | None = None,  # noqa: A002 - the field's word
        timeout: float = 600.0,
    ) -> PluginStatus:
        """Wait until a plugin of that ``name`` is registered, or observed; return its status.

        Raises:
          WaitFailedError: if that takes more than ``timeout`` virtual seconds.
        """

        def is_it(status: PluginStatus) -> bool:
            return status.name == name and type in (None, status.type)

        return await self._registered(name, is_it, timeout)

    async def registered(self, socket: str, *, timeout: float = 600.0) -> PluginStatus:
        """Wait until the plugin at ``socket`` is registered, or observed; return its status.

        Raises:
          WaitFailedError: if that takes more than ``timeout`` virtual seconds.
        """
        path = self.path(socket)
        return await self._registered(path, lambda status: status.socket == path, timeout)

    async def _registered(self, what: str, wanted: Callable[[PluginStatus], bool], timeout: float) -> PluginStatus:
        deadline = trio.current_time() + timeout
        while True:
            found = [status for status in self._statuses.values() if wanted(status)]
            for status in found:
                if status.state in _REGISTERED:
                    return status
            if trio.current_time() >= deadline:
                paths = [status.socket for status in found] or sorted({*self._statuses, *self._plugged})
                raise self._failed(f"{what} is not registered after {timeout:g} s", paths)
            with trio.move_on_at(deadline):
                await self._changed.wait()

    def _failed(self, what: str, paths: list[str]) -> WaitFailedError:
        """Return the error that says where these sockets are, with the last traceback of their handlers."""
        shown = paths[:_EXPLAINED]
        broke = [error for path, error in self._log.by_socket.items() if path in shown][-1:]
        return WaitFailedError("\n".join([what, *map(self._explained, shown), *broke]))

    def _explained(self, path: str) -> str:
        """Describe the status of a socket, and the calls of its plugin, in lines."""
        status, plugged = self._statuses.get(path), self._plugged.get(path)
        shown = "is not there" if status is None else f"is {status.state} (attempt {status.attempt})"
        if status is not None and status.reason is not None:
            shown += f": {status.reason}"
        if status is not None and status.next_try is not None:
            shown += f"; it is tried again at {_rounded(status.next_try):g} s"
        lines = [f"  {path} {shown}"]
        for call in () if plugged is None else plugged.calls[-_EXPLAINED:]:
            verdict = "" if call.registered is None else f"(registered={call.registered}, error={call.error!r})"
            answer = "" if call.reaction is None else f": {call.reaction.value}"
            lines.append(f"    at {call.time:g} s it was called: {call.method}{verdict}{answer}")
        return "\n".join(lines)


#: The most sockets, and the most calls of each, in an error.
_EXPLAINED: Final = 8
_REGISTERED = (StateName.REGISTERED, StateName.OBSERVED)
_AT_REST = (*_REGISTERED, StateName.PARKED)
_WAITING = (StateName.WAITING, StateName.STALE)


def _stuck(inbox: Inbox[T]) -> Callable[[], None]:
    stuck = Stuck(inbox.source)
    inbox.source = stuck
    return stuck.released.set


def _rounded(time: float) -> float:
    return math.inf if time == math.inf else round(time, 6)


def _time_is_virtual() -> bool:
    return isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


def _now_or_zero() -> float:
    """Return the time, or zero before Trio runs, which is the start of virtual time."""
    return trio.current_time() if trio.lowlevel.in_trio_run() else 0.0
