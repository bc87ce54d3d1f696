"""What the API of Nomad says of allocations, and which leases end by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Pool, Request, Wanted
from plugind.protocol.nomad import NomadError
from plugind.protocol.nomad_allocations import Allocation, Compared, allocations, compared, node_of, of_pools

GPU, NIC = "example.com/gpu", "example.com/nic"
ONE = [Pool("nomad", GPU)]
TWO = [Pool("nomad", GPU), Pool("nomad", NIC)]
#: Of the names below.
END = "1970-01-01T00:01:40.5Z"


def shown(status: str = "running", *ids: str, state: str = "running", finished: str | None = None, **more: Any) -> Any:
    """Return an allocation as the API shows it, with what is of use of a hundred fields."""
    devices = [{"Vendor": "example.com", "Type": "gpu", "Name": "gpu", "DeviceIDs": list(ids)}]
    allocation = {
        "ID": "5456bd7a",
        "Namespace": "default",
        "ClientStatus": status,
        "DesiredStatus": "run",
        "AllocatedResources": {
            "Tasks": {"web": {"Cpu": {"CpuShares": 500}, "Devices": devices}, "log": {"Devices": None}},
            "Shared": {"DiskMB": 300},
        },
        "TaskStates": {
            "web": {"State": state, "Failed": False, "StartedAt": "1970-01-01T00:00:10Z", "FinishedAt": finished},
        },
    }
    return allocation | more


def lease(name: str, *ids: str, resource: str = GPU, created: float = 50.0, pool: str | None = "nomad") -> Lease:
    request = Request((Wanted(resource, len(ids)),), ids, pool=pool)
    return Lease(name, 0, request, NoOwner(), LeaseState.HELD, created, {resource: ids})


def gpus(*ids: str) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(("example.com", "gpu", "gpu", it) for it in ids)


def test_the_node_is_the_one_of_the_agents_client() -> None:
    content = {"config": {}, "member": {}, "stats": {"client": {"node_id": "f7476465-4d6e", "known_servers": "x"}}}
    assert node_of(content) == "f7476465-4d6e"


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"stats": None},
        {"stats": {"client": None}},
        {"stats": {"client": {"node_id": ""}}},
        {"stats": {"client": {"node_id": 7}}},
        {"stats": {"client": {"node_id": "../jobs"}}},
        {"stats": {"client": {"node_id": "\u0661"}}},
        {"stats": {"client": {"node_id": "a" * 65}}},
        {"stats": {"nomad": {"server": "true"}}},
    ],
)
def test_what_names_no_node_is_refused(content: object) -> None:
    with pytest.raises(NomadError):
        node_of(content)


def test_an_allocation_has_the_devices_of_all_its_tasks() -> None:
    content = shown("running", "GPU-0", "GPU-1")
    content["AllocatedResources"]["Tasks"]["log"]["Devices"] = [
        {"Vendor": "example.com", "Type": "nic", "Name": "nic", "DeviceIDs": ["0"]}
    ]
    devices = gpus("GPU-0", "GPU-1") | {("example.com", "nic", "nic", "0")}
    assert allocations([content]) == (Allocation("5456bd7a", lives=True, ended=None, devices=devices),)


@pytest.mark.parametrize(
    ("status", "state", "finished", "lives", "ended"),
    [
        ("pending", "pending", None, True, None),
        ("running", "running", None, True, None),
        # A task before others has ended, and they have not.
        ("running", "dead", END, True, None),
        ("unknown", "running", None, True, None),
        ("a word of a later version", "dead", END, True, None),
        ("complete", "dead", END, False, 100.5),
        ("failed", "dead", "1970-01-01T00:01:40.500000001+00:00", False, 100.5),
        ("lost", "dead", END, False, 100.5),
        # A server has not heard of the node, where it may run.
        ("lost", "running", None, True, None),
        ("complete", "running", None, True, None),
        # None of it has ever run.
        ("failed", "dead", "0001-01-01T00:00:00Z", False, None),
        ("failed", "dead", None, False, None),
    ],
)
def test_an_allocation_has_ended_when_all_of_its_tasks_have(
    status: str, state: str, finished: str | None, lives: bool, ended: float | None
) -> None:
    (found,) = allocations([shown(status, "GPU-0", state=state, finished=finished)])
    assert (found.lives, found.ended) == (lives, ended)


def test_an_allocation_ends_with_its_last_task() -> None:
    content = shown("complete", "GPU-0", state="dead", finished=END)
    content["TaskStates"]["log"] = {"State": "dead", "FinishedAt": "1970-01-01T00:03:20Z"}
    assert allocations([content])[0].ended == 200.0
    content["TaskStates"]["log"] = {"State": "running", "FinishedAt": None}
    assert allocations([content])[0].lives


def test_an_allocation_that_never_began_has_no_end() -> None:
    found = allocations([shown("complete", "GPU-0", TaskStates=None), shown("lost", TaskStates={})])
    assert [(it.lives, it.ended) for it in found] == [(False, None), (False, None)]


def test_one_that_has_ended_may_say_nothing_of_its_devices() -> None:
    (found,) = allocations([shown("complete", state="dead", finished=END, AllocatedResources=None)])
    assert found == Allocation("5456bd7a", lives=False, ended=100.5, devices=frozenset())


WRONG: list[object] = [
    None,
    {},
    "text",
    [None],
    [{}],
    [shown(ID=None)],
    [shown(ClientStatus=None)],
    [shown(ClientStatus=["running"])],
    [shown(AllocatedResources=None)],
    [shown(AllocatedResources=[])],
    [shown(AllocatedResources={"Tasks": []})],
    [shown(AllocatedResources={"Tasks": {"web": None}})],
    [shown(AllocatedResources={"Tasks": {"web": {"Devices": {}}}})],
    [shown(AllocatedResources={"Tasks": {"web": {"Devices": [None]}}})],
    [shown(AllocatedResources={"Tasks": {"web": {"Devices": [{"Vendor": 1, "DeviceIDs": ["0"]}]}}})],
    [shown("running", 0)],  # type: ignore[arg-type] # the id is a number
    [shown(TaskStates=[])],
    [shown(TaskStates={"web": None})],
    [shown("complete", state="dead", finished="yesterday")],
    [shown("complete", TaskStates={"web": {"State": "dead", "FinishedAt": 7}})],
]


@pytest.mark.parametrize("content", WRONG, ids=json.dumps)
def test_one_allocation_that_cannot_be_understood_spoils_the_list(content: object) -> None:
    """It may be the one that has the device."""
    right = shown("complete", "GPU-0", state="dead", finished=END)
    with pytest.raises(NomadError):
        allocations([right, *content] if isinstance(content, list) else content)


def ended(name: str, *ids: str, at: float = 100.0) -> Allocation:
    return Allocation(name, lives=False, ended=at, devices=gpus(*ids))


def living(name: str, *ids: str) -> Allocation:
    return Allocation(name, lives=True, ended=None, devices=gpus(*ids))


@pytest.mark.parametrize(
    ("held", "there", "found"),
    [
        (lease("a", "0"), [ended("x", "0")], Compared({"a": "x"}, ())),
        # Each group of devices of a task has a lease of its own.
        (lease("a", "0"), [ended("x", "0", "1")], Compared({"a": "x"}, ())),
        (lease("a", "0"), [living("x", "0")], Compared({}, ())),
        # The next task has one of its devices, and takes the lease over when it reserves that.
        (lease("a", "0", "1"), [ended("x", "0", "1"), living("y", "1")], Compared({}, ())),
        # It ended before the lease began: it is an earlier one, and that of the lease is not shown.
        (lease("a", "0"), [ended("x", "0", at=49.9)], Compared({}, ("a",))),
        (lease("a", "0"), [ended("x", "1"), living("y", "2")], Compared({}, ("a",))),
        (lease("a", "0", "1"), [ended("x", "0")], Compared({}, ("a",))),
        (lease("a", "0"), [], Compared({}, ("a",))),
        (lease("a", "0"), [Allocation("x", lives=False, ended=None, devices=gpus("0"))], Compared({}, ("a",))),
    ],
)
def test_a_lease_ends_with_the_allocation_that_ended_after_it_began(
    held: Lease, there: list[Allocation], found: Compared
) -> None:
    assert compared([held], there, ONE) == found


def test_ids_are_those_that_nomad_knows() -> None:
    """With several resources each id has its resource before it; another plugin may have the same ids."""
    held = [lease("a", "0"), lease("b", "0", resource=NIC)]
    device = ("example.com", "gpu", "gpu", f"{GPU}=0")
    there = [Allocation("x", lives=False, ended=100.0, devices=frozenset({device}))]
    assert compared(held, there, TWO) == Compared({"a": "x"}, ("b",))
    other = [Allocation("y", lives=True, ended=None, devices=frozenset({("other.com", "gpu", "gpu", f"{GPU}=0")}))]
    assert compared(held, [*there, *other], TWO) == Compared({"a": "x"}, ("b",))


def test_only_leases_that_are_held_from_the_pool_are_compared() -> None:
    held = lease("a", "0")
    others = [
        lease("b", "1", pool=None),
        lease("c", "2", pool="other"),
        lease("d", "3", resource=NIC),
        lease("e", "4").moved(LeaseState.UNCERTAIN),
        lease("f", "5").moved(LeaseState.PENDING),
    ]
    assert of_pools([held, *others], ONE) == (held,)
