"""The health of the plugins of a node that a test embeds."""

from __future__ import annotations

import trio

from plugind import Supervisor
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.end_to_end.processes import DEADLINE

#: Checks fast enough for a test.
FAST = HealthChecks(period=0.2, deadline=0.2, confirm_after=0.1)


async def until(node: Supervisor, health: Health, *, after: int = 0) -> PluginStatus:
    """Return the status of the first registered plugin of a later generation than ``after`` that has this health.

    A plugin is followed once its handler has registered it, which is before the plugin has been told.
    """
    with trio.fail_after(DEADLINE):
        async with node.watch() as changes:
            async for plugin in changes:
                registered = plugin.state is StateName.REGISTERED
                if registered and plugin.health is health and plugin.generation > after:
                    return plugin
    raise AssertionError("the node ended")
