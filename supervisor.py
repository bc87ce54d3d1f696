"""The supervisor: a node as the program sees it that embeds it.

What a node is made of, and how its actors start and stop, is in ``plugind.actors.node.node``; what a reload changes is
in ``plugind.actors.node.reload``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs
import trio

from .actors.discovery.roots import RootBusyError
from .actors.handlers.handler import Handler
from .actors.leases.embedding import LeaseCalls, request_of
from .actors.logs.lines import STANDARD, StandardLog
from .actors.messaging.callers import LaggedError, NodeEndedError
from .actors.messaging.mailbox import send
from .actors.node.node import Node, Unfinished
from .actors.node.ports import Ports
from .actors.node.reload import reconfigure
from .actors.node.supervision import GaveUpError
from .actors.status.actor import StatusConfig
from .protocol.devices.messages import DevicesAsked, DevicesSubscribed, DevicesUnsubscribed, ResourceChanged
from .protocol.errors import ConfigError
from .protocol.handlers.facts_asking import ask_for_facts
from .protocol.health.progress import Condition
from .protocol.leases.messages import LeaseChanged, LeasesSnapshot, Released
from .protocol.leases.values import Lease
from .protocol.logs.lines import Logger
from .protocol.messages.config import ConfigurationRead
from .protocol.messages.discovery import RescanNow
from .protocol.messages.reconciler import HandlerRemoved, RetryAnswer, RetryAsked
from .protocol.messages.status import CountsAsked, PluginChanged, ScansAwaited, Snapshot, Subscribed, Unsubscribed
from .protocol.plugins.devices import DevicesSnapshot
from .protocol.plugins.status import PluginCounts, PluginStatus, StateName
from .protocol.settings.config import Config

if TYPE_CHECKING:
    from .actors.handlers.dra.calls import DRADriver

__all__ = ["GaveUpError", "LaggedError", "NodeEndedError", "Ports", "RootBusyError", "Supervisor"]


class Supervisor:
    """A node that discovers plugins and registers them, for as long as the ``async with`` block runs.

    ::

        async with Supervisor(Config(roots=(Root("/run/my/plugins"),)), handlers={"Colour": ColourHandler()}) as node:
            plugin = await node.wait_for("red.example.com", type="Colour")

    Leaving the block stops the node: what is in flight finishes within ``config.timeouts.stop_grace``, or is rolled
    back. ``handlers`` are added to the built-in ones, and replace those of the same type. If ``status_config`` names a
    socket, the node serves its status there; if ``config.metrics`` names an address, its metrics are served there, too.
    Events are logged to ``log``, by default the logger ``plugind`` of the standard library.

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
        log: Logger | logging.Logger = STANDARD,
    ) -> None:
        logger = StandardLog(log) if isinstance(log, logging.Logger) else log
        self._node = Node(config or Config(), handlers or {}, ports, status_config or StatusConfig(), logger)
        self._callers = self._node.callers
        self._send_to_devices = partial(send, self._node.devices.inbox)
        self._lease_calls = LeaseCalls(self._node.leases, self._callers, self._node.rules.users.own)
        self._context: AbstractAsyncContextManager[None] | None = None

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._node.config

    @property
    def internals(self) -> Node:
        """What the node is made of, for tools that test it; it may change with any release."""
        return self._node

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise RuntimeError("a Supervisor runs once; make another")
        self._context = self._node.running()
        self._callers.begin()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)

    def unfinished(self) -> Unfinished:
        """Return what keeps a node that stops from its end."""
        return self._node.unfinished()

    async def add_handler(self, plugin_type: str, handler: Handler) -> None:
        """Serve plugins of ``plugin_type`` from now on; those that are parked for it are tried at once (behaviour 29).

        Raises:
          ValueError: if the type has a handler.
          ConfigError: if a call of the handler may take longer than it is given, or the node only observes.
          NodeEndedError: if the node ended before.
        """
        if self.config.observe:
            raise ConfigError(f"a node that observes has no handlers: add none for {plugin_type}")
        if plugin_type in self._node.handlers:
            raise ValueError(f"{plugin_type} has a handler: remove it first")
        with self._callers.asking(f"no handler was added for {plugin_type}"):
            await self._node.reconciler.report(self._node.handlers.add(plugin_type, handler))

    async def remove_handler(self, plugin_type: str) -> None:
        """Deregister and park all plugins of ``plugin_type``, and return when the handler has none left.

        Raises:
          KeyError: if the type has no handler.
          NodeEndedError: if the node ends before that.
        """
        if plugin_type not in self._node.handlers:
            raise KeyError(f"{plugin_type} has no handler")
        with self._callers.asking(f"not all plugins of {plugin_type} were deregistered"):
            retired = self._node.handlers.remove(plugin_type)
            await self._node.reconciler.report(HandlerRemoved(plugin_type))
            await retired.wait()

    async def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on. It may differ only in what a node takes while it runs.

        ``attrs.evolve(node.config, stable_after=5.0)`` makes one from the present one.

        A node takes ``backoff``, ``deregister_at_stop``, ``endpoint_directories``, ``expected``, ``expected_devices``,
        ``info_limits``, ``intensity``, ``max_instances``, ``ready_when``, ``stable_after``, ``timeouts``, and of
        ``leases`` the limits, operators, permits and pools. Without ``device_plugins`` it also takes ``trust``. It
        takes other ``roots`` as long as none that stays has other options. What is under way keeps its deadline, and
        what begins from now on has the new one. Plugins that are registered stay so, though they may exceed a lower
        limit, and leases keep their devices. Plugins of a user who is not trusted any more are deregistered, and so are
        those of a root that is removed. The watcher of a root that is added makes and locks it; a root that cannot be
        used is shown as such, and is tried again. A caller who is cancelled leaves either the old configuration in
        force or the whole new one.

        Raises:
          RuntimeError: if an earlier change is still being put in force.
          ConfigError: if it differs in more, or cannot work, or leases of another state may be held of devices in
            ``roots`` that are added. Nothing has changed then.
          NodeEndedError: if the node ended before.
        """
        await reconfigure(self._node, config)

    async def note_reload(self, refused: str | None) -> None:
        """Show in health and metrics that the configuration was read again, and why it is not used if it is not.

        Raises:
          NodeEndedError: if the node ended before.
        """
        with self._callers.asking("shows no configuration"):
            await self._node.status.report(ConfigurationRead(trio.current_time(), refused))

    async def snapshot(self) -> Snapshot:
        """Return everything that is known at this moment.

        Raises:
          NodeEndedError: if the node ended before.
        """
        return await self._node.snapshot()

    async def counts(self) -> PluginCounts:
        """Return how many plugins are in each state, for far less than a snapshot costs.

        Raises:
          NodeEndedError: if the node ended before.
        """
        counts = await self._callers.ask(self._node.status.report, CountsAsked, "does not count its plugins")
        return attrs.evolve(counts, queued=self._node.dial_slots.read().waiting)

    def hung(self) -> tuple[str, ...]:
        """Return the actors that hang and without which the node does nothing, each with the reason.

        It is empty while all of them work. A program that a service manager watches feeds its watchdog only then. A
        handler that hangs is not among them, since it delays the plugins of its type alone.
        """
        failed = [actor for actor in self._node.inboxes.check() if actor.condition is Condition.FAILED]
        return tuple(f"{actor.actor}: {actor.reason}" for actor in failed if actor.actor in self._node.core)

    async def rescan(self) -> None:
        """Ask for a scan of each root now, and return at once. It makes up for events that inotify lost.

        Raises:
          NodeEndedError: if the node ended before.
        """
        with self._callers.asking("no root is scanned"):
            for inbox in self._node.watchers.inboxes.values():
                inbox.send_nowait(RescanNow())
            await trio.lowlevel.checkpoint()

    async def wait_scanned(self) -> None:
        """Return once a scan of each root was tried: what can be found now was found, and the rest has a reason.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        await self._callers.ask(self._node.status.report, ScansAwaited, "has not scanned all roots")

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
        opened: AbstractAsyncContextManager[AsyncIterator[Snapshot | PluginChanged]]
        opened = self._callers.stream(self._node.status.report, Subscribed, Unsubscribed, "has no changes to tell")
        async with opened as changes:
            yield changes

    async def devices(self) -> DevicesSnapshot:
        """Return the resources of device plugins and their devices at this moment.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        return await self._callers.ask(self._send_to_devices, DevicesAsked, "has no devices to show")

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
        opened: AbstractAsyncContextManager[AsyncIterator[DevicesSnapshot | ResourceChanged]]
        send_to, what = self._send_to_devices, "has no devices to show"
        opened = self._callers.stream(send_to, DevicesSubscribed, DevicesUnsubscribed, what)
        async with opened as changes:
            yield changes

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

    def lease_changes(self) -> AbstractAsyncContextManager[AsyncIterator[LeasesSnapshot | LeaseChanged]]:
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
        return self._node.dra.driver(name)

    async def wait_for(self, name: str, *, type: str | None = None) -> PluginStatus:  # noqa: A002 - the field's word
        """Return the status of a plugin of that ``name`` as soon as one is registered; at once if one is.

        In observe mode it is one that is observed.

        It has no deadline of its own; use ``trio.fail_after`` for one.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        self._callers.check_began()
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
        # A socket whose first try has just begun is not shown yet, and is known by its path.
        for socket in [plugin.socket for plugin in plugins if target in (plugin.socket, plugin.name)] or [target]:
            question, what = partial(RetryAsked, socket), f"{target!r} was not tried again"
            answers += (await self._callers.ask(self._node.reconciler.report, question, what)).answers
        return tuple(answers)

    async def ask_for_facts(self, target: str) -> tuple[RetryAnswer, ...]:
        """Ask registered plugins anew for what is known of them, and say for each whether that is done.

        ``target`` is a socket path, or the name of a plugin. What they answer is in their status later.

        Raises:
          NodeEndedError: if the node ended before.
        """
        plugins = (await self.snapshot()).plugins
        return ask_for_facts(self._node.links, [plugin for plugin in plugins if target in (plugin.socket, plugin.name)])
