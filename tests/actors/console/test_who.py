"""What ``plugind who`` prints, and the order of the ids."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.actors.console.answers import Plugin
from plugind.actors.console.device_leases import add_leases
from plugind.actors.console.devices import devices_in
from plugind.actors.console.leases import lines as lines_of_leases
from plugind.actors.console.who import lines
from plugind.actors.io.process_identity import command_of, container_of, identity_of
from plugind.protocol.devices.json import LeaseMarks, device_to_json, resource_to_json
from plugind.protocol.leases.free import natural
from plugind.protocol.leases.replies import LeasesSnapshot
from plugind.protocol.leases.values import (
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Pool,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.protocol.plugins.devices import OTHER_DEVICE, Device, DeviceList, ResourceState, ResourceStatus
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.snapshots import UNIX

GPU, SERIAL = "vendor.com/gpu", "lab/serial"
NOW = 100.0
#: A process of another boot, of which nothing is known here.
OTHER = ProcessIdentity(991, 4711, "another boot")


def lease(name: str, devices: dict[str, tuple[str, ...]], owner: Any = None, **more: Any) -> Lease:
    """Return a lease of root that is held for five minutes."""
    request = Request(tuple(Wanted(resource, len(ids)) for resource, ids in devices.items()))
    made = Lease(name, 0, request, owner or NoOwner(), LeaseState.HELD, UNIX - 300.0, devices)
    return attrs.evolve(made, **more)


def queued(name: str, *wanted: Wanted, **more: Any) -> Lease:
    made = Lease(name, 0, Request(wanted, **more), ProcessOwner(OTHER), LeaseState.QUEUED, UNIX - 60.0)
    return attrs.evolve(made, owner=ConnectionOwner())


def resource(name: str, *devices: Device) -> ResourceStatus:
    listed = DeviceList(devices)
    return ResourceStatus(name, ResourceState.LISTED, 40.0, listed=listed, changed=dict.fromkeys(listed.devices, 40.0))


def shown(found: LeasesSnapshot, *resources: ResourceStatus) -> list[Plugin]:
    """Return resources as the commands have them from the daemon, with their leases."""
    marks, made = LeaseMarks(found), list[Plugin]()
    for one in resources:
        of_leases = marks.of(one)
        devices = [device_to_json(each, NOW, UNIX) | of_leases.get(each.id, {}) for each in one.devices()]
        made.append({**resource_to_json(one, NOW, UNIX), "devices": [*devices]})
    add_leases(made, found.leases)
    return made


GIVEN = Answer(identities={f"{SERIAL}=ttyUSB0": "c188:0"})
HERE = ProcessIdentity(992, 4711, "this boot")
FOUND = LeasesSnapshot(
    UNIX,
    (
        lease("0f3c", {GPU: ("GPU-2", "GPU-10")}, ProcessOwner(HERE)),
        lease("4c11", {GPU: ("GPU-1",)}, ProcessOwner(OTHER)),
        lease("77aa", {GPU: ("GPU-3",)}, ContainerOwner()),
        attrs.evolve(lease("88bb", {GPU: ("GPU-9",)}, ContainerOwner(OTHER)), longest_until=1, overdue=True),
        lease("bench of the whole tree on all machines", {GPU: ("GPU-4",)}, uid=0),
        lease("held", {SERIAL: ("ttyUSB1",), "lab/gone": ("a",)}, ConnectionOwner()),
        lease("slurm:c:n:42:0:0:gpu", {GPU: ("GPU-5",)}),
        lease("ttl", {SERIAL: ("ttyUSB0",)}, TimeOwner(60.0), answer=GIVEN),
        lease("u", {GPU: ("GPU-6",)}, ProcessOwner(OTHER), state=LeaseState.UNCERTAIN, reason="Allocate timed out"),
        attrs.evolve(queued("z", Wanted(GPU, 9)), reason="it waits for a lease of its user to end"),
        queued("b", Wanted(SERIAL, 2), Wanted(GPU, 1), pool="lab"),
        queued("a", Wanted(GPU, 1), ids=("GPU-7",)),
    ),
    pools=(Pool("lab", GPU, frozenset({"GPU-10", "GPU-7"})), Pool("tests", SERIAL)),
)  # fmt: skip
RESOURCES = (
    resource(GPU, *(Device(f"GPU-{n}", "Unhealthy" if n in (4, 11, 12) else "Healthy") for n in range(14, -1, -1))),
    resource(
        SERIAL, Device("ttyUSB0", identity="c188:1"), Device("ttyUSB1"), Device("ttyUSB2", identity="c188:0"),
        Device("x", "others may replace it\x1b: /dev is theirs"),
    ),
    ResourceStatus("v.com/a", ResourceState.AWAITED, 0.0, "no device plugin since the start", 300.0),
)  # fmt: skip


@pytest.mark.usefixtures("in_berlin")
def test_what_who_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is drained has the reason; one that is leased by its old name, or not listed, is not free."""
    monkeypatch.setattr("plugind.actors.io.process_identity.command_of", {HERE: "train.py"}.get)
    monkeypatch.setattr("plugind.actors.io.process_identity.container_of", {OTHER: "web"}.get)
    found = shown(FOUND, *RESOURCES)
    drained = {"reason": "a fan is broken", "until": "2023-11-14T12:00:00+01:00", "since": None, "by": 0}
    devices: Any = found[0]["devices"]
    for number in (8, 10):
        next(each for each in devices if each["id"] == f"GPU-{number}")["drained"] = drained
    withheld = attrs.evolve(FOUND, leases=(), withheld="the state was lost", problem="the disk is full")
    snapshots.check(
        "who",
        {
            "in a pipe": lines(found, FOUND),
            **{f"on {width} columns": lines(found, FOUND, (), width) for width in (120, 80, 40)},
            "one resource": lines(found[1:2], FOUND, (SERIAL,)),
            "withheld": lines(shown(withheld, RESOURCES[1]), withheld),
            "nothing": lines([], LeasesSnapshot(UNIX)),
            **{f"leases on {width} columns": lines_of_leases(FOUND, width) for width in (120, 80, 40)},
        },
    )


