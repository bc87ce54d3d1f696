"""What the JSON of the status socket says is read as the values that were written."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from plugind.protocol.client.status_values import StatusFormError, plugin_from_json, resource_from_json
from plugind.protocol.devices.json import device_to_json, resource_to_json
from plugind.protocol.plugins.devices import (
    HEALTHY,
    Device,
    DeviceList,
    DeviceOptions,
    InstanceStatus,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import HistoryEntry, PluginStatus, StateName
from plugind.protocol.status.json import described_to_json, plugin_to_json
from plugind.protocol.words import Step

NOW = 1_700_000_000.5
#: Each field has a value of its own.
PLUGIN = PluginStatus(
    socket="/r/red.sock",
    root="/r",
    generation=7,
    state=StateName.REGISTERED,
    since=NOW - 4.25,
    reason="why",
    attempt=3,
    next_try=NOW + 8.5,
    type="CSIPlugin",
    name="red.example.com",
    endpoint="/r/red-csi.sock",
    versions=("1.0.0", "1.1.0"),
    registered_in=0.125,
    active=True,
    warnings=("deprecated",),
    uid=1000,
    pid=991,
    cause="cause",
    history=(HistoryEntry(NOW - 9.0, StateName.WAITING, "dial", 2, "refused"),),
    serving=False,
    not_serving="it has ended",
    not_serving_since=NOW - 1.5,
    called=True,
    owner=1001,
    health=Health.UNHEALTHY,
    health_reason="too hot",
    health_since=NOW - 2.5,
    facts=(("firmware", "7"),),
    failed_checks=4,
    last_known=True,
    steps=((Step.DIAL, 0.25), (Step.NOTIFY, 0.5)),
)
#: Its name is claimed.
TRIED = attrs.evolve(
    PLUGIN,
    state=StateName.VALIDATING,
    step=Step.CLAIM,
    history=(HistoryEntry(NOW - 9.0, StateName.DIALING, None, 1, None, Step.DIAL),),
)
GPU = ResourceStatus(
    name="vendor.com/gpu",
    state=ResourceState.LISTED,
    since=NOW - 60.0,
    reason="r",
    until=NOW + 300.0,
    instances=(
        InstanceStatus(
            "/r/gpu.sock",
            3,
            "/r/gpu.sock",
            "socket /r/gpu.sock",
            DeviceOptions(pre_start_required=True),
            active=True,
            lists=2,
            last_list=NOW - 5.0,
            devices=2,
            healthy=1,
            lost_since=NOW - 1.0,
            reason="left",
            warning="w",
        ),
    ),
    socket="/r/gpu.sock",
    listed=DeviceList([Device("GPU-0", HEALTHY, (0, 1)), Device("GPU-1", "Unhealthy")]),
    changed={"GPU-0": NOW - 3.0, "GPU-1": NOW - 2.0},
    last_capacity=4,
)


def sent(content: object) -> Any:
    return json.loads(json.dumps(content))


def resource_json(resource: ResourceStatus) -> dict[str, Any]:
    devices = [device_to_json(device, NOW, NOW) for device in resource.devices()]
    content: dict[str, Any] = sent(resource_to_json(resource, NOW, NOW) | {"devices": devices})
    return content


@pytest.mark.parametrize("plugin", [PLUGIN, TRIED, PluginStatus("/r/a.sock", "/r", 1, StateName.DIALING, NOW)])
def test_a_plugin_is_read_as_it_was_written(plugin: PluginStatus) -> None:
    assert plugin_from_json(sent(described_to_json(plugin, NOW, NOW))) == plugin
    without = attrs.evolve(plugin, facts=(), history=())
    assert plugin_from_json(sent(plugin_to_json(plugin, NOW, NOW))) == without


def test_each_field_of_a_plugin_is_compared() -> None:
    """A field that is new has a value of its own in the test above."""
    default = PluginStatus("", "", 0, StateName.GONE, 0.0)
    assert [name for name in attrs.asdict(TRIED) if getattr(TRIED, name) == getattr(default, name)] == []


@pytest.mark.parametrize("resource", [GPU, ResourceStatus("vendor.com/nic", ResourceState.AWAITED, NOW)])
def test_a_resource_is_read_as_it_was_written(resource: ResourceStatus) -> None:
    read = resource_from_json(resource_json(resource))
    assert attrs.asdict(read, recurse=False) == attrs.asdict(resource, recurse=False)
    assert [*read.devices()] == [*resource.devices()]


def test_the_devices_of_a_lost_plugin_are_unhealthy() -> None:
    read = resource_from_json(resource_json(attrs.evolve(GPU, state=ResourceState.LOST, lost_since=NOW - 1.0)))
    assert (read.capacity, read.allocatable) == (2, 0)
    assert [device.since for device in read.devices()] == [NOW - 1.0, NOW - 2.0]


def test_what_a_newer_daemon_says_beside_it_is_ignored_and_what_an_older_one_does_not_say_has_a_default() -> None:
    content = sent(plugin_to_json(PLUGIN, NOW, NOW))
    for key in ("health", "health_reason", "health_since", "failed_checks", "owner", "source", "last_known", "cause"):
        del content[key]
    read = plugin_from_json(content | {"colour": "red"})
    assert (read.name, read.health, read.called) == ("red.example.com", None, False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "asleep"}, "'asleep' is not a valid StateName"),
        ({"socket": 1}, "1 is no str"),
        ({"since": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        ({"generation": True}, "True is no int"),
    ],
)
def test_what_is_no_plugin_is_a_clear_error(change: dict[str, Any], why: str) -> None:
    with pytest.raises(StatusFormError, match=rf"^it is no plugin that this version of plugind knows: {why}"):
        plugin_from_json(sent(plugin_to_json(PLUGIN, NOW, NOW)) | change)


@pytest.mark.parametrize("content", [None, [], {}, {"resource": "a"}])
def test_what_is_no_resource_is_a_clear_error(content: object) -> None:
    with pytest.raises(StatusFormError, match=r"^it is no resource that this version of plugind knows: "):
        resource_from_json(content)
