"""The words of ``plugind devices``, of ``plugind wait --resource`` and of the description of a device plugin."""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

import attrs
import pytest

from plugind.actors.console import commands
from plugind.actors.console.answers import Plugin
from plugind.actors.console.device_description import described_resource, device_lines
from plugind.actors.console.device_leases import add_leases, add_leases_of_plugin, leases_line
from plugind.actors.console.devices import lines, not_healthy, why_none
from plugind.actors.console.ending import EXIT_BUSY, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, CommandError
from plugind.actors.console.wait_for_devices import WaitingForDevices, WantedDevices, strictest, wanted
from plugind.protocol.devices.json import described_to_json, device_to_json, resource_to_json
from plugind.protocol.plugins.devices import (
    Device,
    DeviceList,
    DeviceOptions,
    InstanceStatus,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.status.json import Json
from plugind.tests.actors.console.test_allocate import LEASE

GPU = "vendor.com/gpu"
NOW, UNIX = 100.0, 1_700_037_000.0
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
AWAITED = ResourceStatus("v.com/a", ResourceState.AWAITED, 0.0, "no device plugin since the start", 300.0)


def shown(resource: ResourceStatus) -> dict[str, Json]:
    devices = [device_to_json(device, NOW, UNIX) for device in resource.devices()]
    return resource_to_json(resource, NOW, UNIX) | {"devices": devices}


def columns(resource: ResourceStatus) -> list[list[str]]:
    return [line.split() for line in lines([shown(resource)])]


def test_each_device_is_one_aligned_line_and_the_last_one_counts() -> None:
    table = list(lines([shown(RESOURCE)]))
    assert [line.split()[0] for line in table] == ["RESOURCE", GPU, GPU, GPU, "3"]
    assert {line.index("/d/gpu.sock") for line in table[1:4]} == {table[0].index("PLUGIN")}
    assert columns(RESOURCE)[2][1:3] == ["GPU-1", "Sick"]
    assert columns(RESOURCE)[2][-3:] == ["0,1", "-", "/d/gpu.sock"]
    assert columns(RESOURCE)[3][-3:] == ["-", "-", "/d/gpu.sock"]
    assert r"a-longer-id\x1b[31m" in table[3], "what a plugin says never reaches the terminal as it is (fault 91)"
    assert table[4] == "3 devices of 1 resource: 2 healthy, 1 unhealthy"


def test_on_a_narrow_terminal_the_columns_without_room_are_left_out() -> None:
    """Every row wrapped at 80 columns, because of the path of the plugin."""
    resource = shown(attrs.evolve(RESOURCE, socket="/var/lib/kubelet/device-plugins/nvidia-gpu.sock"))
    wide = list(lines([resource]))
    assert list(lines([resource], max(map(len, wide)))) == wide
    assert [next(lines([resource], width)).split() for width in (80, 60, 20)] == [
        ["RESOURCE", "ID", "HEALTH", "SINCE", "NUMA", "LEASE"],
        ["RESOURCE", "ID", "HEALTH", "LEASE"],
        ["RESOURCE", "ID", "HEALTH"],
    ]
    assert max(map(len, list(lines([resource], 80))[:4])) <= 80


def test_a_plugin_that_is_not_healthy_has_a_line() -> None:
    """Its devices stay as they are, and nothing told of one that hangs."""
    plugins: list[Plugin] = [
        {"socket": "/d/a", "name": GPU, "health": "unhealthy", "health_reason": "no answer within 3s\x1b"},
        {"socket": "/d/b", "name": "v.com/b", "health": "unhealthy", "health_reason": "no device list after 10s"},
        {"socket": "/d/new", "name": "v.com/b", "health": "unknown", "health_reason": None},
        {"socket": "/d/c", "name": GPU, "health": "healthy", "health_reason": "a warning"},
        {"socket": "/d/d", "name": None, "health": None},
    ]
    of_gpu = r"the plugin /d/a of vendor.com/gpu is unhealthy: no answer within 3s\x1b"
    of_b = "the plugin /d/b of v.com/b is unhealthy: no device list after 10s"
    assert list(not_healthy(plugins)) == [of_gpu, of_b]
    assert list(not_healthy(plugins, GPU)) == [of_gpu]


def test_what_is_empty_or_ends_with_a_space_is_quoted() -> None:
    """``Healthy`` with a space after it is not the word for healthy, but looked like it; so it is after a loss."""
    devices = DeviceList([Device("a", "Healthy "), Device("b", ""), Device(" c", "\u00a0Healthy"), Device("-", '"')])
    since = dict.fromkeys(devices.devices, 40.0)
    odd = attrs.evolve(RESOURCE, listed=devices, changed=since)
    for resource in (odd, attrs.evolve(odd, state=ResourceState.LOST, lost_since=95.0)):
        said = [line.removeprefix(GPU).strip() for line in lines([shown(resource)])][1:5]
        assert [re.split(" {2,}", line)[:2] for line in said] == [
            ["a", '"Healthy "'],
            ["b", '""'],
            ['" c"', r'"\xa0Healthy"'],
            ["-", r'"\""'],
        ]


def test_the_description_quotes_the_id_of_an_unhealthy_device_that_ends_with_a_space() -> None:
    odd = attrs.evolve(RESOURCE, listed=DeviceList([Device("a ", "Sick")]), changed={"a ": 40.0})
    found = described_to_json(odd, "/d/gpu.sock", 3, NOW, UNIX)
    assert dict(device_lines({"device_plugin": found}))["Unhealthy"].startswith('"a " since ')


def test_a_resource_without_a_plugin_says_why_and_when_it_goes() -> None:
    table = list(lines([shown(LOST), shown(AWAITED)]))
    assert [line.split()[2] for line in table[1:5]] == ["Unhealthy", "Sick", "Unhealthy", "awaited"]
    assert table[5:] == [
        "3 devices of 2 resources: 3 unhealthy",
        "vendor.com/gpu is lost: the stream ended; it goes in 3m30s",
        "v.com/a is awaited: no device plugin since the start; it goes in 3m20s",
    ]


def test_the_description_of_a_device_plugin() -> None:
    found = described_to_json(RESOURCE, "/d/gpu.sock", 3, NOW, UNIX)
    facts = list(device_lines({"device_plugin": found}))
    assert [label for label, _ in facts] == ["Resource", "Devices", "Unhealthy", "Options", "Lists"]
    said = dict(facts)
    assert said["Resource"] == "vendor.com/gpu, active (1 standby)"
    assert said["Devices"] == "2 healthy, 1 unhealthy"
    assert said["Unhealthy"].startswith("GPU-1 since ")
    assert said["Unhealthy"].endswith(" (the API gives no reason)")
    assert (said["Options"], said["Lists"]) == ("preferred allocation", "12, last 00:00:04 ago")


def test_the_description_of_a_device_plugin_shows_a_warning_about_its_options() -> None:
    resource = attrs.evolve(RESOURCE, instances=(attrs.evolve(PLUGIN, warning="it differs\x1b"),))
    found = described_to_json(resource, "/d/gpu.sock", 3, NOW, UNIX)
    facts = list(device_lines({"device_plugin": found}))
    assert facts[3:5] == [("Options", "preferred allocation"), ("Warning", r"it differs\x1b")]


def test_the_description_of_a_standby_names_no_devices_of_the_active_one() -> None:
    found = described_to_json(RESOURCE, "/d/b", 3, NOW, UNIX)
    assert dict(device_lines({"device_plugin": found}))["Resource"] == "vendor.com/gpu, standby"
    assert [label for label, _ in device_lines({"device_plugin": found}) if label == "Unhealthy"] == []
    assert list(device_lines({})) == []


def test_the_description_of_a_plugin_that_is_lost_says_since_when_and_why() -> None:
    lost = attrs.evolve(PLUGIN, lost_since=95.0, reason="the stream ended", healthy=0)
    found = described_to_json(attrs.evolve(LOST, instances=(lost,)), "/d/gpu.sock", 3, NOW, UNIX)
    said = dict(device_lines({"device_plugin": found}))
    assert (said["Devices"], said["Lists"].partition("; lost since ")[0]) == (
        "0 healthy, 3 unhealthy",
        "12, last 00:00:04 ago",
    )
    assert said["Lists"].endswith(": the stream ended")


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


@pytest.mark.parametrize(
    "given", ["", "=2", f"{GPU}=", f"{GPU}=0", f"{GPU}=-1", f"{GPU}=x", f"{GPU}=٣", f"{GPU}=1000001", f"{GPU}=1=2"]
)
def test_what_cannot_be_waited_for(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        wanted(given)


@pytest.mark.parametrize(
    "given", ["gpu", "gpu=2", "vendor.com/", "/gpu", "Vendor.com/gpu", "kubernetes.io/cpu", "a/\x1b"]
)
def test_a_name_that_no_resource_can_have_is_wrong_usage(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It was waited for until the timeout."""
    for words in (["wait", "--resource", given], ["devices", given]):
        with pytest.raises(SystemExit) as end:
            commands.main(words)
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert "does not name a resource, such as vendor.com/gpu: " in said
        assert "\x1b" not in said


def test_of_two_numbers_for_one_resource_the_greater_one_counts() -> None:
    given = [WantedDevices(GPU, 2), WantedDevices("v.com/a"), WantedDevices(GPU, 4), WantedDevices(GPU, 3)]
    assert strictest(given) == [WantedDevices(GPU, 4), WantedDevices("v.com/a")]


# --- what is said of nothing ------------------------------------------------------------------------------------------


def test_a_resource_without_a_plugin_is_described() -> None:
    resource = attrs.evolve(AWAITED, last_capacity=4)
    said = dict(line.split(":", 1) for line in described_resource(shown(resource)).splitlines())
    assert {label: words.strip() for label, words in said.items() if label not in ("State", "Goes")} == {
        "Resource": "v.com/a",
        "Cause": "no device plugin since the start",
        "Capacity": "0 (4 before the restart)",
    }
    assert said["State"].strip().startswith("awaited for 1m40s, since ")
    assert said["Goes"].strip().startswith("in 3m20s, at ")


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        ([], ["most register by a call, for which 'plugind run --device-plugins=DIR' serves DIR/kubelet.sock"]),
        ([{"root": "/dp", "watching": "serving"}], ["they call Register on /dp/kubelet.sock"]),
    ],
)
def test_an_empty_list_says_how_device_plugins_register(roots: list[Plugin], expected: list[str]) -> None:
    first, *others = why_none(roots)
    assert first.startswith("no devices: no device plugin has registered")
    assert others == expected


def test_a_daemon_that_observes_has_no_devices_and_nothing_is_recommended_that_it_refuses() -> None:
    lost: Plugin = {"root": "/r", "watching": "unavailable", "reason": "/r is missing"}
    assert [*why_none([lost], observes=True)] == [
        "no devices: this daemon only observes plugins (--observe), and does not ask them for their devices",
        "root /r is unavailable: /r is missing",
    ]


REFUSED = "the last Register call for it, by pid 812, was refused 12 s ago: it is no good"


def test_a_refused_call_explains_why_a_resource_has_no_devices() -> None:
    for resources in ((), (AWAITED,)):
        made = waiting(*resources)
        made.refused = {"v.com/a": "another", GPU: REFUSED}
        assert made.why_not(WantedDevices(GPU, 3)).endswith(f"; {REFUSED}")
    assert described_resource(shown(AWAITED), REFUSED).endswith(f"Refused:    {REFUSED}\n")


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


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ((), "vendor.com/gpu has 0 of 3 healthy devices: no device plugin has registered for it"),
        ((RESOURCE,), "vendor.com/gpu has 2 of 3 healthy devices: its plugin lists 3 devices, of which 2 are healthy"),
        ((LOST,), "vendor.com/gpu has 0 of 3 healthy devices: it is lost: the stream ended"),
    ],
)
def test_the_reason_why_there_are_not(resources: tuple[ResourceStatus, ...], reason: str) -> None:
    assert waiting(*resources).why_not(WantedDevices(GPU, 3)).startswith(reason)


def test_a_daemon_that_does_not_answer_decides_the_exit_code() -> None:
    made = WaitingForDevices([WantedDevices(GPU)], CommandError("nobody answers", EXIT_UNREACHABLE))
    assert made.exit_code == EXIT_UNREACHABLE
    assert made.why_not(WantedDevices(GPU)) == "cannot tell whether vendor.com/gpu has 1 healthy device: nobody answers"


@pytest.mark.parametrize("words", [[], ["a", "--resource", GPU], ["--resource", GPU, "--serving"]])
def test_plugins_and_devices_are_waited_for_by_different_commands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(["wait", *words])
    assert end.value.code == 2
    assert "--resource" in capsys.readouterr().err


def test_a_device_that_is_leased_has_its_lease_and_who_has_it() -> None:
    """TestUpdateAllocatedResourcesStatus: beside the health of the device."""
    gpu: Any = shown(RESOURCE)
    devices = gpu["devices"]
    name = str(devices[0]["id"])
    lease = attrs.evolve(LEASE, devices={str(gpu["resource"]): (name,)})
    add_leases([gpu], [lease])
    assert [(device["lease"], device["leased_by"]) for device in devices[:2]] == [("a1b2", "pid 991"), (None, None)]
    shown_line = next(line for line in lines([gpu]) if f" {name} " in line)
    assert f" {devices[0]['health']} " in shown_line
    assert "  a1b2 (pid 991)" in shown_line


def test_a_device_that_is_leased_and_not_listed_any_more_has_a_line_and_is_not_counted() -> None:
    gpu: Any = shown(RESOURCE)
    lease = attrs.evolve(LEASE, devices={GPU: ("GPU-0", "GPU-9"), "vendor.com/nic": ("GPU-8",)})
    add_leases([gpu], [lease])
    assert gpu["missing"] == [{"id": "GPU-9", "lease": "a1b2", "leased_by": "pid 991"}]
    table = [*lines([gpu])]
    (line,) = (line for line in table if "no longer listed" in line)
    assert "GPU-9" in line
    assert "a1b2 (pid 991)" in line
    assert table[-1].startswith("3 devices of 1 resource")
    lost: Any = shown(LOST)
    add_leases([lost], [lease])
    assert lost["missing"] == [], "nobody lists its devices"


def test_the_lease_of_a_device_is_shortened_rather_than_left_out() -> None:
    """Its id may have 128 characters."""
    resource: dict[str, Any] = shown(RESOURCE)
    device = resource["devices"][0]
    device |= {"lease": "nightly-2026-11-22-build-of-the-whole-tree-on-all-machines", "leased_by": "pid 991"}
    rows = {width: [*lines([resource], width)] for width in (160, 100, 80, 58)}
    assert f"{device['lease']} (pid 991)" in rows[160][1]
    assert [rows[width][1].partition("Healthy")[2].split("  ")[-1] for width in (80, 58)] == [
        "nightly-2026…ll-machines (pid 991)",
        "nightl…hines",
    ]
    assert max(len(line) for line in rows[80][:4]) <= 80


def test_a_description_names_some_leases() -> None:
    plugin: Any = {"device_plugin": {"active": True, "resource": "vendor.com/gpu"}}
    many = [attrs.evolve(LEASE, id=f"l{number}", created=time.time() - 729) for number in range(9)]
    add_leases_of_plugin(plugin, [*many, attrs.evolve(LEASE, devices={"vendor.com/nic": ("n0",)})])
    line = leases_line(plugin["device_plugin"]["leases"])
    assert line.startswith("9: l0 (pid 991, GPU-0, 00:12:09), l1 (")
    assert line.endswith(", 1 more")
    assert leases_line([]) == "none"
