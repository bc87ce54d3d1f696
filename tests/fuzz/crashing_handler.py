"""The handler of device plugins, whose follows a script can crash, and whose checks an oracle sees."""

from __future__ import annotations

from collections.abc import Callable

import trio

from plugind.actors.devices.handler import DevicePluginHandler
from plugind.actors.handlers.link import Link
from plugind.actors.simulation.faults import InjectedError
from plugind.protocol.devices.messages import InstanceMessage
from plugind.protocol.messages.addresses import Address
from plugind.protocol.plugins.info import Plugin

#: Returns a link to use in the place of another one.
Watch = Callable[[Plugin, Link], Link]


class CrashingHandler(DevicePluginHandler):
    """The handler of device plugins, whose follows a script can crash, and whose checks an oracle sees."""

    def __init__(
        self,
        devices: Address[InstanceMessage],
        watch: Watch = lambda _, link: link,
        leaving: Callable[[Plugin], None] = lambda _: None,
    ) -> None:
        """Follow plugins over the links that ``watch`` returns; tell ``leaving`` before one is deregistered."""
        super().__init__(devices)
        self._watch = watch
        self._leaving = leaving
        self._crashes: dict[str, trio.Event] = {}

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DevicePluginHandler`."""
        crash = self._crashes[plugin.socket] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_crash_once, crash)
            await super().follow(plugin, self._watch(plugin, link))

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`DevicePluginHandler`."""
        self._leaving(plugin)
        await super().deregister(plugin)

    def crash(self, socket: str) -> None:
        """Crash the follow of the plugin at ``socket``, if there is one."""
        if socket in self._crashes:
            self._crashes[socket].set()


async def _crash_once(crash: trio.Event) -> None:
    await crash.wait()
    raise InjectedError