@given(st.lists(st.tuples(st.sampled_from(["GPU-", "gpu", "", "0x"]), st.integers(0, 10**30)), unique=True))
def test_ids_are_in_natural_order(ids: list[tuple[str, int]]) -> None:
    """Ids with the same words are ordered by their numbers; the device that is not listed is the last."""
    made = [f"{word}{number}" for word, number in ids]
    found = devices_in({"devices": [{"id": each} for each in made], "missing": [{"id": "a"}]})
    *listed, last = [str(device["id"]) for device in found]
    assert (listed, last) == (sorted(made, key=natural), "a")
    words_of = dict(zip(made, ids, strict=True))
    for word in ("GPU-", "gpu", "", "0x"):
        numbers = [words_of[each][1] for each in listed if words_of[each][0] == word]
        assert numbers == sorted(numbers)


def test_a_static_device_is_its_node_whatever_its_id_is() -> None:
    found = LeaseMarks(FOUND).of(RESOURCES[1])
    assert found == {
        "ttyUSB0": {"pool": "tests", "health": OTHER_DEVICE, "healthy": False},
        "ttyUSB1": {"pool": "tests"},
        "ttyUSB2": {"pool": "tests", "withheld": "it is leased as lab/serial=ttyUSB0"},
        "x": {"pool": "tests"},
    }


@contextmanager
def running(program: Path, script: str, *words: str) -> Iterator[ProcessIdentity]:
    """Run a script under another name, until it is ready."""
    program.symlink_to("/bin/sh")
    with subprocess.Popen([program, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            found = identity_of(started.pid)
            assert found is not None
            yield found
        finally:
            started.kill()


def test_a_process_has_the_name_of_its_program_without_its_arguments(tmp_path: Path) -> None:
    """So has plugind itself, which becomes the command when it has a lease."""
    ready = "echo; read _; exit"
    with running(tmp_path / "train.py", ready, "--password=secret") as found:
        assert command_of(found) == "train.py"
        assert command_of(attrs.evolve(found, start_ticks=found.start_ticks + 1)) is None
        assert command_of(attrs.evolve(found, boot_id="another")) is None
        assert container_of(found) is None
    with running(tmp_path / "plugind", ready, "allocate", "a/b=1", "--", "/opt/x/serve", "--password=secret") as found:
        assert command_of(found) == "serve"
    assert command_of(found) is None


def test_a_container_of_podman_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "sleep").symlink_to("/bin/sh")
    # It says its pid itself: before it is executed, it has another name.
    ready = f"{tmp_path}/sleep -c 'echo $$; exec sleep 100' & wait"
    (tmp_path / "conmon").symlink_to("/bin/sh")
    with subprocess.Popen([tmp_path / "conmon", "-c", ready, "conmon", "-n", "web"], stdout=subprocess.PIPE) as monitor:
        try:
            assert monitor.stdout is not None
            pid = int(monitor.stdout.readline())
            found = identity_of(pid)
            assert found is not None
            assert (container_of(found), command_of(found)) == ("web", "sleep")
            os.kill(pid, 9)
        finally:
            monitor.kill()
