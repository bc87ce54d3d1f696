"""What an agent of Nomad is told of the devices of a pool, and of a lease."""

from __future__ import annotations

import pytest

from plugind.protocol.devices import Device, DeviceList, ResourceState, ResourceStatus
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Mount, Node, NoOwner, Pool, Request, Wanted
from plugind.protocol.nomad import (
    NOT_HEARD,
    Listed,
    NomadError,
    chosen,
    fingerprint,
    listed,
    overlapping,
    reservation,
    statistics,
    taken,
)
from plugind.protocol.proto import nomad_device_pb2 as pb

GPU, NIC = "example.com/gpu", "example.com/nic"
ONE = [Pool("nomad", GPU)]
TWO = [Pool("nomad", GPU), Pool("nomad", NIC, frozenset({"0000:3b:00.1"}))]


def status(state: ResourceState, *devices: Device, reason: str | None = None) -> ResourceStatus:
    return ResourceStatus(GPU, state, 0.0, reason=reason, listed=DeviceList(devices))


def lease(name: str, *ids: str, answer: Answer | None = None) -> Lease:
    request = Request((Wanted(GPU, len(ids)),), ids)
    return Lease(name, 0, request, NoOwner(), LeaseState.HELD, 0.0, {GPU: ids}, answer)


def test_devices_are_in_a_group_by_vendor_and_type_with_their_health() -> None:
    offered = {GPU: Listed((Device("gpu-0"), Device("gpu-1", "Overheated")), None)}
    assert fingerprint(ONE, offered) == pb.FingerprintResponse(
        device_group=[
            pb.DeviceGroup(
                vendor="example.com",
                device_type="gpu",
                device_name="gpu",
                devices=[
                    pb.DetectedDevice(ID="gpu-0", healthy=True),
                    pb.DetectedDevice(ID="gpu-1", healthy=False, health_description="Overheated"),
                ],
            )
        ]
    )


def test_ids_have_their_resource_where_there_are_several() -> None:
    """A reservation names ids alone."""
    offered = {GPU: Listed((Device("0"),), None), NIC: Listed((Device("0"),), None)}
    groups = fingerprint(TWO, offered).device_group
    assert [device.ID for group in groups for device in group.devices] == [f"{GPU}=0", f"{NIC}=0"]
    assert chosen(TWO, [f"{NIC}=0", f"{NIC}=a=b"]) == (TWO[1], ("0", "a=b"))
    assert chosen(ONE, ["a=b"]) == (ONE[0], ("a=b",))


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "names no device"),
        ([f"{GPU}=0", f"{NIC}=0"], f"devices of several resources: {GPU}, {NIC}"),
        (["gpu-0"], "gpu-0 is no device of this plugin"),
        ([f"{GPU}=0", f"{GPU}=1", f"{GPU}=0"], "names a device twice"),
        ([f"{GPU}="], "names a device twice, or one without a name"),
    ],
)
def test_a_reservation_of_other_devices_is_refused(names: list[str], why: str) -> None:
    with pytest.raises(NomadError, match=why):
        chosen(TWO, names)


def test_a_device_whose_id_is_a_place_on_the_bus_has_that_place() -> None:
    offered = {GPU: Listed((Device("0000:3b:00.1"), Device("x0000:3b:00.1")), None)}
    (group,) = fingerprint(ONE, offered).device_group
    assert [device.hw_locality.pci_bus_id for device in group.devices] == ["0000:3b:00.1", ""]
    assert not group.devices[1].HasField("hw_locality")


def test_a_resource_without_devices_is_in_no_group() -> None:
    assert fingerprint(TWO, {GPU: Listed(), NIC: Listed()}) == pb.FingerprintResponse()


def test_only_the_devices_of_the_pool_are_listed() -> None:
    pool = Pool("nomad", GPU, frozenset({"gpu-1", "gpu-7"}))
    found = listed(pool, Listed(), status(ResourceState.LISTED, Device("gpu-0"), Device("gpu-1")))
    assert found == Listed((Device("gpu-1"),), None)


@pytest.mark.parametrize("state", [ResourceState.AWAITED, ResourceState.STARTING, ResourceState.GONE])
def test_a_plugin_that_is_away_takes_no_device_away(state: ResourceState) -> None:
    before = Listed((Device("gpu-0"),), None)
    found = listed(ONE[0], before, status(state, reason="since a restart"))
    assert found == Listed((Device("gpu-0"),), "since a restart")
    (group,) = fingerprint(ONE, {GPU: found}).device_group
    assert list(group.devices) == [pb.DetectedDevice(ID="gpu-0", healthy=False, health_description="since a restart")]
    assert listed(ONE[0], before, status(state)).away == f"the resource is {state}"


