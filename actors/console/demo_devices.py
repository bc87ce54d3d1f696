"""The lines of ``plugind demo`` about devices: one for each resource, with how many devices are leased."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ...protocol.leases.values import Lease, LeaseState
from ...protocol.plugins.devices import DeviceStatus, ResourceState, ResourceStatus
from .phrases import duration, exact, text


@attrs.define
class DeviceLines:
    """The resources of the node, and the last line about each."""

    _resources: dict[str, ResourceStatus] = attrs.field(factory=dict)
    _said: dict[str, str] = attrs.field(factory=dict)
    _leases: dict[str, Lease] = attrs.field(factory=dict)

    def take(self, change: ResourceStatus | Lease) -> list[str]:
        """Record a report of the node; return the new lines, one for each changed resource."""
        if isinstance(change, Lease):
            self._leases[change.id] = change
        else:
            self._resources[change.name] = change
        return [*self._new_lines()]

    def _new_lines(self) -> Iterator[str]:
        for name, resource in self._resources.items():
            said = self._line(resource, None) if _is_shown(resource) else ""
            if said and self._said.get(name) != said:
                yield said
            self._said[name] = said

    def lines(self, now: float) -> list[str]:
        """Return a line for each resource with devices, and for how long some are unhealthy."""
        return [self._line(resource, now) for resource in self._resources.values() if _is_shown(resource)]

    @property
    def at_rest(self) -> bool:
        """Whether some devices are shown, all of them are healthy, and none is leased."""
        there = [resource for resource in self._resources.values() if _is_shown(resource)]
        return bool(there) and not any(
            resource.allocatable < resource.capacity or self._leased(resource.name) for resource in there
        )

    def _leased(self, name: str) -> int:
        held = (lease for lease in self._leases.values() if lease.state is LeaseState.HELD)
        return sum(len(lease.devices.get(name, ())) for lease in held)

    def _line(self, resource: ResourceStatus, now: float | None) -> str:
        leased, name = self._leased(resource.name), text(resource.name)
        counted = f"{name}: {resource.allocatable} of {resource.capacity} devices healthy"
        counted += f", {leased} leased" if leased else ""
        unhealthy = [device for device in resource.devices() if not device.healthy]
        return f"{counted}; {_words(unhealthy, now)}" if unhealthy else counted


def _is_shown(resource: ResourceStatus) -> bool:
    return resource.capacity > 0 and resource.state is not ResourceState.GONE


def _words(unhealthy: list[DeviceStatus], now: float | None) -> str:
    first = unhealthy[0]
    named = exact(first.id) if len(unhealthy) == 1 else f"{exact(first.id)} and {len(unhealthy) - 1} more"
    return f"{named} unhealthy" + ("" if now is None else f" for {duration(max(0.0, now - first.since))}")
