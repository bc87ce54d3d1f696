"""A device plugin, a process of its own, hangs and is back: a node notices both, and keeps it registered."""

from __future__ import annotations

import signal
from pathlib import Path

import trio

from plugind import Config, Root, Supervisor
from plugind.actors.status.actor import StatusConfig
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import StateName
from plugind.tests.end_to_end.device_plugins import GRPCIO
from plugind.tests.end_to_end.node_health import FAST, until
from plugind.tests.end_to_end.processes import Done, plugin_process, run

NAME = "example.com/gpu"


async def test_a_plugin_that_is_stopped_is_unhealthy_and_healthy_once_it_goes_on(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT. It stays registered, and its devices allocatable; ``wait`` says why it goes on."""
    root, status = tmp_path / "root", str(tmp_path / "s")
    root.mkdir()
    command = GRPCIO.command(root, "gpu.sock", NAME, "--route", "socket")
    config = Config(roots=(Root(root),), expected=(NAME,), health_checks=FAST)

    def wait() -> Done:
        return run("wait", NAME, "--healthy", "--timeout", "0", status=status)

    async with (
        Supervisor(config, status_config=StatusConfig(socket=status)) as node,
        plugin_process(command) as plugin,
    ):
        before = await until(node, Health.HEALTHY)
        plugin.process.send_signal(signal.SIGSTOP)
        try:
            hung = await until(node, Health.UNHEALTHY)
            (resource,) = (await node.devices()).resources
            waited = await trio.to_thread.run_sync(wait)
        finally:
            plugin.process.send_signal(signal.SIGCONT)
        back = await until(node, Health.HEALTHY)
    assert (hung.state, hung.generation, hung.since) == (StateName.REGISTERED, 1, before.since)
    assert (hung.health_reason, hung.failed_checks >= 3, hung.active) == ("no answer within 0.2s", True, True)
    assert resource.allocatable == resource.capacity > 0
    socket = str(root / "gpu.sock")
    why = f"{socket} is registered, but unhealthy: no answer within 0.2s"
    assert (waited.code, waited.err) == (1, f"plugind: {NAME} is not healthy: {why}\n")
    assert (back.state, back.generation, back.since) == (StateName.REGISTERED, 1, before.since)
