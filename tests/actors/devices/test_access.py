"""Access by leases on a simulated node: whoever holds a lease of a device may open its node, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.io.node_access import NodeAccess
from plugind.actors.simulation.device_nodes import MemoryNodes
from plugind.actors.simulation.node import DAEMON_UID, SimulatedNode
from plugind.protocol.devices.static import FoundNode
from plugind.protocol.leases.messages import LeaseAsked, RecoverAsked, new_ticket
from plugind.protocol.leases.replies import Failure, LeaseFailedError
from plugind.protocol.leases.values import Lease, NoOwner, Request, Wanted
from plugind.protocol.plugins.static_devices import StaticResource
from plugind.protocol.settings.config import Config

SERIAL = "lab/serial"
TTY = "/dev/ttyUSB0"
RESOURCE = StaticResource(("/dev/ttyUSB*",), nodes=("/dev/common",), access="acl")
HOLDER = {DAEMON_UID: "rw"}


@asynccontextmanager
async def simulated(resource: StaticResource = RESOURCE) -> AsyncIterator[SimulatedNode]:
    node = SimulatedNode(Config(devices={SERIAL: resource}))
    node.device_nodes.plug("/dev/common", "c1:3")
    node.device_nodes.plug(TTY, "c188:0", place="/devices/usb1")
    async with node:
        await trio.sleep(1)
        yield node


def users(node: SimulatedNode, *paths: str) -> list[dict[int, str]]:
    return [node.device_nodes.users(path) for path in paths]


async def health(node: SimulatedNode) -> dict[str, str]:
    await trio.sleep(1)
    found = (await node.supervisor.internals.resources()).find(SERIAL)
    assert found is not None
    return {device.id: device.health for device in found.devices()}


async def test_the_user_of_a_lease_may_open_its_nodes_until_the_lease_ends(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        assert users(node, TTY, "/dev/common") == [{}, {}]
        async with node.supervisor.allocate({SERIAL: 1}):
            assert users(node, TTY, "/dev/common") == [HOLDER, HOLDER]
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_the_user_of_a_slurm_job_may_open_the_nodes_of_the_lease_that_the_prolog_takes_as_root(
    autojump_clock: MockClock,
) -> None:
    """Also after a restart. The lease stays root's, so the user cannot release it."""
    job, asked_by_others = "slurm:c:n:7:0:4001:serial", "slurm:c:n:7:0:4002:serial"
    async with simulated(attrs.evolve(RESOURCE, shared=2)) as node:
        for name, uid in ((job, 0), (asked_by_others, DAEMON_UID)):
            reply, answer = trio.open_memory_channel[Lease | Failure](1)
            asked = LeaseAsked(Request((Wanted(SERIAL, 1),)), NoOwner(), uid, new_ticket(), reply, name)
            node.supervisor.internals.leases.inbox.send_nowait(asked)
            lease = await answer.receive()
            assert isinstance(lease, Lease), lease
            assert lease.uid == uid
        assert users(node, TTY, "/dev/common") == [{4001: "rw", **HOLDER}] * 2
        await node.kill()
        await node.start()
        await trio.sleep(1)
        assert users(node, TTY, "/dev/common") == [{4001: "rw", **HOLDER}] * 2
        for ended in (job, asked_by_others):
            await node.supervisor.release(ended)
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_an_entry_permits_what_the_resource_does(autojump_clock: MockClock) -> None:
    async with simulated(attrs.evolve(RESOURCE, permissions="r")) as node, node.supervisor.allocate({SERIAL: 1}):
        assert users(node, TTY) == [{DAEMON_UID: "r"}]


async def test_of_two_leases_of_one_user_on_a_shared_device_the_last_takes_the_entry_away(
    autojump_clock: MockClock,
) -> None:
    async with simulated(attrs.evolve(RESOURCE, shared=2)) as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            async with node.supervisor.allocate({SERIAL: 1}):
                assert users(node, TTY) == [HOLDER]
            assert users(node, TTY, "/dev/common") == [HOLDER, HOLDER]
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_a_restart_keeps_the_entries_of_leases_and_removes_all_others(autojump_clock: MockClock) -> None:
    """One of a lease that ended meanwhile, and one of a daemon that was killed before it had written the lease."""
    async with simulated() as node:
        node.device_nodes.plug("/dev/ttyUSB1", "c188:1", place="/devices/usb2")
        await trio.sleep(1)
        async with node.supervisor.allocate({SERIAL: 1}, id="bench"):
            assert users(node, TTY, "/dev/ttyUSB1") == [HOLDER, {}]
            await node.kill()
            (left_over,) = node.device_nodes.find(StaticResource(("/dev/ttyUSB1",)))
            node.device_nodes.admit(left_over, {1000: 6}, only=False)
            assert users(node, "/dev/ttyUSB1") == [{1000: "rw"}]
            await node.start()
            await trio.sleep(1)
            assert users(node, TTY, "/dev/ttyUSB1") == [HOLDER, {}]
        await node.supervisor.release("bench")
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_a_node_that_was_replaced_has_the_entry_again_if_it_is_the_same_device(autojump_clock: MockClock) -> None:
    async with simulated() as node, node.supervisor.allocate({SERIAL: 1}):
        for place, expected in (("/devices/usb9", {}), ("/devices/usb1", HOLDER)):
            node.device_nodes.unplug(TTY)
            await trio.sleep(1)
            node.device_nodes.plug(TTY, "c188:0", place=place)
            await trio.sleep(1)
            assert users(node, TTY) == [expected]


