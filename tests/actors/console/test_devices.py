"""The words of ``plugind devices``, of ``plugind wait --resource`` and of the description of a device plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.console.answers import Plugin
from plugind.actors.console.device_leases import add_leases
from plugind.actors.console.devices import drain_lines, lines, not_healthy, why_none
from plugind.actors.console.ending import EXIT_BUSY, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, CommandError
from plugind.actors.console.wait_for_devices import WaitingForDevices, WantedDevices, strictest, wanted
from plugind.protocol.devices.json import device_to_json, resource_to_json
from plugind.protocol.leases.drains import Drain, DrainTarget
from plugind.protocol.leases.leases_json import drain_to_json
from plugind.protocol.plugins.devices import (
    Device,
    DeviceList,
    DeviceOptions,
    InstanceStatus,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.status.json import Json
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.lease_server import answer
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_allocate import LEASE, process

GPU = "vendor.com/gpu"
NOW = 100.0
LISTED = DeviceList([Device("GPU-0", numa=(0,)), Device("GPU-1", "Sick", (0, 1)), Device("a-longer-id\x1b[31m")])
PLUGIN = InstanceStatus(
    "/d/gpu.sock", 3, "/d/gpu.sock", "socket /d/gpu.sock", DeviceOptions(get_preferred_allocation_available=True),
    active=True, lists=12, last_list=96.0, devices=3, healthy=2,
)  # fmt: skip
RESOURCE = ResourceStatus(
    GPU, ResourceState.LISTED, 40.0, None, None, (PLUGIN, attrs.evolve(PLUGIN, socket="/d/b", active=False)),
    "/d/gpu.sock", LISTED, {"GPU-0": 40.0, "GPU-1": 90.0, "a-longer-id\x1b[31m": 40.0},
)  # fmt: skip
LOST = attrs.evolve(RESOURCE, state=ResourceState.LOST, reason="the stream ended", until=310.0, lost_since=95.0)
DRAIN = Drain(DrainTarget(GPU), 0, UNIX - 60, "the fan is\x1b broken", UNIX)
AWAITED = ResourceStatus("v.com/a", ResourceState.AWAITED, 0.0, "no device plugin since the start", 300.0)


def shown(resource: ResourceStatus) -> dict[str, Json]:
    devices = [device_to_json(device, NOW, UNIX) for device in resource.devices()]
    return resource_to_json(resource, NOW, UNIX) | {"devices": devices}


def leased(resource: ResourceStatus, lease_id: str = LEASE.id) -> dict[str, Any]:
    """Show a resource of which a lease has a device, and one that is not listed."""
    found: dict[str, Any] = shown(resource)
    add_leases([found], [attrs.evolve(LEASE, id=lease_id, devices={GPU: ("GPU-0", "GPU-9"), "v.com/n": ("GPU-8",)})])
    return found


def withheld(resource: dict[str, Any]) -> dict[str, Any]:
    for device in resource["devices"]:
        device["withheld"] = True
    return resource


def out_of_service() -> dict[str, Any]:
    devices = [device_to_json(each, NOW, UNIX) | {"drained": drain_to_json(DRAIN)} for each in RESOURCE.devices()]
    return resource_to_json(RESOURCE, NOW, UNIX) | {"devices": devices}


@pytest.mark.usefixtures("in_berlin")
def test_what_devices_prints() -> None:
    """Fault 91; TestUpdateAllocatedResourcesStatus: what a plugin says is escaped, and quoted where that is needed."""
    devices = DeviceList([Device("a", "Healthy "), Device("b", ""), Device(" c", "\u00a0Healthy"), Device("-", '"')])
    odd = attrs.evolve(RESOURCE, listed=devices, changed=dict.fromkeys(devices.devices, 40.0))
    empty = attrs.evolve(RESOURCE, listed=DeviceList([]), changed={})
    long = leased(RESOURCE, "nightly-2026-11-22-build-of-the-whole-tree-on-all-machines")
    plugins: list[Plugin] = [
        {"socket": "/d/a", "name": GPU, "health": "unhealthy", "health_reason": "no answer within 3s\x1b"},
        {"socket": "/d/b", "name": "v.com/b", "health": "unhealthy", "health_reason": "no device list after 10s"},
        {"socket": "/d/new", "name": "v.com/b", "health": "unknown", "health_reason": None},
        {"socket": "/d/c", "name": GPU, "health": "healthy", "health_reason": "a warning"},
        {"socket": "/d/d", "name": None, "health": None},
    ]
    broken: Plugin = {"root": "/r", "watching": "unavailable", "reason": "/r is missing"}
    snapshots.check(
        "devices",
        {
            "resources": lines([shown(RESOURCE), shown(LOST), shown(AWAITED)]),
            "what is empty or ends with a space, listed and lost": lines(
                [shown(odd), shown(attrs.evolve(odd, state=ResourceState.LOST, lost_since=95.0))]
            ),
            "leases": lines([leased(RESOURCE), leased(LOST)]),
            "all devices are withheld": lines([withheld(leased(RESOURCE))]),
            "no device is listed": lines([shown(empty), shown(empty) | {"reason": "no node matches /dev/a*"}]),
            "drained": [*lines([out_of_service()]), *drain_lines([drain_to_json(DRAIN), {"of": "another version"}])],
            **{f"a long lease on {width} columns": lines([long], width) for width in (160, 80, 60, 20)},
            "a long lease on 58 columns, with all devices listed": lines([long | {"missing": []}], 58),
            "plugins that are not healthy": not_healthy(plugins),
            f"those of {GPU}": not_healthy(plugins, GPU),
            "without devices": why_none([]),
            "without devices, with a root for calls": why_none([{"root": "/dp", "watching": "serving"}]),
            "without devices, observing": why_none([broken], observes=True),
        },
    )
    assert leased(LOST)["missing"] == [], "nobody lists its devices"


@pytest.mark.usefixtures("in_berlin")
def test_why_wait_does_not_end() -> None:
    refused = {"v.com/a": "another", GPU: REFUSED}
    said = [
        attrs.evolve(waiting(*resources), refused=refusals).why_not(WantedDevices(GPU, 3))
        for refusals in ({}, refused)
        for resources in ((), (RESOURCE,), (LOST,))
    ]
    said.append(attrs.evolve(waiting(RESOURCE), unhealthy={GPU: "GPU-1 (Unhealthy)"}).why_not(WantedDevices(GPU, 3)))
    silent = WaitingForDevices([WantedDevices(GPU)], CommandError("nobody answers", EXIT_UNREACHABLE))
    assert silent.exit_code == EXIT_UNREACHABLE
    snapshots.check("wait-for-devices", {"why not": [*said, silent.why_not(WantedDevices(GPU))]})


# --- wait -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GPU, WantedDevices(GPU)),
        (f"{GPU}=2", WantedDevices(GPU, 2)),
        ("v.com/a=1000000", WantedDevices("v.com/a", 1_000_000)),
    ],
)
def test_what_is_waited_for(given: str, expected: WantedDevices) -> None:
    assert wanted(given) == expected


def test_of_two_numbers_for_one_resource_the_greater_one_counts() -> None:
    given = [WantedDevices(GPU, 2), WantedDevices("v.com/a"), WantedDevices(GPU, 4), WantedDevices(GPU, 3)]
    assert strictest(given) == [WantedDevices(GPU, 4), WantedDevices("v.com/a")]


# --- what is said of nothing ------------------------------------------------------------------------------------------


REFUSED = "the last Register call for it, by pid 812, was refused 12 s ago: it is no good"


def waiting(*resources: ResourceStatus, number: int = 3, has_list: bool = True) -> WaitingForDevices:
    made = WaitingForDevices([WantedDevices(GPU, number)], None, has_list=has_list)
    for resource in resources:
        made.note(resource_to_json(resource, NOW, UNIX))
    return made


def test_it_is_done_when_there_are_so_many_healthy_devices() -> None:
    assert waiting(RESOURCE, number=2).exit_code == EXIT_OK
    assert waiting(RESOURCE, number=3).exit_code == EXIT_FAILED
    assert waiting(RESOURCE, LOST, number=1).exit_code == EXIT_FAILED
    gone = ResourceStatus(GPU, ResourceState.GONE, NOW)
    assert waiting(RESOURCE, gone, number=1).exit_code == EXIT_FAILED
    assert waiting(has_list=False).exit_code == EXIT_BUSY


def test_a_user_who_may_only_lease_sees_the_devices(tmp_path: Path) -> None:
    """Plugins and health are for others: what they would add is left out."""
    forbidden = answer(403, {"error": "you may only lease"})
    devices = answer(200, {"resources": [shown(RESOURCE)], "problem": None})
    answers = [devices, answer(200, {"withheld": None, "problem": None, "leases": []}), forbidden, answer(404, {})]
    (tmp_path / "none").mkdir()
    done = process(tmp_path, answers, "devices")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "3 devices of 1 resource: 2 healthy, 1 unhealthy"
    none = process(
        tmp_path / "none", [answer(200, {"resources": []}), answers[1], *[forbidden] * 2, answer(404, {})], "devices"
    )
    assert (none.code, none.err) == (0, "")
    assert none.out.startswith("no devices: ")
