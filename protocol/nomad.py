"""What is said to Nomad about the devices of a pool, and about a lease of some of them. Nothing here waits.

Nomad names a device by vendor, type, name and id, but a reservation names ids alone. So where a pool has devices of
several resources, each id has its resource before it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from .devices import Device, ResourceState, ResourceStatus
from .leases.forms import CDI_ANNOTATION, variables
from .leases.values import Answer, Lease, Pool
from .proto import nomad_device_pb2 as pb
from .text import encodable
from .values import value

#: An id that is the address of the device on the PCI bus, as plugins for network functions have it.
_PCI: Final = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
#: Why devices are unhealthy of which plugind has said nothing yet.
NOT_HEARD: Final = "plugind has not said yet which devices there are"
#: A device as Nomad names it: vendor, type, name and id.
Instance = tuple[str, str, str, str]


class NomadError(Exception):
    """Nomad asks for what it cannot get; the text says why."""


@value
class Listed:
    """What is known of the devices of one resource that are in the pool."""

    #: Those of the last list.
    devices: tuple[Device, ...] = ()
    #: Why none of them can be used now; None if they can.
    away: str | None = NOT_HEARD
    #: Why plugind calls them unhealthy, where the plugin did not.
    reason: str | None = None
    #: By id, why a device cannot be Nomad's now: somebody else has leased it.
    taken: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def but_away(self, why: str) -> Listed:
        """Return the same devices, none of which can be used now."""
        return Listed(self.devices, why, taken=self.taken)


def listed(pool: Pool, before: Listed, found: ResourceStatus) -> Listed:
    """Return what is known after plugind has told of the resource of ``pool``.

    A plugin that is not there takes no device away: to Nomad, a device that has gone and comes back is another one.
    """
    if found.state in (ResourceState.LISTED, ResourceState.LOST):
        devices = tuple(device for device in found.listed.devices.values() if pool.has(device.id))
        return Listed(devices, None, found.reason, before.taken)
    return before.but_away(found.reason or f"the resource is {found.state}")


def taken(resource: str, leases: Iterable[Lease]) -> Mapping[str, str]:
    """Return the devices of a resource that these leases have, each with words that say so.

    A reservation of such a device would fail, and a task whose reservation fails has failed for good.
    """
    return {
        device: f"somebody else has leased it: user {it.uid}, by the lease {it.id}"
        for it in leases
        for device in it.devices.get(resource, ())
    }


def fingerprint(pools: Sequence[Pool], offered: Mapping[str, Listed]) -> pb.FingerprintResponse:
    """Return all devices of the pools, in groups of one resource each, with the health of each."""
    groups = [_group(pool, offered[pool.resource], several=len(pools) > 1) for pool in pools]
    return pb.FingerprintResponse(device_group=[group for group in groups if group.devices])


def _group(pool: Pool, offered: Listed, *, several: bool) -> pb.DeviceGroup:
    vendor, kind, name = _names(pool.resource)
    devices = [_detected(device, offered, _id(pool, device.id, several=several)) for device in offered.devices]
    return pb.DeviceGroup(vendor=vendor, device_type=kind, device_name=name, devices=devices)


def _names(resource: str) -> tuple[str, str, str]:
    vendor, _, kind = resource.partition("/")
    return vendor, kind, kind


def _id(pool: Pool, device: str, *, several: bool) -> str:
    return encodable(f"{pool.resource}={device}" if several else device)


def instances(pools: Sequence[Pool], devices: Mapping[str, Iterable[str]]) -> frozenset[Instance]:
    """Return the devices of these resources, by Nomad's names, that are in the pools."""
    return frozenset(
        (*_names(pool.resource), _id(pool, device, several=len(pools) > 1))
        for pool in pools
        for device in devices.get(pool.resource, ())
    )


def _detected(device: Device, offered: Listed, name: str) -> pb.DetectedDevice:
    place = pb.DeviceLocality(pci_bus_id=device.id) if _PCI.fullmatch(device.id) else None
    why = "" if _usable(device, offered) else _health(device, offered)
    return pb.DetectedDevice(ID=name, healthy=not why, health_description=why, hw_locality=place)


def _usable(device: Device, offered: Listed) -> bool:
    return offered.away is None and device.healthy and device.id not in offered.taken


