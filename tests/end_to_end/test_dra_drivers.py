"""DRA drivers as processes: kubernetes-pydra on grpcio, and ``plugind fake``."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from plugind import Config, DRACallError, DRAClaim, DRAClaimError, PreparedDevice, Root, Supervisor
from plugind.protocol.plugins.health import Health
from plugind.tests.end_to_end.foreign import PYDRA
from plugind.tests.end_to_end.node_health import until
from plugind.tests.end_to_end.processes import DEADLINE, plugin_process


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
