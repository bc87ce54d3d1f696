"""A DRA driver on grpc-go, arranged as by the Go helper of Kubernetes: late, killed, updated, and asked for claims."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from plugind import Config, DRACallError, DRAClaim, DRAClaimError, DRAConfig, PreparedDevice, Root, Supervisor
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.status import StateName
from plugind.tests.end_to_end.dra_programs import GoDriver
from plugind.tests.end_to_end.processes import DEADLINE, daemon, plugin_process

NAME = "gpu.example.com"
GONE = StateName.GONE
CLAIM = DRAClaim("default", "8c1ae4a7-6a3f", "train")


def driver_in(directory: Path, uid: str = "") -> GoDriver:
    """Return an instance that has its sockets where a kubelet looks for them."""
    registry, own = directory / "plugins_registry", directory / "plugins" / NAME
    registry.mkdir(exist_ok=True)
    own.mkdir(parents=True, exist_ok=True)
    return GoDriver(NAME, registry, own, uid)


# --- with a daemon ----------------------------------------------------------------------------------------------------


async def test_a_driver_that_listens_late_tells_of_its_devices_is_killed_and_is_back(place: Path) -> None:
    """Consumers C.1 to C.5, the e2e lines "endpoint that listens only after registration" and "reflected"."""
    driver = driver_in(place)
    with daemon(place, root=driver.registry) as node:
        await node.ready()
        async with plugin_process(driver.command("-late")) as plugin:
            await plugin.notified_registered()
            late = await node.facts(NAME, lambda facts: "usable" in facts)
            await plugin.command("listen")
            await plugin.line(call="NodeWatchResources", service="v1alpha1.DRAResourceHealth")
            await plugin.command("healthy pool-0/gpu-0")
            await plugin.command("unhealthy pool-0/gpu-1 ECC error")
            bad = "1 healthy, 1 unhealthy, 0 unknown"
            usable = await node.facts(NAME, lambda facts: facts.get("devices") == bad)
            await plugin.command("healthy pool-0/gpu-1")
            good = "2 healthy, 0 unhealthy, 0 unknown"
            await node.facts(NAME, lambda facts: facts.get("devices") == good)
            await plugin.end(signal.SIGKILL)
        lost = await node.facts(NAME, lambda facts: facts.get("connected") == "no")
        async with plugin_process(driver.command()) as plugin:
            await plugin.notified_registered()
            back = await node.facts(NAME, lambda facts: facts.get("connected", "no") != "no")
        _, history = await node.get(f"/plugins/{NAME}")
        log = node.log.read_text()
    assert (late["service"], late["connected"], late["usable"][:8]) == ("v1.DRAPlugin", "no", "no since")
    assert usable["usable"] == back["usable"] == "yes, by 1 instance"
    assert usable["device.pool-0/gpu-1"].startswith("Unhealthy: ECC error (since ")
    # It was away for less than 30 s.
    assert (lost["usable"][:8], lost["devices"]) == ("no since", "0 healthy, 0 unhealthy, 2 unknown")
    assert b"driver-gone" not in history
    assert "has had no connected instance" not in log


# --- with a node that a program embeds --------------------------------------------------------------------------------


@asynccontextmanager
async def embedded(directory: Path, gone_after: float = DEADLINE) -> AsyncIterator[Supervisor]:
    root = driver_in(directory).registry
    with trio.fail_after(DEADLINE):
        async with Supervisor(Config(roots=(Root(root),), dra=DRAConfig(gone_after=gone_after))) as node:
            yield node


@pytest.mark.parametrize(
    ("versions", "service"),
    [("v1.DRAPlugin,v1beta1.DRAPlugin", "v1.DRAPlugin"), ("v1beta1.DRAPlugin", "v1beta1.DRAPlugin")],
)
async def test_a_driver_prepares_claims_by_the_service_that_it_announces(
    versions: str, service: str, place: Path
) -> None:
    """TestGRPCMethods and consumers C.4, with a server of grpc-go."""
    two = [CLAIM, DRAClaim("default", "77d0", "infer")]
    async with embedded(place) as node, plugin_process(driver_in(place).command("-versions", versions)) as plugin:
        await plugin.notified_registered()
        driver = node.dra_driver(NAME)
        prepared = await driver.prepare(two)
        assert prepared == await driver.prepare(two)
        await driver.unprepare(two)
        with pytest.raises(DRAClaimError) as broken:
            await driver.prepare([DRAClaim("default", "3", "broken")])
        with pytest.raises(DRACallError) as missing:
            await driver.prepare([DRAClaim("default", "4", "missing")])
        await plugin.end()
        lines = (await plugin.rest()).splitlines()
    assert prepared == {
        claim.uid: (PreparedDevice(("gpu",), "pool-0", "gpu-0", (f"example.com/gpu={claim.name}",)),) for claim in two
    }
    assert str(broken.value) == "NodePrepareResources failed for ResourceClaim broken: the device is broken"
    assert str(missing.value) == (
        "NodePrepareResources: UNKNOWN: get resource claims: retrieve claim default/missing: not found"
    )
    calls = [line for line in map(json.loads, lines) if "claims" in line]
    assert {call["service"] for call in calls} == {service}
    assert [call["claims"] for call in calls] == [["8c1ae4a7-6a3f", "77d0"]] * 3 + [["3"], ["4"]]


async def test_a_driver_is_called_as_often_as_a_program_likes(place: Path) -> None:
    """Fault 54: a server of grpc-go sends a PING for each request. They are no flood: the connection stays."""
    async with embedded(place) as node, plugin_process(driver_in(place).command()) as plugin:
        await plugin.notified_registered()
        driver = node.dra_driver(NAME)
        for _ in range(150):
            await driver.prepare([CLAIM])
        (status,) = (await node.snapshot()).plugins
    assert dict(status.facts)["usable"] == "yes, by 1 instance"


async def test_a_driver_that_was_killed_is_gone_after_a_time_and_again_when_it_is_killed_again(place: Path) -> None:
    """Consumers C.3, with half a second for the 30 s of the default."""
    driver = driver_in(place)
    gone: list[str] = []
    async with embedded(place, gone_after=0.5) as node, node.changes() as changes:
        for _ in range(2):
            async with plugin_process(driver.command()) as plugin:
                await plugin.notified_registered()
                await node.dra_driver(NAME).prepare([CLAIM])
                await plugin.end(signal.SIGKILL)
            async for change in changes:
                if isinstance(change, PluginChanged) and (change.event or "").startswith("driver-gone"):
                    gone.append(str(change.event))
                    break
    assert gone == [f"driver-gone: {NAME} has had no connected instance for 0.5 s (registered instances: 1)"] * 2


async def test_in_a_rolling_update_no_call_fails_and_the_driver_is_usable_all_the_time(place: Path) -> None:
    """Acceptance of proposal 8: two instances of one driver, each with its own sockets, and one lock for calls."""
    older, newer = driver_in(place, "uid-1"), driver_in(place, "uid-2")
    usable: set[str] = set()
    async with embedded(place) as node, plugin_process(older.command()) as old:
        await old.notified_registered()
        driver = node.dra_driver(NAME)
        await driver.prepare([CLAIM])
        async with node.changes() as changes, trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                while True:
                    await driver.prepare([CLAIM])
                    await trio.sleep(0.05)

            async with plugin_process(newer.command()) as new:
                await new.line(call="NodePrepareResources")
                await old.end()
                async for change in changes:
                    plugins = (change.plugin,) if isinstance(change, PluginChanged) else ()
                    usable |= {dict(plugin.facts)["usable"] for plugin in plugins if plugin.facts}
                    if [plugin for plugin in plugins if (plugin.socket, plugin.state) == (str(older.socket), GONE)]:
                        break
                await new.line(call="NodePrepareResources")
                nursery.cancel_scope.cancel()
    assert usable == {"yes, by 1 instance", "yes, by 2 instances"}
