"""Leases of the program that embeds a node, in a whole simulated node: real calls to a device plugin, virtual time."""

from __future__ import annotations

import attrs
import pytest
import trio

from plugind.actors.leases.actor import CRASHED
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.leases.drains import DrainTarget
from plugind.protocol.leases.messages import BindAsked, Failure, Problem, RecoverAsked
from plugind.protocol.leases.replies import LeaseFailedError
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.plugins.devices import Device
from plugind.supervisor import NodeEndedError
from plugind.testing import AllocationCall, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.fuzz.lease_stores import SimulatedLeaseStore

GPU = "vendor.com/gpu"
TWO = (Device("gpu-0"), Device("gpu-1"))
#: A lease of before the start, which somebody has.
HELD_BEFORE = Lease("a", 0, Request((Wanted(GPU, 1),)), NoOwner(), LeaseState.HELD, 1.0, {GPU: ("gpu-0",)}, Answer())


def plug(node: SimulatedNode, devices: FakeDevices, socket: str = "a.sock", resource: str = GPU) -> PluggedIn:
    return node.plug(socket, FakePlugin("DevicePlugin", resource, ("v1beta1",), serves=[devices]))


async def states(node: SimulatedNode) -> dict[str, LeaseState]:
    return {lease.id: lease.state for lease in await node.supervisor.leases()}


async def test_a_block_has_devices_and_gives_them_back(node: SimulatedNode) -> None:
    devices = FakeDevices(TWO)
    plug(node, devices)
    await node.settled()
    async with node.supervisor.allocate({GPU: 1}, labels={"job": "7"}) as lease:
        assert lease.state is LeaseState.HELD
        assert lease.devices == {GPU: ("gpu-0",)}
        assert lease.request.labels == (("job", "7"),)
        assert lease.answer is not None
        assert lease.answer.env == {"DEVICES": "gpu-0"}
        assert await node.supervisor.leases() == (lease,)
        assert list(node.lease_store.leases) == [lease.id]
    assert devices.allocations == [(AllocationCall.ALLOCATE, ("gpu-0",))]
    assert await node.supervisor.leases() == ()
    await node.settled()
    assert node.lease_store.leases == {}
    assert node.owners.watched == 0


async def test_without_a_device_there_is_an_error_that_names_the_holder(node: SimulatedNode) -> None:
    plug(node, FakeDevices(TWO))
    await node.settled()
    async with node.supervisor.allocate({GPU: 1}, id="mine") as held:
        with pytest.raises(LeaseFailedError, match="Requested: 2, Available: 1") as caught:
            async with node.supervisor.allocate({GPU: 2}):
                pass
    assert caught.value.problem is Problem.UNAVAILABLE
    assert caught.value.holders == (held,)


async def test_what_a_program_drains_is_not_leased_until_it_undrains_that(node: SimulatedNode) -> None:
    plug(node, FakeDevices(TWO))
    await node.settled()
    drain = await node.supervisor.drain(GPU, "gpu-0", reason="a fan is broken")
    assert (drain.target, drain.reason) == (DrainTarget(GPU, "gpu-0"), "a fan is broken")
    assert dict((await node.supervisor.internals.lease_calls.snapshot()).drains) == {drain.target: drain}
    async with node.supervisor.allocate({GPU: 1}) as lease:
        assert lease.devices == {GPU: ("gpu-1",)}
    assert await node.supervisor.undrain(GPU, "gpu-0") == drain
    async with node.supervisor.allocate({GPU: 2}):
        pass
    with pytest.raises(LeaseFailedError, match="the node is not drained; nothing is") as caught:
        await node.supervisor.undrain(None)
    assert caught.value.problem is Problem.UNKNOWN
    with pytest.raises(LeaseFailedError, match="device has no resource") as caught:
        await node.supervisor.drain(None, "gpu-0")
    assert caught.value.problem is Problem.USAGE


async def test_a_caller_that_is_cancelled_leaves_nothing(node: SimulatedNode) -> None:
    """While it waits in line, and while the plugin prepares its device."""
    devices = FakeDevices(TWO)
    plug(node, devices)
    await node.settled()
    async with node.supervisor.allocate({GPU: 2}):
        with trio.move_on_after(5.0):
            async with node.supervisor.allocate({GPU: 1}, wait=60.0):
                pytest.fail("there is no device")
        assert len(await states(node)) == 1
    devices.delays[AllocationCall.ALLOCATE] = 10.0
    with trio.move_on_after(5.0):
        async with node.supervisor.allocate({GPU: 1}):
            pytest.fail("the plugin has not answered")
    assert list((await states(node)).values()) == [LeaseState.PENDING]
    await trio.sleep(6.0)
    assert await states(node) == {}


