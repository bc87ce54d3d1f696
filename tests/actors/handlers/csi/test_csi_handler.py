"""CSI drivers as they are consumed: what they are asked before they are registered, and what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from plugind.protocol.handlers.csi import CSIConfig
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.messages.consumers import CallFamily, CallsEnded
from plugind.protocol.messages.status import StatusMessage
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto import csi_v1_pb2 as api
from plugind.testing import DEFAULT_CONFIG, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

NAME = "csi.example.com"
ENDPOINT = "/plugins/csi.sock"
REGISTER = [CSICall.PLUGIN_INFO, CSICall.PLUGIN_CAPABILITIES, CSICall.NODE_CAPABILITIES, CSICall.NODE_INFO]
UNIMPLEMENTED = GRPCError(Status.UNIMPLEMENTED, "no such method")


def driver() -> FakeCSIDriver:
    return FakeCSIDriver(NAME, node_id="node-7", max_volumes=16, topology={"zone": "z1"})


def plug(node: SimulatedNode, fake: FakeCSIDriver, socket: str = "a.sock", *, name: str = NAME) -> PluggedIn:
    """Plug in a driver that is its own registrar."""
    return node.plug(socket, FakePlugin("CSIPlugin", name, serves=[fake]))


def beside(node: SimulatedNode, socket: str, endpoint: str = ENDPOINT, version: str = "1.0.0") -> PluggedIn:
    """Plug in the registrar of a driver that has its endpoint elsewhere."""
    return node.plug(socket, FakePlugin("CSIPlugin", NAME, (version,), endpoint, serves=()))


def facts(node: SimulatedNode, socket: str = "a.sock") -> dict[str, str]:
    return dict(shown(node, socket).facts)


def health(node: SimulatedNode, socket: str = "a.sock") -> tuple[Health | None, str | None]:
    return shown(node, socket).health, shown(node, socket).health_reason


def refusals(plugin: PluggedIn) -> list[str]:
    """Return what the plugin was told, without the words before it."""
    words = "RegisterPlugin error -- plugin registration failed with err: "
    return [call.error.removeprefix(words) for call in plugin.calls if call.registered is False]


def node_with(config: CSIConfig | None = None, *, strict: bool = False) -> SimulatedNode:
    return SimulatedNode(attrs.evolve(DEFAULT_CONFIG, csi=config or CSIConfig(), strict=strict))


@asynccontextmanager
async def registered(
    fake: FakeCSIDriver, config: CSIConfig | None = None
) -> AsyncIterator[tuple[SimulatedNode, PluggedIn]]:
    async with node_with(config) as node:
        plugin = plug(node, fake)
        await node.settled()
        assert node.state("a.sock") == "registered"
        yield node, plugin


# --- Register ---------------------------------------------------------------------------------------------------------


async def test_a_driver_is_asked_four_things_before_it_is_registered(autojump_clock: MockClock) -> None:
    """TestClientNodeGetInfo: id, volumes and topology come through. TestInstallCSIDriver: an empty node."""
    fake = driver()
    async with registered(fake) as (node, _):
        # At once, so that a driver may answer them in any order.
        times = [(time, call) for time, call in fake.calls if call is not CSICall.PROBE]
        assert sorted(call for _, call in times) == sorted(REGISTER)
        assert len({time for time, _ in times}) == 1
        shown = facts(node)
    assert shown.pop("refreshed").startswith("1970-01-01T00:00:0")
    assert shown == {
        "node-id": "node-7",
        "max-volumes": "16",
        "vendor-version": "1.0.0",
        "capabilities.node": "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, EXPAND_VOLUME",
        "capabilities.plugin": "CONTROLLER_SERVICE, VOLUME_ACCESSIBILITY_CONSTRAINTS",
        "csi-version": "1.0.0",
        "topology.zone": "z1",
    }


#: What is wrong with a driver, and what its registrar is told.
REFUSALS: list[tuple[str, FakeCSIDriver, str]] = []


def refused(
    what: str, error: str, call: CSICall | None = None, fails: GRPCError | None = None, **changed: object
) -> None:
    fake = driver()
    if call is not None and fails is not None:
        fake.errors[call] = fails
    elif call is not None:
        fake.hangs.add(call)
    for name, value in changed.items():
        setattr(fake, name, value)
    REFUSALS.append((what, fake, error))


refused(
    "another name", 'the driver at /plugins/a.sock calls itself "other", its registrar "csi.example.com"', name="other"
)
refused(
    "no answer to GetPluginInfo",
    'failed to get GetPluginInfo from driver "csi.example.com": no answer within 5 s',
    CSICall.PLUGIN_INFO,
)
refused(
    "GetPluginInfo refused",
    'failed to get GetPluginInfo from driver "csi.example.com": UNAVAILABLE: starting',
    CSICall.PLUGIN_INFO,
    GRPCError(Status.UNAVAILABLE, "starting"),
)
refused(
    "no answer to NodeGetInfo",
    'failed to get NodeGetInfo from driver "csi.example.com": no answer within 120 s',
    CSICall.NODE_INFO,
)
refused(
    "NodeGetInfo refused",
    'failed to get NodeGetInfo from driver "csi.example.com": INTERNAL: no metadata service',
    CSICall.NODE_INFO,
    GRPCError(Status.INTERNAL, "no metadata service"),
)
refused("no node id", "error adding CSI driver node info: driverNodeID must not be empty", node_id="")
refused(
    "a topology without end",
    "the topology of the driver has 65 segments, at most 56 are taken",
    topology={str(number): "" for number in range(65)},
)
refused(
    "a long answer",
    'failed to get NodeGetInfo from driver "csi.example.com": INTERNAL: the response is no valid NodeGetInfoResponse: '
    "it has 70003 bytes, at most 65536 are taken",
    answers={CSICall.NODE_INFO: api.NodeGetInfoResponse(node_id="n" * 69_999)},
)


@pytest.mark.parametrize(("fake", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_a_driver_is_refused_with_a_text_that_says_what_is_wrong(
    fake: FakeCSIDriver, error: str, autojump_clock: MockClock
) -> None:
    """TestClientNodeGetInfo: the error of the call surfaces, and the connection is closed. TestInstallCSIDriver: an
    empty id fails."""
    async with node_with() as node:
        plugin = plug(node, fake)
        await trio.sleep(150)
        assert node.state("a.sock") != "registered"
        assert set(refusals(plugin)) == {error}
        assert shown(node).facts == ()
        plugin.crash()
        await trio.sleep(200)
        assert plugin.connections == 0


@pytest.mark.parametrize("strict", [False, True])
async def test_a_driver_without_node_get_info_is_registered_unless_the_node_is_strict(
    strict: bool, autojump_clock: MockClock
) -> None:
    fake = driver()
    fake.errors[CSICall.NODE_INFO] = UNIMPLEMENTED
    async with node_with(strict=strict) as node:
        plugin = plug(node, fake)
        await trio.sleep(5)
        if strict:
            text = 'failed to get NodeGetInfo from driver "csi.example.com": UNIMPLEMENTED: no such method'
            assert set(refusals(plugin)) == {text}
        else:
            assert (node.state("a.sock"), facts(node)["node-id"], "max-volumes" in facts(node)) == (
                "registered",
                "none",
                False,
            )


async def test_a_driver_that_has_no_capabilities_has_none(autojump_clock: MockClock) -> None:
    fake = driver()
    fake.errors = dict.fromkeys((CSICall.NODE_CAPABILITIES, CSICall.PLUGIN_CAPABILITIES), UNIMPLEMENTED)
    async with registered(fake) as (node, _):
        await trio.sleep(1000)
        assert (facts(node)["capabilities.node"], facts(node)["capabilities.plugin"]) == ("none", "none")
        assert fake.called(CSICall.NODE_CAPABILITIES) == 1


async def test_a_driver_that_does_not_say_what_it_can_do_is_registered_and_asked_again(
    autojump_clock: MockClock,
) -> None:
    """The kubelet does not ask; to refuse it would shut out drivers that are still starting."""
    fake = driver()
    fake.errors[CSICall.NODE_CAPABILITIES] = GRPCError(Status.UNAVAILABLE, "starting")
    fake.hangs.add(CSICall.PLUGIN_CAPABILITIES)
    async with node_with() as node:
        plug(node, fake)
        await trio.sleep(5 + 2)
        assert node.state("a.sock") == "registered"
        shown = facts(node)
        assert shown["capabilities.node"] == "unknown: UNAVAILABLE: starting"
        assert shown["capabilities.plugin"] == "unknown: no answer within 5 s"
        fake.hangs.clear()
        await trio.sleep(31)
        assert facts(node)["capabilities.plugin"] == "CONTROLLER_SERVICE, VOLUME_ACCESSIBILITY_CONSTRAINTS"
        fake.errors.clear()
        await trio.sleep(61)
        assert facts(node)["capabilities.node"] == "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, EXPAND_VOLUME"
        asked = fake.called(CSICall.NODE_CAPABILITIES)
        await trio.sleep(1000)
        assert (fake.called(CSICall.NODE_CAPABILITIES), fake.called(CSICall.NODE_INFO)) == (asked, 1)


# --- metrics ----------------------------------------------------------------------------------------------------------


async def codes(fake: FakeCSIDriver, seconds: float) -> list[tuple[str, str, float]]:
    """Return method, code and seconds of each call that is reported of a driver whose socket goes after some time."""
    send, receive = trio.open_memory_channel[StatusMessage](100)
    async with SimulatedNode(handlers={"CSIPlugin": CSIHandler(status=send)}) as node:
        plugin = plug(node, fake)
        await trio.sleep(seconds)
        plugin.unlink()
        await trio.sleep(1)
    send.close()
    reported = [message async for message in receive]
    calls = [call for message in reported if isinstance(message, CallsEnded) for call in message.calls]
    assert {(call.family, call.name) for call in calls} == {(CallFamily.CSI, NAME)}
    return [(call.method.rpartition("/")[2], call.code, round(call.seconds, 6)) for call in calls]


async def test_each_call_that_asks_for_facts_is_counted(autojump_clock: MockClock) -> None:
    fake = driver()
    fake.delays[CSICall.NODE_INFO] = 2.0
    fake.errors[CSICall.NODE_CAPABILITIES] = UNIMPLEMENTED
    assert await codes(fake, 60) == [
        ("GetPluginInfo", "OK", 0.0),
        ("GetPluginCapabilities", "OK", 0.0),
        ("NodeGetCapabilities", "UNIMPLEMENTED", 0.0),
        ("NodeGetInfo", "OK", 2.0),
    ]


# --- drivers that come late, or never answer --------------------------------------------------------------------------


async def test_a_driver_that_starts_20_seconds_after_its_registrar_is_registered(autojump_clock: MockClock) -> None:
    """The kubelet tells the registrar at once that it failed, which exits then."""
    async with node_with() as node:
        registrar = beside(node, "a-reg.sock")
        await trio.sleep(20)
        assert node.state("a-reg.sock") == "registering"
        node.plug("csi.sock", [driver()])
        await trio.sleep(1)
        assert (node.state("a-reg.sock"), refusals(registrar)) == ("registered", [])


async def test_the_older_driver_stays_until_the_newer_one_has_answered(autojump_clock: MockClock) -> None:
    """The kubelet overwrites it first. TestDriversStore: an entry is replaced by one of its name."""
    older, newer = driver(), driver()
    newer.hangs.add(CSICall.NODE_INFO)
    async with node_with() as node:
        plug(node, older)
        await node.settled()
        second = node.plug("b.sock", FakePlugin("CSIPlugin", NAME, ("1.1.0",), serves=[newer]))
        await trio.sleep(60)
        assert [(node.state(name), shown(node, name).active) for name in ("a.sock", "b.sock")] == [
            ("registered", True),
            ("registering", None),
        ]
        await trio.sleep(70)
        assert refusals(second)[0].endswith("no answer within 120 s")
        assert shown(node).active is True
        newer.hangs.clear()
        await trio.sleep(130)
        assert [(node.state(name), shown(node, name).active) for name in ("a.sock", "b.sock")] == [
            ("registered", False),
            ("registered", True),
        ]


# --- topology ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["refuse", "warn"])
async def test_two_drivers_that_give_a_key_different_values_collide(word: str, autojump_clock: MockClock) -> None:
    """TestInstallCSIDriver: a topology collision fails; another driver and new keys do not. TestUninstallCSIDriver: the
    topology of a driver goes with it."""
    config = CSIConfig(topology_collisions="refuse" if word == "refuse" else "warn")
    collision = (
        'detected topology value collision: driver reported "zone":"z2" but existing label is "zone":"z1"'
        ' (of the driver "csi.example.com")'
    )
    async with node_with(config) as node:
        first = plug(node, driver())
        await node.settled()
        other = FakeCSIDriver("other", topology={"zone": "z2"})
        second = plug(node, other, "b.sock", name="other")
        await trio.sleep(5)
        if word == "refuse":
            assert set(refusals(second)) == {f"{collision}; with 'plugind run --csi-topology warn' both are registered"}
            first.stop()
            await node.settled()
        else:
            assert shown(node, "b.sock").warnings == (collision,)
        assert node.state("b.sock") == "registered"


# --- facts that change ------------------------------------------------------------------------------------------------


async def test_node_info_is_asked_for_again_and_a_change_is_an_event(autojump_clock: MockClock) -> None:
    """TestSyncDriverUpdater: one timer for each driver, which ends with it."""
    fake = driver()
    async with registered(fake, CSIConfig(refresh=100)) as (node, plugin):
        await trio.sleep(130)
        asked = fake.called(CSICall.NODE_INFO)
        assert asked == 2
        assert "facts" not in str(shown(node).history)
        fake.max_volumes = 8
        await trio.sleep(130)
        assert facts(node)["max-volumes"] == "8"
        history = [entry.reason for entry in (await node.supervisor.snapshot()).plugins[0].history]
        assert history[-1] == "facts: max-volumes is 8, was 16"
        plugin.stop()
        await node.settled()
        asked = fake.called(CSICall.NODE_INFO)
        await trio.sleep(1000)
        assert fake.called(CSICall.NODE_INFO) == asked


async def test_a_refresh_that_fails_keeps_the_facts_with_their_age(autojump_clock: MockClock) -> None:
    fake = driver()
    async with registered(fake, CSIConfig(refresh=100)) as (node, _):
        await trio.sleep(1)
        before = facts(node)
        for error in (GRPCError(Status.UNAVAILABLE, "no metadata"), None):
            if error is not None:
                fake.errors[CSICall.NODE_INFO] = error
            else:
                fake.errors.clear()
                fake.node_id = ""
            await trio.sleep(130)
            after = facts(node)
            answered, _, tried = after.pop("refreshed").partition(" ")
            assert after | {"refreshed": answered} == before
            assert ("no metadata" in tried) is (error is not None)
            assert ("driverNodeID must not be empty" in tried) is (error is None)
        fake.node_id = "node-8"
        await trio.sleep(130)
        assert facts(node)["node-id"] == "node-8"
        assert "(" not in facts(node)["refreshed"]
        assert node.state("a.sock") == "registered"


async def test_a_refresh_that_hangs_delays_nothing_but_the_next(autojump_clock: MockClock) -> None:
    fake = driver()
    async with registered(fake, CSIConfig(refresh=10)) as (node, plugin):
        await trio.sleep(5)
        fake.hangs.add(CSICall.NODE_INFO)
        await trio.sleep(100)
        assert (fake.called(CSICall.NODE_INFO), health(node)[0]) == (2, Health.HEALTHY)
        plugin.stop()
        await trio.sleep(1)
        assert (node.state("a.sock"), fake.under_way) == (None, 0)


# --- health -----------------------------------------------------------------------------------------------------------


async def test_a_driver_that_is_not_ready_is_starting_for_a_minute_and_then_unhealthy(
    autojump_clock: MockClock,
) -> None:
    fake = driver()
    fake.ready = False
    async with registered(fake) as (node, _):
        began = trio.current_time()
        await trio.sleep(31)
        assert health(node) == (Health.STARTING, "driver responded but is not ready")
        await trio.sleep(28)
        assert health(node) == (Health.STARTING, "driver responded but is not ready")
        await trio.sleep(3)
        assert health(node) == (Health.UNHEALTHY, "driver responded but is not ready")
        assert shown(node).failed_checks >= 3
        since = shown(node).health_since
        assert since is not None
        assert since - began == pytest.approx(60, abs=0.01)
        fake.ready = None
        await trio.sleep(37)
        assert health(node) == (Health.HEALTHY, None)
        assert node.state("a.sock") == "registered"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GRPCError(Status.FAILED_PRECONDITION, "the disk array is gone"), "the disk array is gone"),
        (GRPCError(Status.FAILED_PRECONDITION, ""), "FAILED_PRECONDITION: no message"),
        (GRPCError(Status.UNAVAILABLE, "busy"), "UNAVAILABLE: busy"),
        (None, "no answer within 3s"),
    ],
)
async def test_what_a_failing_probe_says_is_shown_after_the_third_time(
    error: GRPCError | None, reason: str, autojump_clock: MockClock
) -> None:
    fake = driver()
    async with registered(fake) as (node, _):
        await trio.sleep(100)
        if error is None:
            fake.hangs.add(CSICall.PROBE)
        else:
            fake.errors[CSICall.PROBE] = error
        before = node.timeline("a.sock")
        await trio.sleep(60)
        assert health(node) == (Health.UNHEALTHY, reason)
        fake.errors.clear()
        fake.hangs.clear()
        await trio.sleep(40)
        assert health(node) == (Health.HEALTHY, None)
        assert node.timeline("a.sock") == before


async def test_a_driver_without_probe_is_healthy_while_it_is_connected(autojump_clock: MockClock) -> None:
    fake = driver()
    fake.errors[CSICall.PROBE] = UNIMPLEMENTED
    async with registered(fake) as (node, plugin):
        await trio.sleep(500)
        assert (health(node), fake.called(CSICall.PROBE)) == ((Health.HEALTHY, None), 1)
        plugin.reset()
        await trio.sleep(0.5)
        assert health(node)[0] is Health.DISCONNECTED
        await trio.sleep(60)
        assert (health(node), fake.called(CSICall.PROBE)) == ((Health.HEALTHY, None), 2)


async def test_a_driver_whose_connection_ends_is_disconnected_at_once_and_dialed_again(
    autojump_clock: MockClock,
) -> None:
    """TestGetNodeAllocatableUpdatePeriod, TestSyncDriverUpdater: without a period, NodeGetInfo is called once."""
    fake = driver()
    async with node_with() as node:
        beside(node, "a.sock")
        served = node.plug("csi.sock", [fake])
        await node.settled()
        await trio.sleep(100)
        assert health(node) == (Health.HEALTHY, None)
        served.crash()
        await trio.sleep(0.01)
        assert health(node)[0] is Health.DISCONNECTED
        await trio.sleep(600)
        assert health(node)[0] is Health.DISCONNECTED
        assert health(node)[1] == "no connection to the endpoint /plugins/csi.sock: Connection refused"
        assert node.state("a.sock") == "registered"
        served.restart()
        await trio.sleep(62)
        assert health(node) == (Health.HEALTHY, None)
        assert fake.called(CSICall.NODE_INFO) == 1


async def test_a_driver_may_be_asked_nothing_after_its_registration(autojump_clock: MockClock) -> None:
    fake = driver()
    off = HealthChecks(off={"CSIPlugin"})
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, health_checks=off)) as node:
        plug(node, fake)
        await node.settled()
        await trio.sleep(500)
        assert fake.called(CSICall.PROBE) == 0
        assert health(node) == (
            Health.UNKNOWN,
            "checks of its type are off: 'plugind run --health CSIPlugin=30' turns them on",
        )
