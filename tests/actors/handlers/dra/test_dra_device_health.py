"""The health of the devices of DRA drivers, by the rules of Kubernetes 1.37: streams, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, DRACall, FakeDRADriver
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.protocol.handlers.dra import DRAConfig, WatchedHealth
from plugind.protocol.handlers.dra_claims import DRACallError, DRAClaim
from plugind.protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode

NAME = "gpu.example.com"
CLAIM = DRAClaim("default", "uid-1", "train")
V1, V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"
HEALTHY, UNHEALTHY = DRADeviceHealth.HEALTHY, DRADeviceHealth.UNHEALTHY


def gpu(number: int, status: DRADeviceHealth = HEALTHY, message: str = "", timeout: float = 3600) -> DeviceReport:
    return DeviceReport("pool-0", f"gpu-{number}", status, message, timeout)


def driver_with(*services: str, devices: Sequence[DeviceReport] = (gpu(0), gpu(1))) -> FakeDRADriver:
    driver = FakeDRADriver((*USUAL_SERVICES, *services))
    driver.show(*devices)
    return driver


def plug(node: SimulatedNode, driver: FakeDRADriver, *services: str, socket: str = "a.sock") -> PluggedIn:
    return node.plug(socket, FakePlugin("DRAPlugin", NAME, ("v1.DRAPlugin", *services), serves=[driver]))


def facts(node: SimulatedNode, socket: str = "a.sock") -> dict[str, str]:
    """Return the facts about devices."""
    status = node.status(socket)
    assert status is not None
    return {key: text for key, text in status.facts if key.startswith("device")}


@pytest.mark.parametrize("service", [V1, V1ALPHA1])
async def test_the_health_of_devices_is_shown_as_it_changes(autojump_clock: MockClock, service: str) -> None:
    """TestHandleWatchResourcesStream; the e2e line "health: reflected"."""
    driver = driver_with(service)
    async with SimulatedNode() as node:
        plug(node, driver, service)
        await trio.sleep(5)
        assert facts(node) == {
            "device-health": service,
            "devices": "2 healthy, 0 unhealthy, 0 unknown",
            "device.pool-0/gpu-0": "Healthy (since 1970-01-01T00:00:00.000Z)",
            "device.pool-0/gpu-1": "Healthy (since 1970-01-01T00:00:00.000Z)",
        }
        driver.show(gpu(0), gpu(1, UNHEALTHY, "ECC"))
        await trio.sleep(5)
        assert list(facts(node).items())[1:] == [
            ("devices", "1 healthy, 1 unhealthy, 0 unknown"),
            ("device.pool-0/gpu-1", "Unhealthy: ECC (since 1970-01-01T00:00:05.000Z)"),
            ("device.pool-0/gpu-0", "Healthy (since 1970-01-01T00:00:00.000Z)"),
        ]
        assert driver.called(DRACall.WATCH) == 1


@pytest.mark.parametrize(
    ("announced", "served", "mode", "asked", "shown"),
    [
        pytest.param((), (V1, V1ALPHA1), "advertised", [], None, id="not announced"),
        pytest.param((V1, V1ALPHA1), (V1, V1ALPHA1), "advertised", [V1], V1, id="v1 is preferred"),
        pytest.param((V1ALPHA1,), (V1, V1ALPHA1), "advertised", [V1ALPHA1], V1ALPHA1, id="v1alpha1"),
        pytest.param((V1,), (), "advertised", [V1], "not implemented", id="announced only"),
        pytest.param((), (), "try", [V1, V1ALPHA1], "not implemented", id="tried once"),
        pytest.param((), (V1ALPHA1,), "try", [V1, V1ALPHA1], V1ALPHA1, id="tried with success"),
    ],
)
async def test_the_services_that_a_driver_announces_are_asked_and_others_only_to_try(
    autojump_clock: MockClock,
    announced: Sequence[str],
    served: Sequence[str],
    mode: WatchedHealth,
    asked: Sequence[str],
    shown: str | None,
) -> None:
    """TestPlugin_WatchResources: what is not implemented is not asked for again, on another connection neither."""
    driver = FakeDRADriver((*USUAL_SERVICES, V1, V1ALPHA1))
    driver.refused_services = {V1, V1ALPHA1} - set(served)
    driver.show(gpu(0))
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, dra=DRAConfig(health=mode))) as node:
        plugged = plug(node, driver, *announced)
        await trio.sleep(10)
        assert (driver.services_called, facts(node).get("device-health")) == (list(asked), shown)
        plugged.reset()
        await trio.sleep(10)
        assert (driver.services_called, facts(node).get("device-health")) == (
            [*asked, *asked[-1:][: len(served)]],
            shown,
        )


async def test_a_stream_that_ends_is_opened_again_after_5_s_and_devices_keep_their_health(
    autojump_clock: MockClock,
) -> None:
    """Consumers C.5; the e2e lines "recovery" and "reconnect"."""
    driver = driver_with(V1)
    async with SimulatedNode() as node:
        plug(node, driver, V1)
        for error, words in (
            (None, f"{V1} has ended"),
            (GRPCError(Status.INTERNAL, "nvml"), f"{V1} has ended: INTERNAL: nvml"),
        ):
            await trio.sleep(20)
            streams = driver.called(DRACall.WATCH)
            driver.end(error)
            await trio.sleep(4.9)
            assert facts(node)["device-health"] == words
            assert facts(node)["devices"] == "2 healthy, 0 unhealthy, 0 unknown"
            assert driver.called(DRACall.WATCH) == streams
            await trio.sleep(2)
            assert (facts(node)["device-health"], driver.called(DRACall.WATCH)) == (V1, streams + 1)
        assert driver.most_streams == 1


async def test_what_a_driver_has_said_holds_for_its_time_though_it_says_no_more(autojump_clock: MockClock) -> None:
    """Consumers C.5: UNIMPLEMENTED ends the stream for good. Its devices were shown as healthy for ever after that.

    TestGetHealthInfo, in a node: each device has a time of its own.
    """
    driver = driver_with(V1, devices=[gpu(0, timeout=20), gpu(1, UNHEALTHY, "ECC", timeout=3600)])
    async with SimulatedNode() as node:
        plug(node, driver, V1)
        await trio.sleep(10)
        driver.end(GRPCError(Status.UNIMPLEMENTED, "no more"))
        await trio.sleep(5)
        assert (facts(node)["device-health"], driver.called(DRACall.WATCH)) == ("not implemented", 1)
        assert facts(node)["devices"] == "1 healthy, 1 unhealthy, 0 unknown"
        await trio.sleep(10)
        assert facts(node)["device.pool-0/gpu-0"] == "Unknown (since 1970-01-01T00:00:20.000Z)"
        assert facts(node)["devices"] == "0 healthy, 1 unhealthy, 1 unknown"
        await trio.sleep(4000)
        assert facts(node)["devices"] == "0 healthy, 0 unhealthy, 2 unknown"
        assert (facts(node)["device-health"], driver.called(DRACall.WATCH)) == ("not implemented", 1)


@pytest.mark.parametrize("passes", range(0, 12, 2))
async def test_a_connection_that_a_call_makes_in_the_instant_in_which_the_last_one_ends_is_followed_at_once(
    autojump_clock: MockClock, passes: int
) -> None:
    """The call may come before the follow waits to connect again; ``passes`` of Trio's loop after the end."""
    driver = driver_with(V1)
    async with SimulatedNode() as node:
        plugged = plug(node, driver, V1)
        await trio.sleep_until(10)
        plugged.crash()
        await trio.sleep_until(100)
        plugged.listen()
        # It was tried 1, 3, 7, 15, 31, 61 and 91 s after the end. The next pause is of 30 s, too.
        await trio.sleep_until(105)
        assert driver.called(DRACall.WATCH) == 2
        plugged.reset()
        for _ in range(passes):
            await trio.lowlevel.checkpoint()
        # On the connection that has ended it fails.
        with suppress(DRACallError):
            await node.supervisor.dra_driver(NAME).prepare([CLAIM])
        if not driver.prepared:
            await node.supervisor.dra_driver(NAME).prepare([CLAIM])
        assert trio.current_time() == 105
        await trio.sleep(2)
        assert (facts(node)["device-health"], driver.called(DRACall.WATCH)) == (V1, 3)
        assert facts(node)["devices"] == "2 healthy, 0 unhealthy, 0 unknown"


