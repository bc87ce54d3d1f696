"""The health of the devices of one instance of a DRA driver, as its stream tells it, by the rules of Kubernetes 1.37.

Each message is the whole list. A device whose time has passed without a message that names it is ``Unknown``, and what
was said of it is cleared; so one that is missing in a message becomes that later. When the connection ends, all are.
Nothing here reads a clock: each time is passed in, in seconds of Trio's clock.
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

#: Seconds after which the health of a device is unknown whose driver names no time.
TIMEOUT = 30.0
#: How many devices are kept of one instance.
MAX_DEVICES = 4096
#: Characters in the name of a pool or a device, which are names of Kubernetes.
MAX_NAME = 253
#: Characters of what a driver says of a device. Of more, all but the last ``len(CUT)`` of these are kept.
MAX_MESSAGE = 1024
CUT = "..."


class DeviceStatus(enum.StrEnum):
    """How a device is, in the words of Kubernetes."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@value
class DeviceReport:
    """What a message says of one device."""

    pool: str
    device: str
    status: DeviceStatus
    message: str = ""
    #: Seconds for which this holds; 0 or less means :data:`TIMEOUT`.
    timeout: float = 0.0


@value
class DeviceHealth:
    """How one device is."""

    pool: str
    device: str
    status: DeviceStatus
    message: str
    #: Since when it has this status.
    since: float
    #: When this holds no more; infinity if it is unknown already.
    expires: float

    def __str__(self) -> str:
        return f"{self.pool}/{self.device}"


class DeviceHealthError(ValidationError):
    """A message about the health of devices is refused; the text says why."""


def truncated(message: str) -> str:
    """Return a message within the bound, as the kubelet cuts it."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - len(CUT)] + CUT


@attrs.define
class DeviceHealths:
    """The devices of one instance that have been reported."""

    #: By pool and name, those that were reported last at the end.
    _devices: dict[tuple[str, str], DeviceHealth] = attrs.field(init=False, factory=dict)

    def __iter__(self) -> Iterator[DeviceHealth]:
        return iter(self._devices.values())

    def __len__(self) -> int:
        return len(self._devices)

    def counts(self) -> dict[DeviceStatus, int]:
        """Return how many devices have each status."""
        found = Counter(device.status for device in self)
        return {status: found[status] for status in DeviceStatus}

    @property
    def next_expiry(self) -> float:
        """When :meth:`expire` changes something next; infinity if it does not."""
        return min((device.expires for device in self), default=math.inf)

    @property
    def last_expiry(self) -> float:
        """When all are unknown, if nothing is heard of them until then; minus infinity if they are."""
        return max((device.expires for device in self if device.expires < math.inf), default=-math.inf)

    def take(self, reports: Iterable[DeviceReport], now: float) -> None:
        """Take one message. Of two reports of one device the last counts.

        Raises:
          DeviceHealthError: if it has too many devices, or a name that none can have. Nothing is changed then.
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
        """Have the devices be unknown whose time has passed."""
        self._lose([key for key, device in self._devices.items() if device.expires <= now], now)

    def lose(self, now: float) -> None:
        """Have all devices be unknown: nothing is heard of them any more."""
        self._lose([*self._devices], now)

    def _lose(self, keys: list[tuple[str, str]], now: float) -> None:
        for key in keys:
            device = self._devices[key]
            if device.status is not DeviceStatus.UNKNOWN or device.message:
                since = device.since if device.status is DeviceStatus.UNKNOWN else now
                self._devices[key] = DeviceHealth(*key, DeviceStatus.UNKNOWN, "", since, math.inf)
            else:
                self._devices[key] = attrs.evolve(device, expires=math.inf)

    def _drop_oldest(self) -> None:
        """Forget those that were missing for the longest time, if there are too many in all."""
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
