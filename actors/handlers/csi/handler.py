"""The handler of CSI drivers: it asks each for its identity and its node, and follows it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING

import trio

from ....protocol.errors import NoConnectionError, PluginError, ValidationError
from ....protocol.handlers.csi import NODE_INFO_TIMEOUT, SHORT_TIMEOUT, CSIConfig, DriverFacts, NodeInfo
from ....protocol.handlers.csi_topology import Topologies
from ....protocol.logs.lines import timestamp
from ....protocol.messages.consumers import CallEnded, CallsEnded, EventNoted
from ....protocol.messages.status import StatusMessage
from ....protocol.plugins.info import InstancePolicy, Plugin, check_csi_versions, csi_version
from ....protocol.text import quoted
from ....protocol.values import value
from ...io.clocks import time_is_virtual
from ...messaging.mailbox import report
from ..instances import Instances
from ..link import Link

if TYPE_CHECKING:
    from .driver import DriverCalls
    from .follower import CSIFollower, DriverAnswers, FollowedBy
    from .ranking import RankedDrivers

#: Seconds in which the endpoint of a registering driver must listen. Its registrar can start before the driver.
CONNECT_TIMEOUT = 30.0


class CSIHandler:
    """Accepts CSI drivers of version 1.x, and in deprecated roots those of 0.x, and follows them.

    A second driver of one name must have a strictly higher version, unless it has the same endpoint. Then it counts as
    the same driver with a restarted registrar; all registrars announce the version "1.0.0". A privileged driver is
    compared with privileged ones only (fault 80).

    A driver is registered once it has answered. Until then an older driver of its name stays registered.
    """

    instances = InstancePolicy.HIGHEST_VERSION
    longest_call = CONNECT_TIMEOUT + 3 * SHORT_TIMEOUT + NODE_INFO_TIMEOUT

    def __init__(
        self,
        config: CSIConfig | None = None,
        *,
        strict: bool = False,
        status: trio.MemorySendChannel[StatusMessage] | None = None,
        rng: random.Random | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """Report call durations and changed facts to ``status``, the status actor.

        With ``strict`` a driver must implement NodeGetInfo, as the kubelet demands. ``wall`` returns Unix time.
        """
        self.drivers = Instances()
        #: Ranks the drivers of each name for which a second driver was offered, since most names have only one.
        self._ranked: dict[str, RankedDrivers] = {}
        self._config = config or CSIConfig()
        self._strict = strict
        self._status = status
        self._wall = wall or _unix_time
        self._topologies = Topologies()
        #: The answers of each driver and the object that calls it, by socket and generation.
        self._asked: dict[tuple[str, int], tuple[DriverAnswers, DriverCalls]] = {}
        #: The calls that have ended and were not reported yet.
        self._ended: list[CallEnded] = []
        self._rng = rng or random.Random()

    async def validate(self, plugin: Plugin) -> None:
        """Apply the version rules.

        Raises:
          ValidationError: if the versions are not acceptable, or another driver of that name has the same or a higher
            version; the text is the kubelet's, and names the socket of the other driver.
        """
        try:
            self._check(plugin)
        except ValidationError as error:
            raise ValidationError(
                f"validation failed for CSI Driver {plugin.name} at endpoint {plugin.endpoint}: kubernetes.io/csi: "
                f"ValidatePlugin for CSI driver {quoted(plugin.name)} failed. {error}",
                cause=str(error),
            ) from error

    def _check(self, plugin: Plugin) -> None:
        version = check_csi_versions(plugin.versions, deprecated=plugin.found_in_deprecated_dir)
        ranked = self._rank(plugin.name)
        socket = None if ranked is None else ranked.highest_elsewhere(plugin)
        other = None if socket is None else self.drivers.instance(plugin.name, socket)
        if other is None or (plugin.privileged and not other.privileged):
            return
        if version <= (present := csi_version(other.versions)):
            raise ValidationError(
                "Another driver with the same name is already registered with a higher supported version: "
                f"{quoted(str(present))} (by the socket {other.socket}; bring a higher version, or remove that one)"
            )

    async def register(self, plugin: Plugin, link: Link) -> None:
        """Ask the driver for its identity, capabilities and node, and keep it.

        Raises:
          PluginError: if it does not listen or does not answer in time, or its answers are refused.
        """
        try:
            calls = _parts().driver_calls(plugin, self._ended.append, strict=self._strict)
            asked = await self._ask(plugin, link, calls)
        finally:
            await self._report(None)
        self._asked[plugin.socket, plugin.generation] = asked, calls
        self.keep(plugin)

    async def _ask(self, plugin: Plugin, link: Link, calls: DriverCalls) -> DriverAnswers:
        try:
            channel = await link.connect(timeout=CONNECT_TIMEOUT, gives_way=True)
        except NoConnectionError as error:
            raise PluginError(f"failed to connect to driver {quoted(plugin.name)}: {error}") from error
        said = await calls.ask(channel)
        version = str(csi_version(plugin.versions))
        facts = DriverFacts(
            said.node, said.vendor_version, version, said.of_node, said.of_driver, timestamp(self._wall())
        )
        # Checking against other drivers and noting this one is one step: of two that collide, the second gets the
        # error.
        return _parts().asked(plugin, facts, trio.current_time(), self._admit(plugin, said.node))

    def _admit(self, plugin: Plugin, node: NodeInfo) -> tuple[str, ...]:
        """Note a driver's facts about this node; return the warnings about them.

        Raises:
          ValidationError: if its topology contradicts that of another driver.
        """
        collision = self._topologies.collision(plugin, node.topology)
        if collision is not None and self._config.topology_collisions == "refuse":
            raise ValidationError(f"{collision}; with 'plugind run --csi-topology warn' both are registered")
        self._topologies.put(plugin, node.topology)
        return node.warnings if collision is None else (*node.warnings, collision)

    def keep(self, plugin: Plugin) -> None:
        """Keep a registered driver, with which other drivers of its name are compared."""
        self._forget(plugin)
        self.drivers.add(plugin)
        if plugin.name in self._ranked:
            self._ranked[plugin.name].add(plugin)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """Keep a connection to the driver, check its health, and ask again for facts that can change."""
        asked, calls = self._asked[plugin.socket, plugin.generation]
        await _parts().follower(asked, calls, link, self._followed_by).run()

    async def observe(self, plugin: Plugin, link: Link) -> None:
        """Follow a driver that another consumer registers, without calling NodeGetInfo."""
        from .observer import CSIObserver

        calls = _parts().driver_calls(plugin, self._ended.append)
        await CSIObserver(calls, link, self._followed_by).run()

    @cached_property
    def _followed_by(self) -> FollowedBy:
        return _parts().followed_by(self._config.refresh, self._admit, self._report, self._wall, self._rng)

    async def deregister(self, plugin: Plugin) -> None:
        """Drop this instance of the driver; other instances of its name stay."""
        self._asked.pop((plugin.socket, plugin.generation), None)
        self._topologies.remove(plugin)
        self._forget(plugin)
        await self._report(None)

    async def _report(self, event: EventNoted | None) -> None:
        """Report the calls that have ended, and ``event`` if there is one."""
        calls = tuple(self._ended)
        self._ended.clear()
        if self._status is None:
            return
        try:
            if calls:
                await report(self._status, CallsEnded(calls))
        except trio.Cancelled:
            self._ended[:0] = calls
            raise
        if event is not None:
            await report(self._status, event)

    def _rank(self, name: str) -> RankedDrivers | None:
        """Return the registered drivers of ``name``, ranked by version; None if there are none."""
        ranked = self._ranked.get(name)
        if ranked is None and (drivers := self.drivers.named(name)):
            from .ranking import RankedDrivers

            ranked = self._ranked[name] = RankedDrivers()
            for driver in drivers:
                ranked.add(driver)
        return ranked

    def _forget(self, plugin: Plugin) -> None:
        """Drop the driver at the socket of ``plugin``, which may have had another endpoint."""
        self.drivers.remove(plugin)
        if plugin.name in self._ranked and not self._ranked[plugin.name].remove(plugin.socket):
            del self._ranked[plugin.name]


@value
class _Parts:
    asked: type[DriverAnswers]
    driver_calls: type[DriverCalls]
    follower: type[CSIFollower]
    followed_by: type[FollowedBy]


@cache
def _parts() -> _Parts:
    """Import the classes that call and follow drivers. A node without CSI drivers does not load them."""
    from .driver import DriverCalls
    from .follower import CSIFollower, DriverAnswers, FollowedBy

    return _Parts(DriverAnswers, DriverCalls, CSIFollower, FollowedBy)


def _unix_time() -> float:
    """Return Unix time. In a simulated node, return the time of its clock, so that each run gives the same."""
    return trio.current_time() if time_is_virtual() else time.time()
