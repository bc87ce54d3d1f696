"""``plugind inventory``: a node in one JSON document; ``protocol.status.inventory_forms`` has its form."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping

from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.leases.values import Lease
from ...protocol.logs.lines import timestamp
from ...protocol.status.json import Json
from ...protocol.text import encodable
from ..io.process_identity import purpose_of
from .answers import Daemon, NotAllowedError, Plugin, add_daemon_arguments, daemon, decoded, plugins_in, resources_in
from .client import fetch
from .device_leases import by_device, leases_of
from .devices import devices_in
from .ending import EXIT_OK, say
from .lease_words import user

_EPILOG = """examples:
  plugind inventory >node.json
  plugind inventory | jq -r '.resources[].devices[] | "\\(.id) \\(.health) \\(.holder.user)"'

The document has the node, the version, the plugins, and each device with its health, its holder and its drain.
inventory.schema.json in the package is its schema. A user who may only lease gets it without plugins. docs/fleet.md
says how to collect the documents of many nodes, and what to ask of them.

exit codes: 0 ok, 2 usage, 69 no daemon answers, 75 it is busy"""
#: The fields of a plugin in ``/plugins`` that the document has.
_OF_PLUGIN = ("type", "name", "socket", "endpoint", "versions", "state", "reason", "since", "serving")
_HEALTH = ("health", "health_reason")
#: A leased device that no plugin lists, and a resource that nobody offers.
_UNLISTED: Plugin = {"health": "not listed"}
_GONE: Plugin = {"state": "gone", "reason": "nobody offers it, and a lease has devices of it"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind inventory``."""
    parser.description = "Print the plugins and the devices of a node, and who has these, as one JSON document."
    parser.epilog = _EPILOG
    parser.add_argument("--node", metavar="NAME", help="what the document calls the node (default: the host's name)")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the document; return the exit code."""
    say(json.dumps(_inventory(daemon(args), args.node or os.uname().nodename)) + "\n")
    return EXIT_OK


def _inventory(asked: Daemon, node: str) -> Plugin:
    answer = fetch(asked, "/v1/devices")
    resources, found = resources_in(answer), leases_of(asked)
    version: Json = None
    plugins: list[Json] | None = None
    try:
        version = decoded(fetch(asked, "/")).get("version")
        plugins = [{key: plugin.get(key) for key in (*_OF_PLUGIN, *_HEALTH)} for plugin in _plugins(asked)]
    except NotAllowedError:
        pass  # Users who may only lease see devices and leases, and the document says null.
    problems: list[Json] = [found.withheld, found.problem, decoded(answer).get("problem")]
    return {
        "node": encodable(node),
        "time": timestamp(time.time()),
        "version": version,
        "problems": [problem for problem in problems if problem is not None],
        "plugins": plugins,
        "resources": [*_resources(resources, found)],
    }


def _plugins(asked: Daemon) -> list[Plugin]:
    return sorted(plugins_in(fetch(asked, "/plugins")), key=lambda plugin: str(plugin.get("socket")))


def _resources(resources: list[Plugin], found: LeasesSnapshot) -> Iterator[Plugin]:
    """Yield each resource with its devices; also those that are only leased."""
    unlisted = by_device(found.leases)
    for resource in resources:
        name = str(resource.get("resource"))
        devices = [
            _device(device, unlisted.pop((name, str(device.get("id"))), None)) for device in devices_in(resource)
        ]
        others = [key for key in unlisted if key[0] == name]
        devices += [_device({**_UNLISTED, "id": key[1]}, unlisted.pop(key)) for key in others]
        yield _resource(name, resource, devices)
    for name in dict.fromkeys(name for name, _ in unlisted):
        of_name = {key[1]: lease for key, lease in unlisted.items() if key[0] == name}
        yield _resource(name, _GONE, [_device({**_UNLISTED, "id": each}, lease) for each, lease in of_name.items()])


def _resource(name: str, resource: Plugin, devices: list[Plugin]) -> Plugin:
    return {
        "resource": name,
        "state": resource.get("state"),
        "reason": resource.get("reason"),
        "capacity": resource.get("capacity", 0),
        "allocatable": resource.get("allocatable", 0),
        "devices": [*devices],
    }


def _device(device: Mapping[str, Json], lease: Lease | None) -> Plugin:
    return {
        "id": device.get("id"),
        "health": device.get("health"),
        "healthy": device.get("healthy") is True,
        "since": device.get("since"),
        "holder": None if lease is None else _holder(lease),
        "drained": device.get("drained"),
        "withheld": device.get("withheld"),
        "attributes": {"numa": device.get("numa", []), "pool": device.get("pool")},
    }


def _holder(lease: Lease) -> Plugin:
    return {
        "lease": encodable(lease.id),
        "state": lease.state.value,
        "user": user(lease.for_uid),
        "uid": lease.for_uid,
        "purpose": encodable(purpose_of(lease)),
        "since": timestamp(lease.created),
    }