async def test_each_instance_has_its_own_devices_and_those_of_the_active_one_are_shown(
    autojump_clock: MockClock,
) -> None:
    """Kubernetes 1.36 has one map for all, which the end of any stream clears: it breaks rolling updates."""
    older, newer = driver_with(V1, devices=[gpu(0)]), driver_with(V1, devices=[gpu(0), gpu(1)])
    async with SimulatedNode() as node:
        plug(node, older, V1)
        await trio.sleep(10)
        plugged = plug(node, newer, V1, socket="b.sock")
        await trio.sleep(10)
        assert (facts(node), len(facts(node, "b.sock"))) == ({"device-health": V1}, 4)
        newer.end(GRPCError(Status.INTERNAL, "nvml"))
        plugged.stop()
        await trio.sleep(2)
        assert facts(node)["devices"] == "1 healthy, 0 unhealthy, 0 unknown"
        assert (older.called(DRACall.WATCH), older.streams) == (1, 1)


async def test_a_message_that_is_refused_ends_the_stream_and_touches_nothing_else(autojump_clock: MockClock) -> None:
    driver = driver_with(V1)
    async with SimulatedNode() as node:
        plug(node, driver, V1)
        await trio.sleep(10)
        driver.show(DeviceReport("pool-0", "", HEALTHY))
        await trio.sleep(2)
        refused = f'{V1} is refused: a pool or a device is named "": a name has 1 to 253 characters that print'
        assert facts(node)["device-health"] == refused
        assert facts(node)["devices"] == "2 healthy, 0 unhealthy, 0 unknown"
        driver.show(gpu(7))
        await trio.sleep(10)
        assert (node.state("a.sock"), facts(node)["device-health"]) == ("registered", V1)
