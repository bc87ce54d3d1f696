"""What ``plugind demo`` shows of devices: a line for each resource that has some.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import attrs

from ...protocol.device_messages import ResourceChanged
from ...protocol.devices import DevicesSnapshot, DeviceStatus, ResourceState, ResourceStatus
from .phrases import duration, exact, text


@attrs.define
class DeviceLines:
    """The resources of the node as the demo knows them, and what was last said of each."""

    _resources: dict[str, ResourceStatus] = attrs.field(factory=dict)
    _said: dict[str, str] = attrs.field(factory=dict)

    def take(self, change: DevicesSnapshot | ResourceChanged) -> list[str]:
        """Record a report of the node; return what is new in it, one line for each resource."""
        resources = change.resources if isinstance(change, DevicesSnapshot) else (change.resource,)
        new: list[str] = []
        for resource in resources:
            self._resources[resource.name] = resource
            said = _line(resource, None) if _is_shown(resource) else ""
            if said and self._said.get(resource.name) != said:
                new.append(said)
            self._said[resource.name] = said
        return new

    def lines(self, now: float) -> list[str]:
        """Return a line for each resource that has devices, with the time since which some are unhealthy."""
        return [_line(resource, now) for resource in self._resources.values() if _is_shown(resource)]

    @property
    def all_healthy(self) -> bool:
        """Whether some devices are shown, and all of them are healthy."""
        there = [resource for resource in self._resources.values() if _is_shown(resource)]
        return bool(there) and all(resource.allocatable == resource.capacity for resource in there)


def _is_shown(resource: ResourceStatus) -> bool:
    return resource.capacity > 0 and resource.state is not ResourceState.GONE


def _line(resource: ResourceStatus, now: float | None) -> str:
    counted = f"{text(resource.name)}: {resource.allocatable} of {resource.capacity} devices healthy"
    unhealthy = [device for device in resource.devices() if not device.healthy]
    return f"{counted}; {_words(unhealthy, now)}" if unhealthy else counted


def _words(unhealthy: list[DeviceStatus], now: float | None) -> str:
    first = unhealthy[0]
    named = exact(first.id) if len(unhealthy) == 1 else f"{exact(first.id)} and {len(unhealthy) - 1} more"
    return f"{named} unhealthy" + ("" if now is None else f" for {duration(max(0.0, now - first.since))}")