async def test_what_udev_does_to_a_leased_node_is_mended(autojump_clock: MockClock) -> None:
    async with simulated() as node, node.supervisor.allocate({SERIAL: 1}):
        node.device_nodes.chmod(TTY, 0o600)
        assert users(node, TTY) == [{}], "the mask lets nothing through"
        await trio.sleep(1)
        assert users(node, TTY) == [HOLDER]


async def test_a_node_that_others_may_open_is_unhealthy_and_is_not_touched(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            node.device_nodes.chmod(TTY, 0o666)
            why = (await health(node))["ttyUSB0"]
            assert why.startswith('everybody may open it: set OWNER="root", GROUP="root", MODE="0660"')
        assert users(node, TTY) == [HOLDER]
        node.device_nodes.chmod(TTY, 0o660)
        assert await health(node) == {"ttyUSB0": "Healthy"}
        assert users(node, TTY) == [{}]
        node.device_nodes.chmod("/dev/common", 0o666)
        with pytest.raises(LeaseFailedError, match="no lease of lab/serial gives access to /dev/common: everybody may"):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass
        assert users(node, TTY) == [{}], "what was given before the refusal is taken back"


async def test_entries_go_with_their_lease_also_where_the_configuration_says_nothing_any_more(
    autojump_clock: MockClock,
) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            await node.reconfigure(attrs.evolve(node.config, devices={}))
            await trio.sleep(1)
            assert users(node, TTY) == [HOLDER]
        assert users(node, TTY) == [{}]


async def test_a_crash_of_the_lease_actor_changes_no_access(autojump_clock: MockClock) -> None:
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            node.crash("leases")
            await trio.sleep(1)
            assert users(node, TTY) == [HOLDER]
        await trio.sleep(1)
        assert users(node, TTY) == [{}]


async def test_a_crash_amid_the_giving_of_a_lease_takes_its_access_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is uncertain then, as after a restart, and its caller was told that there is none."""
    crashed, admit = trio.Event(), MemoryNodes.admit

    def admit_and_crash(nodes: MemoryNodes, found: FoundNode, permitted: dict[int, int], *, only: bool) -> str | None:
        why = admit(nodes, found, permitted, only=only)
        if permitted and not crashed.is_set():
            crashed.set()
            node.crash("leases")
        return why

    async with simulated() as node:
        monkeypatch.setattr(MemoryNodes, "admit", admit_and_crash)
        with pytest.raises(LeaseFailedError, match="has crashed"):
            async with node.supervisor.allocate({SERIAL: 1}):
                pass
        assert crashed.is_set()
        await trio.sleep(1)
        assert users(node, TTY, "/dev/common") == [{}, {}]


async def test_entries_stay_where_leases_may_be_lost(autojump_clock: MockClock) -> None:
    async with simulated() as node, node.supervisor.allocate({SERIAL: 1}):
        await node.kill()
        node.lease_store.leases.clear()
        node.lease_store.withheld = "the file was lost"
        await node.start()
        await trio.sleep(30)
        assert users(node, TTY) == [HOLDER]
        send, replies = trio.open_memory_channel[Failure | None](1)
        node.supervisor.internals.leases.inbox.send_nowait(RecoverAsked(0, send))
        assert await replies.receive() is None
        await trio.sleep(30)
        assert users(node, TTY) == [{}]


async def test_the_end_of_a_lease_leaves_another_device_at_the_path_alone(autojump_clock: MockClock) -> None:
    """Its access may not go by leases any more, and an entry is somebody else's."""
    async with simulated() as node:
        async with node.supervisor.allocate({SERIAL: 1}):
            await node.reconfigure(attrs.evolve(node.config, devices={}))
            node.device_nodes.plug(TTY, "c188:0", place="/devices/usb9")
            (other,) = node.device_nodes.find(StaticResource((TTY,)))
            node.device_nodes.admit(other, {1000: 6}, only=True)
        assert users(node, TTY) == [{1000: "rw"}]


def test_a_user_with_two_leases_may_do_what_either_permits() -> None:
    """A reload has changed the permissions of the resource between them."""
    nodes = MemoryNodes()
    nodes.plug(TTY, "c188:0")
    found = nodes.look(TTY)
    assert found is not None
    access = NodeAccess(lambda: nodes)
    for lease, permissions in (("a", "rw"), ("b", "r")):
        assert access.give(lease, 1000, [found], permissions) is None
    assert nodes.users(TTY) == {1000: "rw"}
    access.begin((), None)
    assert nodes.users(TTY) == {}
