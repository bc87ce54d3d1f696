"""The leases of the devices that other commands show."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping

from ...protocol.leases.leases_json import LeaseJsonError, snapshot_from_json
from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.leases.values import Lease
from ...protocol.plugins.devices import ResourceState
from ...protocol.text import escaped
from .answers import Daemon, Plugin, UnknownPluginError
from .client import fetch
from .ending import CommandError
from .lease_words import owner, owner_and_user, since, user

#: How many leases a description lists.
_NAMED = 8


def leases_of(daemon: Daemon) -> LeasesSnapshot:
    """Return all leases; none of a daemon that has no leases.

    Raises:
      CommandError: if it does not answer in time.
    """
    try:
        answer = fetch(daemon, "/v1/leases")
    except UnknownPluginError:
        return LeasesSnapshot(time.time())
    try:
        return snapshot_from_json(json.loads(answer), time.time())
    except (LeaseJsonError, ValueError) as error:
        raise CommandError(f"the daemon's answer about leases cannot be understood: {error}") from error


def by_device(leases: Iterable[Lease]) -> dict[tuple[str, str], Lease]:
    """Return the lease of each leased device, by its resource and id."""
    return {(name, each): lease for lease in leases for name, ids in lease.devices.items() for each in ids}


def add_leases(resources: Iterable[Plugin], leases: Iterable[Lease]) -> None:
    """Add the lease of each device, as ``lease``, ``leased_by`` and ``user``.

    Leased devices that the plugin of a resource does not list are added as ``missing``.
    """
    held = by_device(leases)
    for resource in resources:
        devices = resource.get("devices")
        for device in devices if isinstance(devices, list) else []:
            device.update(_of_device(held.get((str(resource.get("resource")), str(device.get("id"))))))
        resource["missing"] = [*_missing(resource, held)]


def _of_device(lease: Lease | None) -> Plugin:
    if lease is None:
        return {"lease": None, "leased_by": None, "user": None}
    return {"lease": lease.id, "leased_by": owner(lease), "user": user(lease.for_uid)}


def _missing(resource: Plugin, held: Mapping[tuple[str, str], Lease]) -> Iterator[Plugin]:
    devices = resource.get("devices")
    if resource.get("state") != ResourceState.LISTED or not isinstance(devices, list):
        return
    listed = {str(device.get("id")) for device in devices}
    for (name, device), lease in held.items():
        if name == resource.get("resource") and device not in listed:
            yield {"id": device, **_of_device(lease)}


def add_leases_of_plugin(plugin: Plugin, leases: Iterable[Lease]) -> None:
    """Add the leases of a resource to the description of its active device plugin."""
    found = plugin.get("device_plugin")
    if isinstance(found, dict) and found.get("active") is True:
        found["leases"] = [*_of_resource(str(found.get("resource")), leases)]


def _of_resource(resource: str, leases: Iterable[Lease]) -> Iterator[Plugin]:
    for lease in leases:
        if resource in lease.devices:
            ids = [*lease.devices[resource]]
            yield {"id": lease.id, "owner": owner_and_user(lease), "devices": ids, "held_for": since(lease)}


def leases_line(leases: list[Plugin]) -> str:
    """Return the leases of a resource in one line: ``2: a1b2 (pid 991 of alice, GPU-0, 00:12:09), ...``."""
    if not leases:
        return "none"
    named = [_named(lease) for lease in leases[:_NAMED]]
    more = [f"{len(leases) - _NAMED} more"] if len(leases) > _NAMED else []
    return f"{len(leases)}: {', '.join([*named, *more])}"


def _named(lease: Plugin) -> str:
    devices = lease["devices"]
    words = (lease["owner"], *(devices if isinstance(devices, list) else ()), lease["held_for"])
    return f"{escaped(str(lease['id']))} ({', '.join(escaped(str(word)) for word in words)})"
