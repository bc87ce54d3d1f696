"""The health of the devices of one instance of a DRA driver, as its stream reports it, by the rules of Kubernetes 1.37.

Each message is the whole list. A device becomes ``Unknown``, without a message, when no message has named it in its
time; so a device that is missing in a message expires later. When the connection ends, all devices become ``Unknown``.
Nothing here reads a clock: times are arguments, in seconds of Trio's clock.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from ..errors import ValidationError
from ..text import quoted
from ..values import value

#: Seconds until the health of a device becomes unknown if the driver sets no time.
TIMEOUT = 30.0
#: How many devices of one instance are kept.
MAX_DEVICES = 4096
#: Characters in the name of a pool or a device, as Kubernetes limits them.
MAX_NAME = 253
#: Characters of a driver's message about a device. A longer message is cut, and ends with :data:`CUT`.
MAX_MESSAGE = 1024
CUT = "..."


class DRADeviceHealth(enum.StrEnum):
    """The health of a device, in the words of Kubernetes."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@value
class DeviceReport:
    """The part of a message about one device."""

    pool: str
    device: str
    status: DRADeviceHealth
    message: str = ""
    #: Seconds for which the report holds; 0 or less means :data:`TIMEOUT`.
    timeout: float = 0.0


@value
class DeviceHealth:
    """The health of one device."""

    pool: str
    device: str
    status: DRADeviceHealth
    message: str
    #: When the device got this status.
    since: float
    #: When this expires; infinity if the status is unknown already.
    expires: float

    def __str__(self) -> str:
        return f"{self.pool}/{self.device}"


class DeviceHealthError(ValidationError):
    """A message about the health of devices is refused; the text is the reason."""


def truncated(message: str) -> str:
    """Cut a message to the bound as the kubelet does."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - len(CUT)] + CUT


@attrs.define
class DeviceHealths:
    """The reported devices of one instance."""

    #: By pool and name, the last reported ones at the end.
    _devices: dict[tuple[str, str], DeviceHealth] = attrs.field(init=False, factory=dict)

    def __iter__(self) -> Iterator[DeviceHealth]:
        return iter(self._devices.values())

    def __len__(self) -> int:
        return len(self._devices)

    def counts(self) -> dict[DRADeviceHealth, int]:
        """Return how many devices have each status."""
        found = Counter(device.status for device in self)
        return {status: found[status] for status in DRADeviceHealth}

    @property
    def next_expiry(self) -> float:
        """When :meth:`expire` next changes something; infinity if never."""
        return min((device.expires for device in self), default=math.inf)

    @property
    def last_expiry(self) -> float:
        """When the last device becomes unknown without further messages; minus infinity if all are unknown."""
        return max((device.expires for device in self if device.expires < math.inf), default=-math.inf)

    def take(self, reports: Iterable[DeviceReport], now: float) -> None:
        """Apply one message. Of two reports of one device the last counts.

        Raises:
          DeviceHealthError: if the message has too many devices, or an invalid name. Then nothing changes.
        """
        said = {(report.pool, report.device): report for report in reports}
        if len(said) > MAX_DEVICES:
            raise DeviceHealthError(f"it reports {len(said)} devices, at most {MAX_DEVICES} are allowed")
        for name in {name for key in said for name in key}:
            _check_name(name)
        for key, report in said.items():
            self._devices[key] = _health_of(report, self._devices.pop(key, None), now)
        self._drop_oldest()

    def expire(self, now: float) -> None:
        """Mark the devices whose time has passed as unknown."""
        self._lose([key for key, device in self._devices.items() if device.expires <= now], now)

    def lose(self, now: float) -> None:
        """Mark all devices as unknown, because no reports come any more."""
        self._lose([*self._devices], now)

    def _lose(self, keys: list[tuple[str, str]], now: float) -> None:
        for key in keys:
            device = self._devices[key]
            if device.status is not DRADeviceHealth.UNKNOWN or device.message:
                since = device.since if device.status is DRADeviceHealth.UNKNOWN else now
                self._devices[key] = DeviceHealth(*key, DRADeviceHealth.UNKNOWN, "", since, math.inf)
            else:
                self._devices[key] = attrs.evolve(device, expires=math.inf)

    def _drop_oldest(self) -> None:
        """Drop the devices that were not reported for the longest time, if there are too many."""
        for key in [*self._devices][: max(0, len(self._devices) - MAX_DEVICES)]:
            del self._devices[key]


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        shown = quoted(name[:MAX_NAME])
        raise DeviceHealthError(
            f"a pool or a device is named {shown}: a name has 1 to {MAX_NAME} characters that print"
        )


def _health_of(report: DeviceReport, before: DeviceHealth | None, now: float) -> DeviceHealth:
    since = now if before is None or before.status is not report.status else before.since
    expires = now + (report.timeout if report.timeout > 0 else TIMEOUT)
    return DeviceHealth(report.pool, report.device, report.status, truncated(report.message), since, expires)
