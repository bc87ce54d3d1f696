"""A node in observe mode: plugins are found, asked what they are and how they are, and told nothing.

Each test is a timeline in virtual time of a simulated node.
"""

from __future__ import annotations

import itertools

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.config import LeasesConfig, LeaseUsers
from plugind.protocol.leases.values import Pool
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus
from plugind.protocol.settings.config import Config, DevicePluginDirectory, Root
from plugind.supervisor import Supervisor
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, PluggedIn, SimulatedNode

CSI = "csi.example.com"
#: Without jitter in the checks, so that times read as they are meant.
OBSERVE = attrs.evolve(DEFAULT_CONFIG, observe=True, observe_again=None)
FOUND = [(0.0, "observed")]


def status(node: SimulatedNode, socket: str = "a.sock") -> PluginStatus:
    shown = node.status(socket)
    assert shown is not None
    return shown


def calls(plugin: PluggedIn) -> list[str]:
    return [call.method for call in plugin.calls]


async def test_a_plugin_is_asked_what_it_is_and_observed_and_no_handler_is_called(autojump_clock: MockClock) -> None:
    """Behaviour 45."""
    async with SimulatedNode(OBSERVE) as node:
        plugin = node.plug("a.sock", FakePlugin("Other", "a.example.com"))
        await node.settled()
        assert node.timeline("a.sock") == FOUND
        assert calls(plugin) == ["GetInfo"]
        shown = status(node)
        assert (shown.name, shown.type, shown.active, shown.serving, shown.health) == (
            "a.example.com",
            "Other",
            None,
            None,
            None,
        )
        assert (shown.registered_in, shown.reason, shown.cause) == (None, None, None)
        assert node.supervisor.internals.handlers.count == 0
        plugin.stop()
        await node.settled()
    assert [state for _, state in node.timeline("a.sock")][-1] == "gone"
    assert calls(plugin) == ["GetInfo"]


async def test_a_replaced_socket_is_asked_again_and_a_removed_one_is_gone(autojump_clock: MockClock) -> None:
    async with SimulatedNode(OBSERVE) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", CSI))
        await trio.sleep(20.0)
        plugin.restart()
        await trio.sleep(20.0)
        assert node.timeline("a.sock") == [*FOUND, *((time + 20.0, state) for time, state in FOUND)]
        assert [entry.generation for entry in node.history("a.sock")] == [1, 2]
        plugin.stop()
        await node.settled()
        assert node.leftovers() == []
    assert node.timeline("a.sock")[-1] == (40.0, "gone")
    assert calls(plugin) == ["GetInfo", "GetInfo"]


async def test_a_stop_tells_a_plugin_nothing_even_where_it_deregisters(autojump_clock: MockClock) -> None:
    async with SimulatedNode(attrs.evolve(OBSERVE, deregister_at_stop=True)) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", CSI))
        await node.settled()
        await node.stop()
        assert node.timeline("a.sock") == FOUND
        await node.start()
        await node.settled()
    assert calls(plugin) == ["GetInfo", "GetInfo"]


async def test_a_crash_of_the_reconciler_or_of_a_registration_tells_a_plugin_nothing(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(OBSERVE) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", CSI))
        await node.settled()
        assert node.crash("registration", "a.sock")
        await node.settled()
        assert node.state("a.sock") == "observed"
        assert node.crash("reconciler")
        await node.settled()
        assert node.state("a.sock") == "observed"
        await trio.sleep(60.0)
        assert status(node).health is Health.HEALTHY
        assert len(node.supervisor.internals.links) == 1
    assert calls(plugin) == ["GetInfo"] * 3


async def test_a_plugin_with_bad_info_is_shown_with_the_reason_and_is_not_told_it(autojump_clock: MockClock) -> None:
    """A registrar that is told that it is not registered exits."""
    async with SimulatedNode(OBSERVE) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "x" * 300))
        await trio.sleep(1.0)
        assert node.timeline("a.sock") == [
            (0.0, "waiting"),
            (0.5, "dialing"),
            (0.5, "asking-info"),
            (0.5, "waiting"),
        ]
        assert "300 characters" in (status(node).cause or "")
    assert set(calls(plugin)) == {"GetInfo"}


async def test_a_plugin_without_getinfo_is_parked_and_a_silent_one_waits(autojump_clock: MockClock) -> None:
    unimplemented = GRPCError(Status.UNIMPLEMENTED, "no such method")
    async with SimulatedNode(OBSERVE) as node:
        odd = node.plug("odd.sock", FakePlugin("CSIPlugin", "odd", get_info_fails=99, error=unimplemented))
        silent = node.plug("silent.sock", FakePlugin("CSIPlugin", "silent", hang="get-info"))
        await trio.sleep(1.2)
        assert (node.state("odd.sock"), node.state("silent.sock")) == ("parked", "waiting")
    assert {*calls(odd), *calls(silent)} == {"GetInfo"}


