"""Real plugins that listen and do not serve yet, or read and stay silent (fault 32)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from plugind.protocol.registration.info_deadline import NOT_READ
from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, PluginProcess, daemon, plugin_process
from plugind.tests.end_to_end.sockets import NAME


@asynccontextmanager
async def idle_plugin(path: Path) -> AsyncIterator[PluginProcess]:
    """Run a plugin that listens, and serves once it reads a line."""
    command = [*GRPCLIB.command(path, "", path)[:2], "--idle", str(path), NAME.format("idle")]
    async with plugin_process(command) as plugin:
        await plugin.line(bound=str(path))
        yield plugin


async def dials(node: Daemon) -> float:
    """Return how many dials have ended so far."""
    _, body = await node.get("/metrics")
    counted = [line for line in body.decode().splitlines() if line.startswith("plugind_operations_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in counted if 'operation="dial"' in line)


async def test_a_process_that_listens_and_serves_when_its_second_is_long_over_is_dialed_once(tmp_path: Path) -> None:
    """GetInfo has three seconds, since the machine may be too busy for an answer within one."""
    with daemon(tmp_path, timeouts={"dial": DEADLINE, "get_info": 3.0, "notify": DEADLINE}) as node:
        await node.ready()
        path = node.root / "idle.sock"
        async with idle_plugin(path) as plugin, node.watch() as watch:
            await watch.until(lambda watch: [p["reason"] for p in watch.now.values()] == [NOT_READ])
            assert plugin.process.stdin is not None
            await plugin.process.stdin.send_all(b"\n")
            await plugin.notified_registered()
            await watch.until(lambda watch: [p["state"] for p in watch.now.values()] == ["registered"])
            assert [line["call"] for line in plugin.lines if "call" in line] == ["GetInfo", "NotifyRegistrationStatus"]
        assert await dials(node) == 1.0
