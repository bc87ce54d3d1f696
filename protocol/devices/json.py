"""The JSON forms of resources and devices in the status socket and the commands."""

from __future__ import annotations

from ..leases.drains import Drain, drain_to_json
from ..logs.lines import timestamp
from ..plugins.devices import DeviceStatus, InstanceStatus, ResourceStatus
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


def device_to_json(device: DeviceStatus, now: float, unix: float, drain: Drain | None = None) -> dict[str, Json]:
    """Return the JSON form of a device. ``now`` is Trio's clock, and ``unix`` the wall clock at the same moment.

    A device that is out of service has the ``drain``.
    """
    age, since = _since(device.since, now, unix)
    return {
        "id": encodable(device.id),
        "health": encodable(device.health),
        "healthy": device.healthy,
        "age": age,
        "since": since,
        "numa": list(device.numa),
        **({} if drain is None else {"drained": drain_to_json(drain)}),
    }


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
