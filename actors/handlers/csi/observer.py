"""Follows one CSI driver in observe mode: its identity, capabilities and health.

The driver is asked GetPluginInfo and for its capabilities, and then Probe, as a registered driver is. NodeGetInfo is
left to the consumer that registers the driver, because the call can be expensive for it.
"""

from __future__ import annotations

from typing import NoReturn

import trio

from ....protocol.errors import NoConnectionError, PluginError, ValidationError
from ....protocol.handlers.csi import DriverFacts
from ....protocol.logs.lines import timestamp
from ....protocol.plugins.health import Health
from ....protocol.plugins.info import csi_version
from ...grpc.client.channel import Channel
from ..link import Link
from .driver import DriverCalls
from .follower import CONNECT_TIMEOUT, REDIALS, CSIFollower, DriverAnswers, FollowedBy


class CSIObserver:
    """Observes one driver until it is cancelled."""

    def __init__(self, calls: DriverCalls, link: Link, common: FollowedBy) -> None:
        self._calls = calls
        self._link = link
        self._common = common

    async def run(self) -> NoReturn:
        """Ask the driver for its identity once it can be reached, and follow it from then on."""
        asked = await self._ask_until_answered()
        await CSIFollower(asked, self._calls, self._link, self._common).run()
        raise AssertionError("a follower runs until it is cancelled")

    async def _ask_until_answered(self) -> DriverAnswers:
        """Connect to the driver and ask it, until a connection lasts for all the calls."""
        tries = 0
        while True:
            try:
                channel = await self._link.connect(timeout=CONNECT_TIMEOUT)
            except NoConnectionError as error:
                self._link.report(Health.DISCONNECTED, error.lasting)
            else:
                asked = await self._ask(channel)
                if channel.takes_calls:
                    return asked
            tries += 1
            await trio.sleep(REDIALS.delay(tries))

    async def _ask(self, channel: Channel) -> DriverAnswers:
        plugin, warnings, vendor_version = self._calls.plugin, list[str](), ""
        try:
            vendor_version = await self._calls.get_plugin_info(channel)
        except PluginError as error:
            warnings.append(str(error))
        of_driver = await self._calls.get_plugin_capabilities(channel)
        of_node = await self._calls.node_get_capabilities(channel)
        await self._common.report(None)
        try:
            version = str(csi_version(plugin.versions))
        except ValidationError as error:
            version = ""
            warnings.append(str(error))
        facts = DriverFacts(None, vendor_version, version, of_node, of_driver, timestamp(self._common.wall()))
        return DriverAnswers(plugin, facts, trio.current_time(), tuple(warnings))