async def test_a_dead_plugin_is_stale_and_is_observed_again_once_it_listens(autojump_clock: MockClock) -> None:
    """The kubelet keeps it registered, and shows nothing."""
    async with SimulatedNode(OBSERVE) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", CSI))
        await trio.sleep(30.0)
        plugin.crash()
        await trio.sleep(5.0)
        assert node.timeline("a.sock")[:3] == [*FOUND, (30.0, "dialing"), (31.0, "stale")]
        assert (node.state("a.sock"), status(node).health) == ("stale", None)
        plugin.listen()
        await node.settled()
        await trio.sleep(60.0)
        assert (node.state("a.sock"), status(node).health) == ("observed", Health.HEALTHY)
    assert calls(plugin) == ["GetInfo", "GetInfo"]


async def test_an_observed_plugin_is_asked_again_and_nobody_is_shown_that(autojump_clock: MockClock) -> None:
    async with SimulatedNode(attrs.evolve(OBSERVE, observe_again=60.0)) as node:
        plugins = [node.plug(f"{name}.sock", FakePlugin("Other", f"{name}.example.com")) for name in "abc"]
        await trio.sleep(300.0)
        assert node.timeline("a.sock") == FOUND
    asked = [[round(call.time, 3) for call in plugin.calls] for plugin in plugins]
    gaps = [after - before for times in asked for before, after in itertools.pairwise(times)]
    assert len(gaps) >= 12
    assert all(48.0 <= gap <= 72.0 for gap in gaps)
    assert len({times[1] for times in asked}) == len(plugins), "each socket has a jitter of its own"


async def test_a_plugin_that_changes_its_name_at_the_same_socket_is_shown_with_both(autojump_clock: MockClock) -> None:
    async with SimulatedNode(attrs.evolve(OBSERVE, observe_again=60.0)) as node:
        fake = FakePlugin("CSIPlugin", "old.example.com", serves=[driver := FakeCSIDriver("old.example.com")])
        plugin = node.plug("a.sock", fake)
        await trio.sleep(30.0)
        assert dict(status(node).facts)["vendor-version"] == "1.0.0"
        fake.name = driver.name = "new.example.com"
        driver.vendor_version = "2.0.0"
        await trio.sleep(60.0)
        shown = status(node)
        assert (shown.name, shown.state) == ("new.example.com", "observed")
        assert shown.reason == 'at the same socket it gave the name "old.example.com" before'
        assert dict(shown.facts)["vendor-version"] == "2.0.0"
        assert [state for _, state in node.timeline("a.sock")] == ["observed", "observed"]
    assert set(calls(plugin)) == {"GetInfo"}


async def test_a_plugin_that_hangs_waits_and_is_observed_again_when_it_answers(autojump_clock: MockClock) -> None:
    """The kubelet, which asks once, does not find that out."""
    async with SimulatedNode(attrs.evolve(OBSERVE, observe_again=60.0)) as node:
        plugin = node.plug("a.sock", FakePlugin("Other", "a.example.com"))
        await trio.sleep(10.0)
        plugin.suspend()
        await trio.sleep_until(98.0)
        assert [state for _, state in node.timeline("a.sock")[:2]] == ["observed", "waiting"]
        assert node.state("a.sock") == "waiting"
        assert "GetInfo failed" in (status(node).cause or "")
        plugin.resume()
        await trio.sleep(130.0)
        assert node.state("a.sock") == "observed"
        assert status(node).reason is None


# --- CSI --------------------------------------------------------------------------------------------------------------


async def test_a_csi_driver_is_followed_without_nodegetinfo(autojump_clock: MockClock) -> None:
    async with SimulatedNode(OBSERVE) as node:
        driver = FakeCSIDriver(CSI)
        node.plug("a.sock", FakePlugin("CSIPlugin", CSI, serves=[driver]))
        await trio.sleep(600.0)
        shown = status(node)
        assert (shown.health, shown.health_reason) == (Health.HEALTHY, None)
        facts = dict(shown.facts)
        assert facts.pop("refreshed").startswith("1970-")
        assert facts == {
            "vendor-version": "1.0.0",
            "capabilities.node": "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, EXPAND_VOLUME",
            "capabilities.plugin": "CONTROLLER_SERVICE, VOLUME_ACCESSIBILITY_CONSTRAINTS",
            "csi-version": "1.0.0",
        }
        asked = [call for _, call in driver.calls]
        assert asked[:3] == [CSICall.PLUGIN_INFO, CSICall.PLUGIN_CAPABILITIES, CSICall.NODE_CAPABILITIES]
        assert set(asked[3:]) == {CSICall.PROBE}
        assert len(asked[3:]) >= 15
        (answer,) = await node.supervisor.retry(CSI, facts=True)
        assert answer.tried
        driver.vendor_version = "1.0.1"
        await trio.sleep(2.0)
        assert dict(status(node).facts)["vendor-version"] == "1.0.1"
    assert CSICall.NODE_INFO not in [call for _, call in driver.calls]