def test_a_device_that_the_plugin_lists_no_more_is_away() -> None:
    before = Listed((Device("gpu-0"), Device("gpu-1")), None)
    assert listed(ONE[0], before, status(ResourceState.LISTED, Device("gpu-1"))).devices == (Device("gpu-1"),)


def test_the_health_of_a_lost_plugins_devices_has_its_reason() -> None:
    found = listed(ONE[0], Listed(), status(ResourceState.LOST, Device("gpu-0", "Unhealthy"), reason="it has ended"))
    (group,) = fingerprint(ONE, {GPU: found}).device_group
    assert group.devices[0].health_description == "Unhealthy: it has ended"


def test_a_device_that_somebody_else_has_leased_is_unhealthy_and_says_by_whom() -> None:
    """It stays so while the list changes, the plugin is away and comes back."""
    leases = [lease("train", "gpu-0"), lease("job", "gpu-7")]
    assert taken(NIC, leases) == {}
    why = "somebody else has leased it: user 0, by the lease train"
    before = Listed(taken=taken(GPU, leases))
    sick = Device("gpu-1", "Overheated")
    found = listed(ONE[0], before, status(ResourceState.LISTED, Device("gpu-0"), sick))
    back = listed(ONE[0], found.but_away("away"), status(ResourceState.LISTED, Device("gpu-0"), sick))
    assert found == back
    (group,) = fingerprint(ONE, {GPU: found}).device_group
    assert [(it.ID, it.healthy, it.health_description) for it in group.devices] == [
        ("gpu-0", False, why),
        ("gpu-1", False, "Overheated"),
    ]
    (counted,) = statistics(ONE, {GPU: found}, 0.0).groups
    assert counted.instance_stats["gpu-0"].summary == pb.StatValue(string_val=why, desc="0 of 2 devices are healthy")
    (away,) = fingerprint(ONE, {GPU: found.but_away("away")}).device_group
    assert [it.health_description for it in away.devices] == ["away", "away"]


def test_statistics_have_the_health_of_each_device_and_the_count_of_healthy_ones() -> None:
    offered = {GPU: Listed((Device("gpu-0"), Device("gpu-1", "Unhealthy")), None)}
    (group,) = statistics(ONE, offered, 12.5).groups
    assert (group.vendor, group.type, group.name) == ("example.com", "gpu", "gpu")
    when = pb.Timestamp(seconds=12, nanos=500_000_000)
    counts = "1 of 2 devices are healthy"
    assert dict(group.instance_stats) == {
        "gpu-0": pb.DeviceStats(summary=pb.StatValue(string_val="Healthy", desc=counts), timestamp=when),
        "gpu-1": pb.DeviceStats(summary=pb.StatValue(string_val="Unhealthy", desc=counts), timestamp=when),
    }
    away = statistics(ONE, {GPU: offered[GPU].but_away(NOT_HEARD)}, 12.5).groups[0].instance_stats["gpu-0"]
    assert (away.summary.string_val, away.summary.desc) == (NOT_HEARD, "0 of 2 devices are healthy")


def test_the_leases_of_earlier_tasks_are_those_that_have_one_of_the_devices() -> None:
    leases = [lease("nomad-a", "0", "1"), lease("nomad-b", "2"), lease("job", "0"), lease("nomad-c", "1")]
    assert overlapping(leases, "nomad-", GPU, ["1", "3"]) == ["nomad-a", "nomad-c"]
    assert overlapping(leases, "nomad-", NIC, ["1"]) == []


def test_a_reservation_has_what_the_plugin_has_named() -> None:
    answer = Answer(
        {"GPUS": "0"},
        (Mount("/opt/lib", "/lib/gpu", read_only=True),),
        (Node("/dev/gpu0", "/dev/gpu", "rw"),),
        {"example.com/note": "text"},
    )
    assert reservation(lease("nomad-a", "0", answer=answer)) == pb.ContainerReservation(
        envs={
            "GPUS": "0",
            "PLUGIND_LEASE": "nomad-a",
            "PLUGIND_DEVICES": f"{GPU}=0",
            "PLUGIND_NODES": "/dev/gpu",
        },
        mounts=[pb.Mount(task_path="/lib/gpu", host_path="/opt/lib", read_only=True)],
        devices=[pb.DeviceSpec(task_path="/dev/gpu", host_path="/dev/gpu0", permissions="rw")],
    )


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (Answer(cdi_devices=("example.com/gpu=0",)), "example.com/gpu=0"),
        (Answer(annotations={"cdi.k8s.io/gpu": "example.com/gpu=0"}), "in annotations"),
    ],
)
def test_names_of_cdi_devices_are_refused(answer: Answer, names: str) -> None:
    with pytest.raises(NomadError) as caught:
        reservation(lease("nomad-a", "0", answer=answer))
    assert str(caught.value) == (
        f"the device plugin has named CDI devices ({names}), which Nomad cannot give to a task"
    )
