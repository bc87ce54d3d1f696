"""The handler of device plugins, whose follows a script can crash.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import trio

from ....protocol.device_messages import InstanceMessage
from ....protocol.messages import Address
from ....protocol.plugins import Plugin
from ...handlers.device_plugin import DevicePluginHandler
from ...handlers.link import Link
from ..faults import InjectedError


class CrashingHandler(DevicePluginHandler):
    """The handler of device plugins, whose follows a script can crash."""

    def __init__(self, devices: Address[InstanceMessage]) -> None:
        super().__init__(devices)
        self._crashes: dict[str, trio.Event] = {}

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DevicePluginHandler`."""
        crash = self._crashes[plugin.socket] = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_crash_once, crash)
            await super().follow(plugin, link)

    def crash(self, socket: str) -> None:
        """Crash the follow of the plugin at ``socket``, if there is one."""
        if socket in self._crashes:
            self._crashes[socket].set()


async def _crash_once(crash: trio.Event) -> None:
    await crash.wait()
    raise InjectedError
