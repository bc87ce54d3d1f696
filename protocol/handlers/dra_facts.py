"""The facts that are shown of an instance of a DRA driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from ..text import cut
from .dra_health import DeviceHealth, DeviceHealths, DRADeviceHealth

#: Formats a time of Trio's clock as a date.
Clock = Callable[[float], str]

#: How many devices are listed, and how many characters of the driver's message about each, because the facts of a
#: plugin have a bound. The fact :data:`DEVICES` counts all devices.
MAX_SHOWN = 48
MAX_SAID = 160

SERVICE = "service"
CONNECTED = "connected"
USABLE = "usable"
DEVICES = "devices"
DEVICE_HEALTH = "device-health"
#: The prefix of the facts about single devices.
DEVICE = "device."

_WORST_FIRST = (DRADeviceHealth.UNHEALTHY, DRADeviceHealth.UNKNOWN, DRADeviceHealth.HEALTHY)


@attrs.frozen
class InstanceFacts:
    """The facts about one instance. Times are those of Trio's clock."""

    #: The service that plugind calls on its endpoint.
    service: str
    #: The time of the connection; None if there is none.
    connected: float | None
    #: How many instances of the driver are connected, and since when none is.
    usable_by: int
    unusable: float | None
    #: The service that reports the health of devices, or why none does; empty if none is asked.
    stream: str = ""
    #: The devices, if this instance is the active one.
    devices: DeviceHealths | None = None

    def as_texts(self, clock: Clock) -> dict[str, str]:
        """Return the facts by their keys, in the order in which they are shown."""
        return dict(self._texts(clock))

    def _texts(self, clock: Clock) -> Iterator[tuple[str, str]]:
        yield SERVICE, self.service
        yield CONNECTED, "no" if self.connected is None else f"since {clock(self.connected)}"
        yield USABLE, self._usable(clock)
        if self.stream:
            yield DEVICE_HEALTH, self.stream
        if self.devices:
            yield DEVICES, ", ".join(f"{number} {status.lower()}" for status, number in self.devices.counts().items())
            for device in worst(self.devices):
                yield f"{DEVICE}{device}", _words(device, clock)

    def _usable(self, clock: Clock) -> str:
        if self.unusable is None:
            return f"yes, by {self.usable_by} instance{'' if self.usable_by == 1 else 's'}"
        return f"no since {clock(self.unusable)}"


def worst(devices: Iterable[DeviceHealth]) -> list[DeviceHealth]:
    """Return the devices that are listed, the unhealthy ones first."""
    return sorted(devices, key=lambda device: _WORST_FIRST.index(device.status))[:MAX_SHOWN]


def _words(device: DeviceHealth, clock: Clock) -> str:
    said = f": {cut(device.message, MAX_SAID)}" if device.message else ""
    return f"{device.status}{said} (since {clock(device.since)})"