async def test_a_csi_driver_whose_endpoint_is_missing_is_observed_and_disconnected(autojump_clock: MockClock) -> None:
    async with SimulatedNode(attrs.evolve(OBSERVE, endpoint_directories=("/plugins",))) as node:
        node.plug("a.sock", FakePlugin("CSIPlugin", CSI, endpoint="/plugins/csi/csi.sock", serves=()))
        await trio.sleep(30.0)
        shown = status(node)
        assert (shown.state, shown.health) == ("observed", Health.DISCONNECTED)
        why = "no connection to the endpoint /plugins/csi/csi.sock: No such file or directory"
        assert (shown.health_reason, shown.warnings) == (why, ("endpoint does not exist yet",))
        node.plug("csi/csi.sock", [FakeCSIDriver(CSI)])
        await trio.sleep(120.0)
        assert status(node).health is Health.HEALTHY
        assert dict(status(node).facts)["vendor-version"] == "1.0.0"


# --- DRA --------------------------------------------------------------------------------------------------------------


async def test_a_dra_driver_is_healthy_as_long_as_there_is_a_connection(autojump_clock: MockClock) -> None:
    config = attrs.evolve(OBSERVE, endpoint_directories=("/plugins",))
    async with SimulatedNode(config) as node:
        served = FakePlugin("DRAPlugin", "gpu.example.com", ("v1.DRAPlugin",), "/plugins/gpu/dra.sock", serves=())
        node.plug("gpu-reg.sock", served)
        await trio.sleep(10.0)
        assert (status(node, "gpu-reg.sock").state, status(node, "gpu-reg.sock").health) == (
            "observed",
            Health.DISCONNECTED,
        )
        endpoint = node.plug("gpu/dra.sock", [*FakePlugin("DRAPlugin", "gpu.example.com").serves])
        await trio.sleep(40.0)
        shown = status(node, "gpu-reg.sock")
        assert shown.health is Health.HEALTHY
        assert dict(shown.facts)["service"] == "v1.DRAPlugin"
        assert dict(shown.facts)["connected"].startswith("since ")
        endpoint.suspend()
        await trio.sleep(200.0)
        assert status(node, "gpu-reg.sock").health is Health.HEALTHY, "the connection alone counts"
        endpoint.crash()
        await trio.sleep(5.0)
        shown = status(node, "gpu-reg.sock")
        assert (shown.health, dict(shown.facts)["connected"]) == (Health.DISCONNECTED, "no")


# --- several plugins, roots, and what cannot be configured ------------------------------------------------------------


async def test_a_missing_root_is_not_made_and_is_watched_once_it_is_there(autojump_clock: MockClock) -> None:
    node = SimulatedNode(attrs.evolve(OBSERVE, roots=(Root("/run/reg"),)))
    node.directory.remove_tree("/run/reg")
    async with node:
        await trio.sleep(100.0)
        (root,) = (await node.snapshot()).roots
        assert (root.watching, root.made, root.reason) == ("unavailable", False, "/run/reg is missing")
        node.directory.mkdir("/run/reg")
        node.plug("a.sock", FakePlugin("Other", "a.example.com"))
        await trio.sleep(40.0)
        assert node.state("a.sock") == "observed"


LAB = Pool("lab", "example.com/gpu", frozenset({"0"}), frozenset())
NO_LEASES = "--observe leases no devices: leave out --pool, --lease-uids and --lease-group"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            Config(device_plugins=DevicePluginDirectory("/dp")),
            "--observe never serves kubelet.sock: leave out --device-plugins",
        ),
        (Config(leases=LeasesConfig(pools=(LAB,))), NO_LEASES),
        (Config(leases=LeasesConfig(users=LeaseUsers(frozenset({7})))), NO_LEASES),
        (Config(leases=LeasesConfig(operators=frozenset({7}))), NO_LEASES),
        (Config(state="/var/lib/plugind"), "--observe keeps no state: leave out --state"),
    ],
)
def test_a_node_that_observes_serves_nobody_and_keeps_nothing(config: Config, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        attrs.evolve(config, observe=True)
    assert str(refused.value) == text


async def test_a_node_that_observes_takes_no_handler(autojump_clock: MockClock) -> None:
    with pytest.raises(ConfigError, match="a node that observes has no handlers: leave out those for T"):
        Supervisor(Config(observe=True), handlers={"T": FakeHandler()})
    async with SimulatedNode(OBSERVE) as node:
        with pytest.raises(ConfigError, match="a node that observes has no handlers: add none for T"):
            await node.supervisor.add_handler("T", FakeHandler())