async def test_a_node_that_ends_tells_its_callers(node: SimulatedNode) -> None:
    devices = FakeDevices(TWO)
    devices.hangs.add(AllocationCall.ALLOCATE)
    plug(node, devices)
    await node.settled()
    supervisor = node.supervisor
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop)
        with pytest.raises((NodeEndedError, LeaseFailedError)):
            async with supervisor.allocate({GPU: 1}):
                pass
    with pytest.raises(NodeEndedError):
        await supervisor.leases()


async def test_changes_of_leases_are_a_stream(node: SimulatedNode) -> None:
    plug(node, FakeDevices(TWO))
    await node.settled()
    async with node.supervisor.allocate({GPU: 1}, id="before"), node.supervisor.watch_leases() as changes:
        async with node.supervisor.allocate({GPU: 1}, id="a"):
            pass
        seen = []
        async for lease in changes:
            seen.append((lease.id, lease.state))
            if lease.state is LeaseState.GONE:
                break
    held, *rest = seen
    assert held == ("before", LeaseState.HELD)
    assert rest == [("a", LeaseState.PENDING), ("a", LeaseState.HELD), ("a", LeaseState.GONE)]


async def test_a_release_names_the_lease_that_is_not_there(node: SimulatedNode) -> None:
    plug(node, FakeDevices(TWO))
    await node.settled()
    async with node.supervisor.allocate({GPU: 1}, id="a"):
        await node.supervisor.release("a")
        assert await node.supervisor.leases() == ()
        with pytest.raises(LeaseFailedError, match="there is no lease a") as caught:
            await node.supervisor.release("a")
    assert caught.value.problem is Problem.UNKNOWN


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ["leases", "devices", "reconciler", "status"])
async def test_a_crash_ends_no_lease(node: SimulatedNode, actor: str) -> None:
    """Fault 85: whoever was told of a lease has it, and nobody else is given its device."""
    plug(node, FakeDevices(TWO))
    await node.settled()
    async with node.supervisor.allocate({GPU: 1}, id="a") as lease:
        assert node.crash(actor)  # type: ignore[arg-type]
        await trio.sleep(30.0)
        assert await node.supervisor.leases() == (lease,)
        with pytest.raises(LeaseFailedError, match="Requested: 2, Available: 1"):
            async with node.supervisor.allocate({GPU: 2}):
                pass
        async with node.supervisor.allocate({GPU: 1}) as other:
            assert other.devices == {GPU: ("gpu-1",)}
    assert await states(node) == {}
    await node.settled()
    assert node.lease_store.leases == {}
    assert node.owners.watched == 0


async def test_a_crash_ends_no_lease_of_before_a_start_with_a_slow_disk(autojump_clock: object) -> None:
    """They are known only when the store has been read, and whoever has them knows of them all the same (seed 277)."""
    node = SimulatedNode()
    store = node.lease_store = SimulatedLeaseStore()
    store.leases["a"], store.disk.before = HELD_BEFORE, 7.0
    async with node:
        store.disk.before = 0.0
        assert (await node.supervisor.internals.lease_calls.snapshot()).withheld is not None
        await trio.sleep(60.0)
        assert await states(node) == {"a": LeaseState.HELD}
        node.crash("leases")
        await trio.sleep(30.0)
        assert await states(node) == {"a": LeaseState.HELD}
        assert list(store.leases) == ["a"]