def _health(device: Device, offered: Listed) -> str:
    """Return the health in words."""
    if offered.away is not None:
        return encodable(offered.away)
    if device.healthy and device.id in offered.taken:
        return encodable(offered.taken[device.id])
    word = device.health or "the plugin says nothing of its health"
    return encodable(word if device.healthy or offered.reason is None else f"{word}: {offered.reason}")


def statistics(pools: Sequence[Pool], offered: Mapping[str, Listed], unix: float) -> pb.StatsResponse:
    """Return the health of each device, and how many of its resource are healthy, at the time ``unix``."""
    return pb.StatsResponse(
        groups=[_statistics(pool, offered[pool.resource], unix, several=len(pools) > 1) for pool in pools]
    )


def _statistics(pool: Pool, offered: Listed, unix: float, *, several: bool) -> pb.DeviceGroupStats:
    vendor, kind, name = _names(pool.resource)
    healthy = sum(_usable(device, offered) for device in offered.devices)
    counts = f"{healthy} of {len(offered.devices)} devices are healthy"
    when = pb.Timestamp(seconds=int(unix), nanos=int(unix % 1 * 1e9))
    stats = {
        _id(pool, device.id, several=several): pb.DeviceStats(
            summary=pb.StatValue(string_val=_health(device, offered), desc=counts), timestamp=when
        )
        for device in offered.devices
    }
    return pb.DeviceGroupStats(vendor=vendor, type=kind, name=name, instance_stats=stats)


def chosen(pools: Sequence[Pool], names: Iterable[str]) -> tuple[Pool, tuple[str, ...]]:
    """Return of which resource Nomad has chosen devices by these names, and their ids.

    Raises:
      NomadError: if there are none, or one is named twice or has no name, or they are of several resources, or of one
        that is in no pool.
    """
    found = [_chosen(pools, name) for name in names]
    if not found:
        raise NomadError("a reservation names no device")
    resources = {pool.resource: pool for pool, _ in found}
    if len(resources) > 1:
        raise NomadError(f"a reservation names devices of several resources: {', '.join(sorted(resources))}")
    ids = tuple(device for _, device in found)
    # Before anything is released for it.
    if "" in ids or len(set(ids)) < len(ids):
        raise NomadError("a reservation names a device twice, or one without a name")
    return found[0][0], ids


def _chosen(pools: Sequence[Pool], name: str) -> tuple[Pool, str]:
    if len(pools) == 1:
        return pools[0], name
    resource, _, device = name.partition("=")
    for pool in pools:
        if pool.resource == resource:
            return pool, device
    raise NomadError(f"{name} is no device of this plugin")


def overlapping(leases: Iterable[Lease], prefix: str, resource: str, ids: Iterable[str]) -> list[str]:
    """Return the ids of the leases, among those whose ids begin with ``prefix``, that have or await these devices.

    Nomad has given one of these to a new task, so the earlier one has ended: it tells nobody of the end of a task.
    """
    wanted = set(ids)
    return [
        it.id
        for it in leases
        if it.id.startswith(prefix)
        and any(asked.resource == resource for asked in it.request.wanted)
        and wanted.intersection(it.request.ids)
    ]


def reservation(lease: Lease) -> pb.ContainerReservation:
    """Return what a task is to be given for ``lease``. Annotations are left out, as they change nothing in a task.

    Raises:
      NomadError: if the plugin has named CDI devices, for which Nomad has no place.
    """
    answer = lease.answer or Answer()
    if answer.cdi_devices or any(key.startswith(CDI_ANNOTATION) for key in answer.annotations):
        names = ", ".join(answer.cdi_devices) or "in annotations"
        raise NomadError(f"the device plugin has named CDI devices ({names}), which Nomad cannot give to a task")
    given = variables(lease, inside=True)
    return pb.ContainerReservation(
        envs={encodable(name): encodable(text) for name, text in given.items()},
        mounts=[
            pb.Mount(task_path=it.container_path, host_path=it.host_path, read_only=it.read_only)
            for it in answer.mounts
        ],
        devices=[
            pb.DeviceSpec(task_path=it.container_path, host_path=it.host_path, permissions=it.permissions)
            for it in answer.nodes
        ],
    )
