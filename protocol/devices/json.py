"""The JSON forms of resources and devices in the status socket and the commands."""

from __future__ import annotations

from collections import defaultdict

from ..leases.drains import drain_of
from ..leases.leases_json import drain_to_json
from ..leases.replies import LeasesSnapshot
from ..leases.values import identity_key
from ..logs.lines import timestamp
from ..plugins.devices import OTHER_DEVICE, DeviceStatus, InstanceStatus, ResourceStatus
from ..status.json import Json
from ..text import encodable


def _since(moment: float | None, now: float, unix: float) -> tuple[float | None, str | None]:
    """Return how many seconds ago ``moment`` was, and its wall clock time."""
    if moment is None:
        return None, None
    age = max(0.0, now - moment)
    return round(age, 6), timestamp(unix - age)


def _text(text: str | None) -> str | None:
    return None if text is None else encodable(text)


def device_to_json(device: DeviceStatus, now: float, unix: float) -> dict[str, Json]:
    """Return the JSON form of a device. ``now`` is Trio's clock, and ``unix`` the wall clock at the same moment."""
    age, since = _since(device.since, now, unix)
    return {
        "id": encodable(device.id),
        "health": encodable(device.health),
        "healthy": device.healthy,
        "age": age,
        "since": since,
        "numa": list(device.numa),
    }


class LeaseMarks:
    """What leases add to the JSON of devices."""

    def __init__(self, leases: LeasesSnapshot) -> None:
        """Take the leases, the pools and the drains."""
        self._pools = leases.pools
        self._drains = leases.drains
        self._shown = {target: drain_to_json(drain) for target, drain in leases.drains.items()}
        self._withheld = leases.withheld is not None
        #: What each static device was when it was given, and the names by which it is leased. Its shares have one name.
        self._given: dict[str, str] = {}
        self._names = defaultdict[str, set[str]](set)
        for lease in leases.leases:
            for key, identity in (lease.answer.identities if lease.answer is not None else {}).items():
                self._given[key] = identity
                self._names[identity].add(key.partition("::")[0])

    def of(self, resource: ResourceStatus) -> dict[str, dict[str, Json]]:
        """Return the fields of the devices of ``resource`` that have any, by id.

        A device has its ``pool``, and as ``drained`` the drain that keeps it out of service. A static device is its
        node, whatever its id: one whose id is leased for another node is unhealthy, and one that is leased by another
        id is ``withheld``. All are after a loss of the state.
        """
        pools = [pool for pool in self._pools if pool.resource == resource.name]
        found: dict[str, dict[str, Json]] = {}
        for device in resource.listed.devices.values():
            key = identity_key(resource.name, device.id)
            pool = next((pool.name for pool in pools if pool.has(device.id)), None)
            drain = drain_of(self._drains, resource.name, device.id)
            fields: dict[str, Json] = {} if drain is None else {"drained": self._shown[drain.target]}
            fields |= {} if pool is None else {"pool": encodable(pool)}
            others = self._names.get(device.identity, set()) - {key.partition("::")[0]}
            if self._given.get(key, device.identity) != device.identity:
                fields |= {"health": OTHER_DEVICE, "healthy": False}
            elif others:
                fields["withheld"] = f"it is leased as {encodable(min(others))}"
            elif self._withheld:
                fields["withheld"] = "all devices are withheld"
            if fields:
                found[device.id] = fields
        return found


def instance_to_json(instance: InstanceStatus, now: float, unix: float) -> dict[str, Json]:
    """Return the JSON form of a device plugin."""
    last_list_ago, last_list = _since(instance.last_list, now, unix)
    _, lost_since = _since(instance.lost_since, now, unix)
    return {
        "socket": encodable(instance.socket),
        "generation": instance.generation,
        "endpoint": encodable(instance.endpoint),
        "source": encodable(instance.source),
        "active": instance.active,
        "pre_start_required": instance.options.pre_start_required,
        "get_preferred_allocation_available": instance.options.get_preferred_allocation_available,
        "lists": instance.lists,
        "last_list": last_list,
        "last_list_ago": last_list_ago,
        "devices": instance.devices,
        "healthy": instance.healthy,
        "lost_since": lost_since,
        "reason": _text(instance.reason),
        "warning": _text(instance.warning),
    }


def resource_to_json(resource: ResourceStatus, now: float, unix: float) -> dict[str, Json]:
    """Return the JSON form of a resource without its devices."""
    age, since = _since(resource.since, now, unix)
    return {
        "resource": encodable(resource.name),
        "state": resource.state.value,
        "reason": _text(resource.reason),
        "age": age,
        "since": since,
        "goes_in": None if resource.until is None else round(max(0.0, resource.until - now), 6),
        "capacity": resource.capacity,
        "allocatable": resource.allocatable,
        "last_capacity": resource.last_capacity,
        "plugin": _text(resource.socket),
        "plugins": [instance_to_json(instance, now, unix) for instance in resource.instances],
    }


#: How many unhealthy devices the description of a plugin lists.
NAMED = 8


def described_to_json(
    resource: ResourceStatus, socket: str, generation: int, now: float, unix: float
) -> dict[str, Json] | None:
    """Return the description of one device plugin; None if it is not a plugin of ``resource``.

    Unhealthy devices are included if the plugin's list is the one that counts.
    """
    instance = next(
        (instance for instance in resource.instances if (instance.socket, instance.generation) == (socket, generation)),
        None,
    )
    if instance is None:
        return None
    unhealthy = [device for device in resource.devices() if not device.healthy] if resource.socket == socket else []
    return instance_to_json(instance, now, unix) | {
        "resource": encodable(resource.name),
        "state": resource.state.value,
        "standby": sum(not followed.active for followed in resource.instances),
        "unhealthy": [device_to_json(device, now, unix) for device in unhealthy[:NAMED]],
    }