async def test_a_recovery_cut_short_by_a_crash_gives_no_device_before_the_leases_are_read(
    autojump_clock: object,
) -> None:
    """Whoever asked for it is told to ask again, and the lease that is read later has its device."""
    node = SimulatedNode()
    store = node.lease_store = SimulatedLeaseStore()
    store.leases["a"], store.disk.before = HELD_BEFORE, 20.0
    plug(node, FakeDevices(TWO))
    async with node:
        reply, answer = trio.open_memory_channel[Failure | None](1)
        node.supervisor.internals.leases.inbox.send_nowait(RecoverAsked(0, reply))
        node.crash("leases")
        assert await answer.receive() == Failure(Problem.UNAVAILABLE, CRASHED)
        assert "not known yet" in ((await node.supervisor.internals.lease_calls.snapshot()).withheld or "")
        with pytest.raises(LeaseFailedError, match="all devices are withheld"):
            async with node.supervisor.allocate({GPU: 1}):
                pass
        await trio.sleep(60.0)
        assert (await node.supervisor.internals.lease_calls.snapshot()).withheld is None
        assert await states(node) == {"a": LeaseState.HELD}


async def test_the_end_of_a_container_amid_a_crash_does_not_end_the_lease_of_the_next_one(
    autojump_clock: object,
) -> None:
    """The end waits in the inbox, and is told again by the next actor once the other container has the lease."""
    node = SimulatedNode()
    store = node.lease_store = SimulatedLeaseStore()
    first, second = node.owners.start(4001), node.owners.start(4002)
    store.leases["a"] = attrs.evolve(HELD_BEFORE, owner=ContainerOwner(first))
    async with node:
        node.crash("leases")
        await trio.sleep(0.001)
        node.owners.end(first.pid)
        await trio.sleep(0.001)
        reply, answer = trio.open_memory_channel[Lease | Failure](1)
        node.supervisor.internals.leases.inbox.send_nowait(BindAsked("a", 0, second, reply))
        bound = await answer.receive()
        assert isinstance(bound, Lease)
        assert bound.owner == ContainerOwner(second)
        await trio.sleep(60.0)
        assert await states(node) == {"a": LeaseState.HELD}
        node.owners.end(second.pid)
        await trio.sleep(60.0)
        assert await states(node) == {}


async def test_a_crash_answers_those_that_wait(node: SimulatedNode) -> None:
    """One in line, and one whose plugin is at work: its device is withheld until the plugin has answered."""
    devices = FakeDevices(TWO)
    devices.delays[AllocationCall.ALLOCATE] = 20.0
    plug(node, devices)
    await node.settled()
    errors: list[str] = []

    async def ask(count: int, wait: float | None) -> None:
        try:
            async with node.supervisor.allocate({GPU: count}, wait=wait):
                pytest.fail("it was told of no lease")
        except LeaseFailedError as error:
            errors.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 1, None)
        await trio.sleep(1.0)
        nursery.start_soon(ask, 2, 600.0)
        await trio.sleep(1.0)
        node.crash("leases")
        await trio.sleep(2.0)
        assert errors == [CRASHED, CRASHED]
        assert list((await states(node)).values()) == [LeaseState.UNCERTAIN]
    await trio.sleep(20.0)
    assert await states(node) == {}
    assert node.lease_store.leases == {}


# --- uncertain leases -------------------------------------------------------------------------------------------------


async def fail_to_allocate(node: SimulatedNode) -> None:
    with pytest.raises(LeaseFailedError):
        async with node.supervisor.allocate({GPU: 2}):
            pass


async def test_a_plugin_that_dies_amid_allocate_prepares_nothing_any_more(node: SimulatedNode) -> None:
    """Its connection ends with its process, so the devices are free at once."""
    devices = FakeDevices(TWO)
    devices.hangs.add(AllocationCall.ALLOCATE)
    plugged = plug(node, devices)
    await node.settled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_allocate, node)
        await trio.sleep(5.0)
        plugged.crash()
    assert await states(node) == {}


async def test_a_plugin_that_registers_anew_may_still_prepare_devices(node: SimulatedNode) -> None:
    """It is deregistered amid Allocate, and its process runs on: the devices are withheld until that ends."""
    devices = FakeDevices(TWO)
    devices.hangs.add(AllocationCall.ALLOCATE)
    plugged = plug(node, devices)
    await node.settled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_allocate, node)
        await trio.sleep(5.0)
        plugged.unlink()
    assert list((await states(node)).values()) == [LeaseState.UNCERTAIN]
    devices.hangs.clear()
    plugged.bind()
    plugged.listen()
    await node.settled()
    await trio.sleep(20.0)
    assert list((await states(node)).values()) == [LeaseState.UNCERTAIN]
    await fail_to_allocate(node)
    plugged.restart()
    await node.settled()
    assert await states(node) == {}
