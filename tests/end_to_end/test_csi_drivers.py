"""CSI drivers in three languages, each a process of its own: facts, health, a late start, and refusals."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from plugind import Config, Root, Supervisor
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.end_to_end.csi_drivers import ALL, GRPCIO, CSIDriverProgram
from plugind.tests.end_to_end.node_health import FAST, until
from plugind.tests.end_to_end.processes import DEADLINE, plugin_process

NAME = "csi.example.com"


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[tuple[Supervisor, Path, Path]]:
    """A node, and where a driver and its registrar have their sockets."""
    root, drivers = directory / "root", directory / "drivers"
    root.mkdir()
    drivers.mkdir()
    config = Config(roots=(Root(root),), endpoint_directories=(str(drivers),), health_checks=FAST)
    async with Supervisor(config) as node:
        yield node, root / "csi-reg.sock", drivers / "csi.sock"


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)
async def test_a_driver_shows_its_facts_hangs_goes_on_is_killed_and_started_again(
    program: CSIDriverProgram, tmp_path: Path
) -> None:
    """SIGSTOP, SIGCONT and SIGKILL. Health never deregisters; a driver that is started again registers anew."""
    async with scene(tmp_path) as (node, socket, endpoint):
        command = program.command(socket, NAME, endpoint)
        async with plugin_process(command) as plugin:
            await plugin.notified_registered()
            before = await until(node, Health.HEALTHY)
            plugin.process.send_signal(signal.SIGSTOP)
            try:
                hung = await until(node, Health.UNHEALTHY)
            finally:
                plugin.process.send_signal(signal.SIGCONT)
            back = await until(node, Health.HEALTHY)
            await plugin.end(signal.SIGKILL)
            killed = await until(node, Health.DISCONNECTED)
        async with plugin_process(command) as plugin:
            again = await until(node, Health.HEALTHY, after=before.generation)
    facts = dict(before.facts)
    assert facts.pop("refreshed")
    assert facts == {
        "node-id": "node-7",
        "max-volumes": "16",
        "topology.zone": "z1",
        "vendor-version": "2.1.0",
        "csi-version": "1.0.0",
        "capabilities.node": "STAGE_UNSTAGE_VOLUME",
        "capabilities.plugin": "CONTROLLER_SERVICE",
    }
    assert (hung.health_reason, hung.failed_checks >= 3) == ("no answer within 0.2s", True)
    for later in (hung, back, killed):
        assert (later.state, later.generation) == (StateName.REGISTERED, before.generation)
    assert (again.state, dict(again.facts)["node-id"]) == (StateName.REGISTERED, "node-7")


async def reached(node: Supervisor, state: StateName) -> PluginStatus:
    """Return the status of the first plugin that is in ``state``."""
    with trio.fail_after(DEADLINE):
        async with node.watch() as changes:
            async for plugin in changes:
                if plugin.state is state:
                    return plugin
    raise AssertionError("the node ended")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("csi-refusing", "UNAVAILABLE: xxx"),
        ("csi-huge", "RESOURCE_EXHAUSTED: a message of 20000000 bytes over the limit of 4194304"),
        ("csi-nonsense", "no valid NodeGetInfoResponse"),
        ("csi-endless-headers", "RESOURCE_EXHAUSTED: a header block over the limit of 16384"),
    ],
)
async def test_a_hostile_driver_is_refused_and_a_good_one_beside_it_is_healthy(
    kind: str, why: str, tmp_path: Path
) -> None:
    """Fault 65 at an endpoint: an answer that is too large, one that is no message, headers without an end."""
    async with scene(tmp_path) as (node, socket, endpoint), plugin_process(GRPCIO.command(socket, NAME, endpoint)):
        with hostile_peers(kind, socket.parent, 1):
            refused = await reached(node, StateName.WAITING)
            healthy = await until(node, Health.HEALTHY)
    assert (healthy.name, refused.name) == (NAME, f"{kind}-00000.example.com")
    assert why in str(refused.reason)
