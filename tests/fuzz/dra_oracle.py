"""What must hold of DRA drivers: which instance is used, who is connected, and when a driver is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.fuzz.health_oracle import LAG, Key

#: Seconds without a connection to any instance after which a driver is gone.
GONE_AFTER: Final = 30.0
#: Seconds until the instances of a driver report how many of them are connected: several changes are joined.
JOINED: Final = 0.5
#: Seconds in which messages have passed all actors: those of one instant are handled in it.
MOMENT: Final = 0.01


@attrs.define
class _Driver:
    """What is known of one driver."""

    #: Whether each instance is connected, in the order of their registration.
    instances: dict[Key, bool] = attrs.Factory(dict)
    #: Since when none is connected; None while one is.
    unusable: float | None = None
    #: Whether it was said since then that the driver is gone.
    reported: bool = False
    #: When something changed last.
    changed: float = -math.inf

    @property
    def connected(self) -> int:
        return sum(self.instances.values())

    @property
    def active(self) -> Key | None:
        """The newest instance that is connected, or the newest."""
        newest_first = [*reversed(self.instances)]
        return next((key for key in newest_first if self.instances[key]), newest_first[0] if newest_first else None)


class DRAOracle:
    """Of the instances of a driver the newest connected one is active; a driver is gone 30 s after its last connection.

    That is said at that moment, once, and at no other.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._drivers: dict[str, _Driver] = {}
        self._names: dict[Key, str] = {}

    def forget(self) -> None:
        """The daemon ended."""
        self._drivers.clear()
        self._names.clear()

    # --- what happens -------------------------------------------------------------------------------------------------

    def registered(self, plugin: Plugin) -> None:
        """An instance was registered."""
        key, now = (plugin.socket, plugin.generation), trio.current_time()
        driver = self._drivers.get(plugin.name)
        if driver is None or (driver.reported and not driver.instances):
            driver = self._drivers[plugin.name] = _Driver(unusable=now)
        self._names[key] = plugin.name
        driver.instances[key], driver.changed = False, now

    def left(self, plugin: Plugin) -> None:
        """An instance was deregistered."""
        key = plugin.socket, plugin.generation
        driver = self._drivers.get(plugin.name)
        if driver is not None and key in driver.instances:
            self._note(driver, key, is_connected=False)
            del driver.instances[key]

    def connected(self, key: Key) -> None:
        """There is a connection to an instance."""
        self._note(self._drivers[self._names[key]], key, is_connected=True)

    def disconnected(self, key: Key) -> None:
        """The connection to an instance has ended."""
        driver = self._drivers.get(self._names.get(key, ""))
        if driver is not None and key in driver.instances:
            self._note(driver, key, is_connected=False)

    def _note(self, driver: _Driver, key: Key, *, is_connected: bool) -> None:
        now = driver.changed = trio.current_time()
        driver.instances[key] = is_connected
        if driver.connected:
            driver.unusable, driver.reported = None, False
        elif driver.unusable is None:
            driver.unusable = now

    def gone(self, key: Key) -> None:
        """It is said that the driver of an instance is gone."""
        name, now = self._names.get(key, "?"), trio.current_time()
        driver = self._drivers.get(name)
        if driver is None or driver.reported:
            self._violated("driver-gone", f"{name} is said to be gone, once more or without an instance")
        elif driver.unusable is None or abs(now - driver.unusable - GONE_AFTER) > EPSILON:
            self._violated("driver-gone", f"{name} is said to be gone at {now:g}, unusable since {driver.unusable}")
        if driver is not None:
            driver.reported = True

    # --- what is known ------------------------------------------------------------------------------------------------

    def active(self, name: str, *, for_seconds: float = MOMENT) -> Key | None:
        """Return the instance that is used; None if there is none, or that was another one a moment ago."""
        driver = self._drivers.get(name)
        return None if driver is None or self._is_new(driver, for_seconds) else driver.active

    def _is_new(self, driver: _Driver, seconds: float) -> bool:
        return trio.current_time() - driver.changed <= seconds

    def look(self) -> None:
        """See that drivers are said to be gone that are."""
        now = trio.current_time()
        for name, driver in self._drivers.items():
            if driver.unusable is not None and not driver.reported and now > driver.unusable + GONE_AFTER + EPSILON:
                self._violated("driver-gone", f"{name} is unusable since {driver.unusable}, and nobody says so")

    def compare(self, status: PluginStatus, *, has_role: bool = True) -> None:
        """Compare what is shown of an instance, as far as that must be so by now; its role, too, if it ``has_role``."""
        key = status.socket, status.generation
        driver = self._drivers.get(self._names.get(key, ""))
        if driver is None or key not in driver.instances or status.state is not StateName.REGISTERED:
            return
        is_displaced = any("belongs to" in warning for warning in status.warnings)
        if is_displaced and driver.instances[key] and not self._is_new(driver, LAG + EPSILON):
            self._violated("roles", f"{status.socket} has the endpoint of another plugin, and is connected to it")
        is_active = key == driver.active and not is_displaced
        if has_role and not self._is_new(driver, MOMENT) and status.active is not is_active:
            self._violated("roles", f"{status.socket} is shown as {status.active}, and {driver.active} is active")
        if not self._is_new(driver, JOINED + LAG + EPSILON):
            self._compare_facts(status, driver, dict(status.facts), is_connected=driver.instances[key])

    def _compare_facts(
        self, status: PluginStatus, driver: _Driver, facts: dict[str, str], *, is_connected: bool
    ) -> None:
        plural = "" if driver.connected == 1 else "s"
        usable = f"yes, by {driver.connected} instance{plural}" if driver.connected else "no since "
        shown = facts.get("connected", ""), facts.get("usable", "")
        if not shown[0].startswith("since " if is_connected else "no") or not shown[1].startswith(usable):
            truth = "connected" if is_connected else "not connected"
            self._violated("facts", f"{status.socket} is {truth}, {driver.connected} are, and it is shown as {shown}")
