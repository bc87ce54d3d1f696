"""Plugins on Kubernetes' own Go code (``tests/peers``), each registered with a daemon and served by it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind import Config, DRACallError, DRAClaim, DRAClaimError, PreparedDevice, Root, Supervisor
from plugind.protocol.plugins.health import Health
from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.leasing import allocate, listed
from plugind.tests.end_to_end.node_health import until
from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, Daemon, PluginProcess, daemon, plugin_process, run

pytestmark = pytest.mark.extended

GPU = "example.com/gpu"
DRIVER = "gpu.example.com"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


async def calls_at_the_end(plugin: PluginProcess) -> list[str]:
    """End it, and return the names of all calls that it had, in the order in which it printed them."""
    assert await plugin.end() == 0
    lines = plugin.lines + [json.loads(line) for line in (await plugin.rest()).splitlines()]
    return [str(line["call"]) for line in lines if "call" in line]


async def test_a_plugin_on_the_current_grpc_go_is_registered_and_leaves(patient: Daemon) -> None:
    directory = patient.root / "grpc-go"
    await patient.ready()
    directory.mkdir()
    socket = directory / "a.sock"
    async with patient.watch() as watch:
        # Its handler calls the service of a CSI driver, but of a DRA driver not before somebody asks for a claim.
        options = ("--type", "DRAPlugin", "--versions", "v1.DRAPlugin,v1beta1.DRAPlugin")
        async with plugin_process([peer("grpc-go"), *options, str(socket), "go.example.com"]) as plugin:
            await plugin.line(call="GetInfo")
            await plugin.notified_registered()
            shown = await watch.state(socket, "registered")
            calls = await calls_at_the_end(plugin)
        await watch.state(socket, "gone")
    facts = ("DRAPlugin", "go.example.com", ["v1.DRAPlugin", "v1beta1.DRAPlugin"], 1, plugin.process.pid)
    assert tuple(shown[key] for key in ("type", "name", "versions", "attempt", "pid")) == facts
    assert calls == ["GetInfo", "NotifyRegistrationStatus"]


@pytest.mark.parametrize("route", ["call", "socket"])
async def test_the_kubelets_stub_of_a_device_plugin_lists_its_devices_and_leases_them(place: Path, route: str) -> None:
    directory = place / ("called" if route == "call" else "root")
    (place / "called").mkdir()
    socket = directory / "gpu.sock"
    options = ("--kubelet", str(directory / "kubelet.sock")) if route == "call" else ()
    with daemon(place, "--device-plugins", str(place / "called"), timeouts=PATIENT) as node:
        await node.ready()
        async with plugin_process([peer("dp-stub"), "--devices", "3", *options, str(socket), GPU]) as plugin:
            await plugin.line(listening=str(socket))
            await listed(node, GPU)
            status, lease = await allocate(node, GPU, 2)
            said = await plugin.line(call="Allocate")
            command = ("allocate", "--status", node.status, f"{GPU}=1", "--", "env")
            done = await trio.to_thread.run_sync(partial(run, *command))
            again = await plugin.line(call="Allocate")
            calls = await calls_at_the_end(plugin)
    assert (status, lease["devices"]) == (201, {GPU: ["gpu-0", "gpu-1"]})
    assert (said["ids"], lease["answer"]["env"]) == ([["gpu-0", "gpu-1"]], {"DP_STUB": "gpu-0,gpu-1"})
    assert (done.code, again["ids"]) == (0, [["gpu-2"]]), done
    assert "DP_STUB=gpu-2" in done.out.splitlines()
    assert sorted(calls) == ["Allocate"] * 2 + ["Register"] * (route == "call")


@pytest.mark.parametrize("instance", ["", "new"])
async def test_a_driver_on_kubernetes_helper_for_dra_is_usable_and_tells_of_its_devices(
    place: Path, instance: str
) -> None:
    registry, own = _directories(place)
    options = ("--uid", instance) if instance else ()
    with daemon(place, root=registry, timeouts=PATIENT) as node:
        await node.ready()
        async with plugin_process([peer("dra-driver"), *options, DRIVER, str(registry), str(own)]) as plugin:
            await plugin.notified_registered()
            await plugin.command("unhealthy other")
            said = "1 healthy, 1 unhealthy, 0 unknown"
            facts = await node.facts(DRIVER, lambda facts: facts.get("devices") == said)
            calls = await calls_at_the_end(plugin)
    assert (facts["usable"], facts["service"]) == ("yes, by 1 instance", "v1.DRAPlugin")
    assert sorted(calls) == ["GetInfo", "NodeWatchResources", "NotifyRegistrationStatus"]


async def test_a_driver_on_kubernetes_helper_for_dra_prepares_claims(place: Path) -> None:
    """TestGRPCMethods, and fault 54: a server of grpc-go sends a PING for each request, and these are no flood."""
    registry, own = _directories(place)
    claims = [DRAClaim("default", "uid-1", "train"), DRAClaim("default", "uid-2", "infer")]
    with trio.fail_after(DEADLINE):
        async with (
            Supervisor(Config(roots=(Root(registry),))) as node,
            plugin_process([peer("dra-driver"), DRIVER, str(registry), str(own)]) as plugin,
        ):
            await plugin.notified_registered()
            driver = node.dra_driver(DRIVER)
            prepared = await driver.prepare(claims)
            called = await plugin.line(call="NodePrepareResources")
            await plugin.line(prepared=["uid-1", "uid-2"])
            for _ in range(150):
                assert await driver.prepare(claims) == prepared
            await driver.unprepare(claims)
            await plugin.line(unprepared=["uid-1", "uid-2"])
            with pytest.raises(DRAClaimError, match="it is broken"):
                await driver.prepare([DRAClaim("default", "uid-3", "broken")])
            with pytest.raises(DRACallError, match='"missing" not found'):
                await driver.prepare([DRAClaim("default", "uid-4", "missing")])
            assert await plugin.end() == 0
    assert (called["service"], called["claims"]) == (SERVICE, ["uid-1", "uid-2"])
    assert prepared == {
        claim.uid: (PreparedDevice(("request",), "pool", "device", (f"{DRIVER}/claim={claim.uid}",)),)
        for claim in claims
    }


async def test_in_a_rolling_update_claims_go_to_the_newer_instance_of_a_driver(place: Path) -> None:
    registry, own = _directories(place)
    first, second = DRAClaim("default", "uid-1", "train"), DRAClaim("default", "uid-2", "infer")
    places = (DRIVER, str(registry), str(own))
    with trio.fail_after(DEADLINE):
        async with Supervisor(Config(roots=(Root(registry),))) as node, AsyncExitStack() as stack:
            old = await stack.enter_async_context(plugin_process([peer("dra-driver"), "--uid", "old", *places]))
            await old.notified_registered()
            older = await until(node, Health.HEALTHY)
            driver = node.dra_driver(DRIVER)
            await driver.prepare([first])
            await old.line(prepared=["uid-1"])
            new = await stack.enter_async_context(plugin_process([peer("dra-driver"), "--uid", "new", *places]))
            await new.notified_registered()
            # The newest instance is active once it is connected, which may be after it is registered.
            await until(node, Health.HEALTHY, after=older.generation)
            await driver.prepare([second])
            await new.line(prepared=["uid-2"])
            first_calls = await calls_at_the_end(old)
            await driver.unprepare([first, second])
            await new.line(unprepared=["uid-1", "uid-2"])
            second_calls = await calls_at_the_end(new)
    about_claims = [
        [call for call in calls if call in ("NodePrepareResources", "NodeUnprepareResources")]
        for calls in (first_calls, second_calls)
    ]
    assert about_claims == [["NodePrepareResources"], ["NodePrepareResources", "NodeUnprepareResources"]]


def _directories(place: Path) -> tuple[Path, Path]:
    registry, own = place / "plugins_registry", place / "plugins" / DRIVER
    registry.mkdir()
    own.mkdir(parents=True)
    return registry, own
