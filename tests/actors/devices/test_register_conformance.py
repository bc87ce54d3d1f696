"""What the kubelet's tests say of Register by a call, line by line of consumers F.2: each test cites its names.

The handler is the built-in one, and the device plugins are services in memory, by virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.devices import Device, DeviceOptions
from plugind.protocol.settings.config import DevicePluginDirectory
from plugind.testing import DEFAULT_CONFIG, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.handlers.calling import Lines

DIRECTORY = "/dp"
GPU = "vendor.com/gpu"
CONFIG = attrs.evolve(DEFAULT_CONFIG, device_plugins=DevicePluginDirectory(DIRECTORY))
TWO = (Device("0"), Device("1"))


@asynccontextmanager
async def running() -> AsyncIterator[SimulatedNode]:
    async with SimulatedNode(CONFIG) as node:
        await node.settled()
        yield node


def serve(node: SimulatedNode, path: str, devices: FakeDevices) -> PluggedIn:
    return node.plug(path, FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))


async def answer(node: SimulatedNode, endpoint: str) -> tuple[str, str]:
    attempt = node.register(endpoint, GPU)
    await attempt.done.wait()
    (only,) = attempt.answers
    return only


async def test_a_node_starts_and_stops_twice_over_and_its_plugin_registers_each_time(autojump_clock: MockClock) -> None:
    """TestNewManagerImpl, TestNewManagerImplStart: the classical route."""
    async with running() as node:
        for _ in range(2):
            serve(node, f"{DIRECTORY}/a.sock", FakeDevices(TWO))
            assert await answer(node, "a.sock") == ("OK", "")
            await node.settled()
            assert node.state(f"{DIRECTORY}/a.sock") == "registered"
            await node.stop()
            await node.start()
            await trio.sleep(1)
            assert node.state(f"{DIRECTORY}/a.sock") is None


async def test_a_node_starts_and_stops_twice_over_and_discovers_its_plugin_each_time(autojump_clock: MockClock) -> None:
    """TestNewManagerImplStartProbeMode: the same by the watcher route."""
    async with running() as node:
        serve(node, "a.sock", FakeDevices(TWO))
        for _ in range(2):
            await node.settled()
            assert node.state("a.sock") == "registered"
            await node.stop()
            await node.start()


async def test_both_routes_lead_to_the_same_instances(autojump_clock: MockClock) -> None:
    """TestDevicePluginReRegistrationProbeMode, from one route to the other."""
    async with running() as node:
        serve(node, "a.sock", FakeDevices(TWO))
        await node.settled()
        serve(node, f"{DIRECTORY}/b", FakeDevices(TWO))
        assert await answer(node, "b") == ("OK", "")
        await trio.sleep(1)
        roles = {path: plugin.active for path, plugin in node.statuses.items()}
        assert roles == {"/plugins/a.sock": False, f"{DIRECTORY}/b": True}


async def test_the_connection_is_closed_when_the_options_fail(autojump_clock: MockClock) -> None:
    """TestConnectFailureCleanup of 1.37; e2e_node's options call that fails: not used, called once, text told."""
    async with running() as node:
        devices = FakeDevices(TWO)
        devices.options_error = GRPCError(Status.UNAVAILABLE, "no")
        serve(node, f"{DIRECTORY}/a.sock", devices)
        assert await answer(node, "a.sock") == ("UNAVAILABLE", "failed to get device plugin options: UNAVAILABLE: no")
        await trio.sleep(300)
        assert (devices.asked, devices.streams) == (1, 0)
        assert [path for path, stream in node.network.opened if not stream.closed] == []
        assert node.state(f"{DIRECTORY}/a.sock") == "parked"


PRE_START = DeviceOptions(pre_start_required=True)


@pytest.mark.parametrize(
    ("named", "answered", "differs"),
    [(None, PRE_START, False), (PRE_START, PRE_START, False), (DeviceOptions(), PRE_START, True)],
)
async def test_options_of_a_call_are_only_compared_with_those_of_the_answer(
    named: DeviceOptions | None, answered: DeviceOptions, differs: bool, autojump_clock: MockClock
) -> None:
    """Consumers B.1: the kubelet ignores them, and asks. A call that names none is as good."""
    log = Lines()
    async with SimulatedNode(CONFIG, log=log) as node:
        await node.settled()
        serve(node, f"{DIRECTORY}/a.sock", FakeDevices(TWO, answered))
        attempt = node.register("a.sock", GPU, options=named)
        await trio.sleep(1)
        assert attempt.answers == [("OK", "")]
        resource = (await node.supervisor.internals.resources()).find(GPU)
        assert resource is not None
        (instance,) = resource.instances
        text = (
            "pre_start_required is false in the call of Register and true in the answer to GetDevicePluginOptions, "
            "which counts"
        )
        assert (instance.options, instance.warning) == (answered, text if differs else None)
        line = Level.WARNING, {"name": GPU, "socket": f"{DIRECTORY}/a.sock", "reason": text}
        assert log.with_text("device plugin names other options") == [line][: int(differs)]
        assert node.crash("devices")
        await trio.sleep(10)
        assert len(log.with_text("device plugin names other options")) == differs, "a crash repeats no warning"
