"""The supervisor: a node as an embedding program sees it.

``plugind.actors.node.node`` has the parts of a node, and ``plugind.actors.node.reload`` what a reload changes.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from .actors.discovery.roots import RootBusyError
from .actors.handlers.handler import Handler
from .actors.logs.lines import STANDARD, logger_of
from .actors.messaging.callers import Each, LaggedError, NodeEndedError
from .actors.node.node import Node
from .actors.node.reload import reconfigure
from .actors.node.supervision import GaveUpError
from .actors.status.memory import StatusConfig
from .protocol.errors import ConfigError
from .protocol.handlers.facts_asking import ask_for_facts
from .protocol.leases.drains import Drain, DrainTarget
from .protocol.leases.replies import Failure, LeaseFailedError, LeasesSnapshot, Problem
from .protocol.leases.values import Lease, request_of
from .protocol.logs.lines import Logger
from .protocol.messages.discovery import RescanNow
from .protocol.messages.reconciler import HandlerRemoved, RetryAnswer, RetryAsked
from .protocol.messages.status import ScansAwaited, Snapshot
from .protocol.plugins.devices import DevicesSnapshot, ResourceStatus
from .protocol.plugins.status import PluginStatus, StateName
from .protocol.settings.config import Config

if TYPE_CHECKING:
    from .actors.handlers.dra.calls import DRADriver

__all__ = ["GaveUpError", "LaggedError", "NodeEndedError", "RootBusyError", "Supervisor"]


class Supervisor:
    """A node that discovers and registers plugins while its ``async with`` block runs.

    ::

        async with Supervisor(Config(roots=(Root("/run/my/plugins"),)), handlers={"Colour": ColourHandler()}) as node:
            plugin = await node.wait_for("red.example.com", type="Colour")

    Leaving the block stops the node: what is in flight finishes within ``config.timeouts.stop_grace``, or is rolled
    back. ``handlers`` are added to the built-in ones, and replace those of the same type. With a ``status_socket`` the
    node serves its status at that path, for the commands of plugind; if ``config.metrics`` names an address, it serves
    its metrics there. Events are logged to ``log``, by default the logger ``plugind`` of the standard library.

    A root that is missing or cannot be read is retried while the node runs. The roots are locked: no other node, in
    this process or another, can use them at the same time.

    Raises, from the block:
      ConfigError: if a root is not a directory or others may write to it, or the status socket or the port for metrics
        cannot be made.
      RootBusyError: if another node uses a root.
      GaveUpError: if actors crash more often than ``config.intensity`` allows.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
        status_socket: str | os.PathLike[str] | None = None,
        log: Logger | logging.Logger = STANDARD,
    ) -> None:
        status = StatusConfig(None if status_socket is None else os.fspath(status_socket))
        self._begin_with(Node(config or Config(), handlers or {}, None, status, logger_of(log)))

    def _begin_with(self, node: Node) -> None:
        self._node = node
        self._callers = node.callers
        self._context: AbstractAsyncContextManager[None] | None = None

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._node.config

    @property
    def internals(self) -> Node:
        """The parts of the node, for test tools. They can change with any release."""
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

    async def add_handler(self, plugin_type: str, handler: Handler) -> None:
        """Serve plugins of ``plugin_type`` from now on. Plugins parked for it are tried at once (behaviour 29).

        Raises:
          ValueError: if the type has a handler.
          ConfigError: if the handler needs more time than its calls have, or the node only observes.
          NodeEndedError: if the node has ended.
        """
        if self.config.observe:
            raise ConfigError(f"a node that observes has no handlers: add none for {plugin_type}")
        if plugin_type in self._node.handlers:
            raise ValueError(f"{plugin_type} has a handler: remove it first")
        with self._callers.asking(f"no handler was added for {plugin_type}"):
            await self._node.reconciler.report(self._node.handlers.add(plugin_type, handler))

    async def remove_handler(self, plugin_type: str) -> None:
        """Deregister and park all plugins of ``plugin_type``; return when the handler has none left.

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
        """Use another configuration from now on, such as ``attrs.evolve(node.config, stable_after=5.0)``.

        It may differ only in ``backoff``, ``deregister_at_stop``, ``endpoint_directories``, ``expected``,
        ``expected_devices``, ``info_limits``, ``intensity``, ``max_instances``, ``ready_when``, ``stable_after``,
        ``timeouts``, and in the limits, operators, permits and pools of ``leases``; without ``device_plugins`` also in
        ``trust``. It may have other ``roots``, if those that stay keep their options.

        What is under way keeps its deadline. Registered plugins stay registered, even over a lower limit, and leases
        keep their devices. Plugins of users who are no longer trusted, or of removed roots, are deregistered. A new
        root is made and locked by its watcher; if it cannot be used, that is shown, and it is tried again. If the
        caller is cancelled, either the old or the whole new configuration is in force.

        Raises:
          RuntimeError: if an earlier change is still being put in force.
          ConfigError: if the configuration differs in more, or cannot work, or if another state may hold leases of
            devices in new ``roots``. Nothing has changed then.
          NodeEndedError: if the node has ended.
        """
        await reconfigure(self._node, config)

    async def snapshot(self) -> Snapshot:
        """Return everything that is known at this moment.

        Raises:
          NodeEndedError: if the node has ended.
        """
        return await self._node.snapshot()

    async def rescan(self) -> None:
        """Request a scan of each root, which makes up for lost inotify events, and return at once.

        Raises:
          NodeEndedError: if the node has ended.
        """
        with self._callers.asking("no root is scanned"):
            for inbox in self._node.watchers.inboxes.values():
                inbox.send_nowait(RescanNow())
            await trio.lowlevel.checkpoint()

    async def wait_scanned(self) -> None:
        """Wait until a scan of each root was tried: what can be found now was found, and the rest has a reason.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        await self._callers.ask(self._node.status.report, ScansAwaited, "has not scanned all roots")

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the node ends.

        ::

            async with node.watch() as changes:
                async for plugin in changes:
                    print(plugin.socket, plugin.state)

        ``gone`` is the last state of a socket.

        Raises, from the iteration:
          LaggedError: if thousands of changes wait for the reader.

        Raises:
          NodeEndedError: if the node has ended.
        """
        self._callers.check_began()
        async with self._node.changes() as changes:
            yield Each(changes, lambda seen: seen.plugins if isinstance(seen, Snapshot) else (seen.plugin,))

    async def devices(self, resource: str | None = None) -> tuple[ResourceStatus, ...]:
        """Return all resources with their devices, or the one of that name, if there is one.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        return tuple(one for one in (await self._node.resources()).resources if resource in (None, one.name))

    @asynccontextmanager
    async def watch_devices(self) -> AsyncIterator[AsyncIterator[ResourceStatus]]:
        """Follow the resources as :meth:`watch` follows the plugins; each comes with all of its devices."""
        self._callers.check_began()
        async with self._node.resource_changes() as changes:
            yield Each(changes, lambda seen: seen.resources if isinstance(seen, DevicesSnapshot) else (seen.resource,))

    def allocate(
        self,
        resources: Mapping[str, int],
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

        ``resources`` has the number of devices of each: all are given, or none. For a single resource, ``ids``
        names exactly the devices to give, and ``include`` names some of them. Without ``wait`` there is a lease at once
        or an error; with it, the caller waits in line for that many seconds. A lease with an ``id`` is given again to
        the same process for the same request, and ends with any of these blocks. Devices of a ``pool`` are given only
        if it is named. ``labels`` are shown with the lease. With ``ignore_missing``, leased devices that their plugin
        no longer lists count as free.

        The lease ends with the block, or with this process.

        Raises, from the start of the block:
          LeaseFailedError: if there is no lease; ``problem`` and the text say why, and ``holders`` have the devices.
          NodeEndedError: if the node ends before that.
        """
        request = request_of(
            resources, ids=ids, include=include, labels=labels, pool=pool, ignore_missing=ignore_missing
        )
        return self._node.lease_calls.allocate(request, id, wait)

    async def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return all leases, or those whose ids begin with ``prefix``.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        found = (await self._node.lease_calls.snapshot()).leases
        return tuple(lease for lease in found if lease.id.startswith(prefix))

    @asynccontextmanager
    async def watch_leases(self) -> AsyncIterator[AsyncIterator[Lease]]:
        """Follow the leases as :meth:`watch` follows the plugins; one that has ended comes once more as ``gone``."""
        self._callers.check_began()
        async with self._node.lease_calls.changes() as changes:
            yield Each(changes, lambda seen: seen.leases if isinstance(seen, LeasesSnapshot) else (seen.lease,))

    async def release(self, lease: str) -> None:
        """End a lease, whoever has it.

        Raises:
          LeaseFailedError: if there is none of that id.
          NodeEndedError: if the node ends before that.
        """
        if (await self._node.lease_calls.release([lease])).unknown:
            raise LeaseFailedError(Failure(Problem.UNKNOWN, f"there is no lease {lease}"))

    async def renew(self, lease: str) -> Lease:
        """Restart the time limit of a lease.

        Raises:
          LeaseFailedError: if there is no such lease, or it has no time limit.
          NodeEndedError: if the node ends before that.
        """
        return await self._node.lease_calls.renew(lease)

    async def drain(
        self, resource: str | None, device: str | None = None, *, reason: str = "", until: float | None = None
    ) -> Drain:
        """Take a device, or all devices of a resource, out of service; None as the ``resource`` stands for the node.

        Nothing of the target is leased until :meth:`undrain`, or until the Unix second ``until``, and leases of it
        stay. Whoever asks for it is told the ``reason``.

        Raises:
          LeaseFailedError: if it cannot be written, or there are too many drains.
          NodeEndedError: if the node ends before that.
        """
        return await self._node.lease_calls.drain(DrainTarget(resource, device), reason, until)

    async def undrain(self, resource: str | None, device: str | None = None) -> Drain:
        """Put what :meth:`drain` took out of service back; return the drain that has ended.

        Raises:
          LeaseFailedError: if it is not drained, or that cannot be written.
          NodeEndedError: if the node ends before that.
        """
        return await self._node.lease_calls.undrain(DrainTarget(resource, device))

    def dra_driver(self, name: str) -> DRADriver:
        """Return the DRA driver ``name``, which can prepare the devices of resource claims.

        ::

            prepared = await node.dra_driver("gpu.example.com").prepare([DRAClaim("default", uid, "train")])

        Raises:
          DRADriverUnknownError: if no instance of it is registered, or another handler serves DRA drivers.
        """
        return self._node.dra.driver(name)

    async def wait_for(
        self,
        name: str,
        *,
        type: str | None = None,  # noqa: A002 - the field's word
        timeout: float | None = None,
    ) -> PluginStatus:
        """Wait until a plugin of that ``name`` is registered, or in observe mode observed, and return its status.

        Without a ``timeout`` in seconds this has no deadline.

        Raises:
          NodeEndedError: if the node ends before that.
          TooSlowError: Trio's, if that takes more than ``timeout`` seconds; its text has the state of the plugin.
        """
        wanted = (StateName.REGISTERED, StateName.OBSERVED)
        why = "no plugin of that name is there"
        with trio.move_on_after(math.inf if timeout is None else timeout) as scope:
            async with self.watch() as changes:
                async for plugin in changes:
                    if plugin.name != name or type not in (None, plugin.type):
                        continue
                    if plugin.state in wanted:
                        return plugin
                    why = f"{plugin.socket} is {plugin.state}" + (f": {plugin.reason}" if plugin.reason else "")
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"{name!r} is not registered after {timeout:g} s: {why}")
        raise NodeEndedError(f"the node ended, and {name!r} was not registered")

    async def retry(self, target: str, *, facts: bool = False) -> tuple[RetryAnswer, ...]:
        """Try now, with a fresh backoff; return for each socket whether it is tried, empty if none is known.

        ``target`` is a socket path, or the name of a plugin. With ``facts``, registered plugins are asked for their
        facts again instead, and their status has the answers later.

        Raises:
          NodeEndedError: if the node ends before it answers.
        """
        found = [plugin for plugin in (await self.snapshot()).plugins if target in (plugin.socket, plugin.name)]
        if facts:
            return ask_for_facts(self._node.links.refresh_facts, found)
        answers: list[RetryAnswer] = []
        # A socket that has just appeared is not shown yet, but is known by its path.
        for socket in [plugin.socket for plugin in found] or [target]:
            question, what = partial(RetryAsked, socket), f"{target!r} was not tried again"
            answers += (await self._callers.ask(self._node.reconciler.report, question, what)).answers
        return tuple(answers)


class NodeSupervisor(Supervisor):
    """The face of a node that the daemon or a test tool has made, with what these ask beside embedding programs."""

    def __init__(self, node: Node) -> None:
        self._begin_with(node)
        self.counts, self.hung = node.counts, node.hung
        self.note_reload, self.unfinished = node.note_reload, node.unfinished
