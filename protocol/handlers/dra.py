"""The known DRA drivers: the instances of each, which of them are connected, and when a driver is gone.

A driver is known by its name. It can have several instances: during an update, an old and a new one run side by side.
An instance is *connected* while there is a connection to its endpoint, and a driver is *usable* while one of its
instances is connected. A driver without a connected instance for :attr:`DRAConfig.gone_after` is *gone*. That is found
once: it can be gone again only after it was usable, or had no instance at all.

Nothing here reads a clock: times are arguments, in seconds of Trio's clock.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import attrs

from ..checks import above_zero
from ..errors import ConfigError
from ..plugins.info import Plugin
from ..values import record, value

#: The services by which a driver reports the health of its devices, in order of preference.
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

#: The drivers whose device health is watched: those that list a service for it among their versions, or all, in which
#: case the services are tried.
WatchedHealth = Literal["advertised", "try"]


@attrs.frozen
class DRAConfig:
    """The configuration for DRA drivers.

    Raises:
      ConfigError: if ``gone_after`` is not a finite number above 0, or ``health`` is another word.
    """

    #: Seconds without a connected instance after which a driver is gone.
    gone_after: float = attrs.field(default=30.0, validator=above_zero)
    #: ``advertised``: watch the health of devices if the driver lists a service for it among its versions. ``try``:
    #: also try these services at other drivers.
    health: WatchedHealth = attrs.field(default="advertised")

    @health.validator
    def _check_health(self, _: object, health: str) -> None:
        if health not in get_args(WatchedHealth):
            words = " or ".join(map(repr, get_args(WatchedHealth)))
            raise ConfigError(f"DRAConfig.health is {health!r}: it must be {words} (--dra-health)")

    def health_services(self, versions: tuple[str, ...]) -> tuple[str, ...]:
        """Return the services by which a driver with these ``versions`` may report the health of its devices."""
        advertised = tuple(service for service in HEALTH_SERVICES if service in versions)
        return advertised or (HEALTH_SERVICES if self.health == "try" else ())


@value
class DriverGone:
    """No instance of a driver has been connected for so long that the driver counts as gone."""

    #: The instance that would be used, or the last one that was registered.
    plugin: Plugin
    #: When the last connected instance was lost.
    since: float
    #: How many instances are registered.
    instances: int


#: The socket and the generation of an instance.
Key = tuple[str, int]


def key_of(plugin: Plugin) -> Key:
    """Return the key that identifies an instance."""
    return plugin.socket, plugin.generation


@record
class _Instance:
    plugin: Plugin
    #: The time of the connection; None while there is none.
    connected: float | None = None

    @property
    def rank(self) -> tuple[bool, bool]:
        """The instance with the highest rank is used, and of equal ones the newest."""
        return self.plugin.privileged, self.connected is not None


@record
class _Driver:
    last: Plugin
    #: The time since when no instance is connected; None while one is.
    unusable: float | None
    #: In the order of registration.
    instances: dict[Key, _Instance] = attrs.field(factory=dict)
    gone: bool = False

    @property
    def connected(self) -> int:
        return sum(instance.connected is not None for instance in self.instances.values())

    def best(self) -> Plugin | None:
        """Return the instance in use, by the rule of the world for roles: see :meth:`Drivers.active`."""
        newest_first = reversed(self.instances.values())
        best = max(newest_first, key=lambda instance: instance.rank, default=None)
        return None if best is None else best.plugin


@record
class Drivers:
    """All DRA drivers of a node."""

    #: Seconds without a connected instance after which a driver is gone.
    gone_after: float = 30.0
    _drivers: dict[str, _Driver] = attrs.field(init=False, factory=dict)
    #: When each driver without a connected instance will be gone, earliest first, since each waits equally long.
    _due: dict[str, float] = attrs.field(init=False, factory=dict)

    # --- what happens ---

    def add(self, plugin: Plugin, now: float) -> None:
        """Add a registered instance that is not connected yet."""
        driver = self._drivers.get(plugin.name)
        if driver is None:
            driver = self._drivers[plugin.name] = _Driver(plugin, now)
            self._due[plugin.name] = now + self.gone_after
        driver.last = plugin
        driver.instances[key_of(plugin)] = _Instance(plugin)

    def remove(self, plugin: Plugin, now: float) -> None:
        """Remove an instance, if it is known."""
        driver = self._drivers.get(plugin.name)
        if driver is None or driver.instances.pop(key_of(plugin), None) is None:
            return
        self._note_unusable(plugin.name, driver, now)
        self._forget(plugin.name, driver)

    def connected(self, plugin: Plugin, now: float) -> None:
        """Note that an instance is connected."""
        driver = self._drivers[plugin.name]
        driver.instances[key_of(plugin)].connected = now
        driver.unusable, driver.gone = None, False
        self._due.pop(plugin.name, None)

    def disconnected(self, plugin: Plugin, now: float) -> None:
        """Note that the connection to an instance has ended, if there was one."""
        driver = self._drivers.get(plugin.name)
        instance = None if driver is None else driver.instances.get(key_of(plugin))
        if driver is not None and instance is not None:
            instance.connected = None
            self._note_unusable(plugin.name, driver, now)

    def take_gone(self, now: float) -> list[DriverGone]:
        """Return the drivers that are gone at ``now``, each once."""
        found = []
        while (name := next(iter(self._due), None)) is not None and self._due[name] <= now:
            del self._due[name]
            driver = self._drivers[name]
            driver.gone = True
            since = now if driver.unusable is None else driver.unusable
            found.append(DriverGone(driver.best() or driver.last, since, len(driver.instances)))
            self._forget(name, driver)
        return found

    def _note_unusable(self, name: str, driver: _Driver, now: float) -> None:
        if driver.unusable is None and not driver.connected:
            driver.unusable = now
            self._due[name] = now + self.gone_after

    def _forget(self, name: str, driver: _Driver) -> None:
        if driver.gone and not driver.instances:
            del self._drivers[name]

    # --- what is known ---

    @property
    def next_due(self) -> float:
        """When the next driver will be gone; infinity if none will."""
        return next(iter(self._due.values()), math.inf)

    def active(self, name: str) -> Plugin | None:
        """Return the instance in use: the newest connected one, or else the newest; None if there is none.

        Instances of root or of the user that runs plugind come before those of other users (fault 80).
        """
        driver = self._drivers.get(name)
        return None if driver is None else driver.best()

    def instances(self, name: str) -> tuple[Plugin, ...]:
        """Return the instances of a driver, the newest last."""
        driver = self._drivers.get(name)
        return () if driver is None else tuple(instance.plugin for instance in driver.instances.values())

    def connected_since(self, plugin: Plugin) -> float | None:
        """Return since when an instance is connected; None if it is not."""
        driver = self._drivers.get(plugin.name)
        instance = None if driver is None else driver.instances.get(key_of(plugin))
        return None if instance is None else instance.connected

    def usable_by(self, name: str) -> int:
        """Return how many instances of a driver are connected."""
        driver = self._drivers.get(name)
        return 0 if driver is None else driver.connected

    def unusable_since(self, name: str) -> float | None:
        """Return since when no instance of a driver is connected; None if one is."""
        driver = self._drivers.get(name)
        return None if driver is None else driver.unusable

    def __len__(self) -> int:
        return len(self._drivers)
