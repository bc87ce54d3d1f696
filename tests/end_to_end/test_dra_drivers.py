"""DRA drivers as processes: kubernetes-pydra on grpcio, and ``plugind fake``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from plugind import Config, DRACallError, DRAClaim, DRAClaimError, PreparedDevice, Root, Supervisor
from plugind.protocol.plugins.health import Health
from plugind.tests.end_to_end.foreign import PYDRA
from plugind.tests.end_to_end.node_health import until
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, plugin_process, run
from plugind.tests.end_to_end.sockets import place

FAKE = [sys.executable, "-m", "plugind", "fake", "--type", "DRAPlugin"]


async def test_pydra_prepares_a_claim_through_the_library(tmp_path: Path) -> None:
    """Acceptance of proposal 8; consumers F.4. It needs no API server."""
    name, claim = "pydra.example.com", DRAClaim("default", "8c1ae4a7-6a3f", "train")
    command = PYDRA.command(tmp_path / "driver-reg.sock", name, tmp_path / ".dra.sock")
    with trio.fail_after(DEADLINE):
        async with Supervisor(Config(roots=(Root(tmp_path),))) as node:
            async with plugin_process(command) as process:
                await process.notified_registered()
                driver = node.dra_driver(name)
                prepared = await driver.prepare([claim])
                assert prepared == {claim.uid: (PreparedDevice((), name, "chip-0", ("example.com/chip=chip-0",)),)}
                await driver.unprepare([claim])
                with pytest.raises(DRAClaimError) as broken:
                    await driver.prepare([claim, DRAClaim("default", "77d0", "broken")])
                registered = await until(node, Health.HEALTHY)
                assert dict(registered.facts)["usable"] == "yes, by 1 instance"
            # It was killed, so its sockets are still there, and it stays registered.
            lost = await until(node, Health.DISCONNECTED)
            assert (lost.generation, dict(lost.facts)["connected"]) == (registered.generation, "no")
            with pytest.raises(DRACallError, match="NodePrepareResources: no connection to the endpoint"):
                await driver.prepare([claim])
            # A driver that was looked up before is the one that is started again.
            async with plugin_process(command) as process:
                await process.notified_registered()
                await until(node, Health.HEALTHY, after=lost.generation)
                assert await driver.prepare([claim]) == prepared
    assert str(broken.value) == "NodePrepareResources failed for ResourceClaim broken: chip-0 is broken"


async def test_the_health_of_devices_of_a_fake_driver_is_described(shared: Daemon) -> None:
    """The e2e line "health: reflected", by a daemon, a process and commands."""
    directory = await place(shared, "dra")
    socket, pipe, name = directory / "driver.sock", directory / "pipe", "fake-dra.example.com"
    words = ["--name", name, "--socket", str(socket), "--serve", "v1.DRAResourceHealth", "--control", str(pipe)]
    async with shared.watch() as watch, plugin_process([*FAKE, *words]):
        await watch.until(lambda watch: watch.now.get(str(socket), {}).get("health") == "healthy")
        await trio.Path(pipe).write_text("healthy pool-0/gpu-0\nunhealthy pool-0/gpu-1 ECC\n")
        devices = "1 healthy, 1 unhealthy, 0 unknown"
        facts = await shared.facts(name, lambda facts: facts.get("devices") == devices)
        assert facts["device.pool-0/gpu-1"].startswith("Unhealthy: ECC (since ")
        described = await trio.to_thread.run_sync(lambda: run("describe", name, status=shared.status))
    lines = described.out.splitlines()
    assert {"Service:    v1.DRAPlugin", "Usable:     yes, by 1 instance"} <= set(lines)
    assert [line for line in lines if line.startswith("Connection: connected 00:00:")]
    assert [line for line in lines if line.startswith("Devices:    pool-0/gpu-1 Unhealthy: ECC (since ")]
