"""Device plugins that others' libraries serve are followed: by a call and by socket, and after each kind of end."""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.device_plugins import GO, NODE, DevicePluginProgram
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, plugin_process

GPU = "example.com/gpu"
HEALTHY = {"gpu-0": "Healthy", "gpu-1": "Healthy"}
FIRST_UNHEALTHY = HEALTHY | {"gpu-0": "Unhealthy"}


async def shown(started: Daemon, wanted: dict[str, str]) -> None:
    """Wait until the daemon shows these devices, by id, with this health."""
    with trio.fail_after(DEADLINE):
        while await devices(started) != wanted:  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


async def devices(started: Daemon) -> dict[str, str]:
    _, body = await started.get("/v1/devices")
    resources = json.loads(body)["resources"]
    return {device["id"]: device["health"] for resource in resources for device in resource["devices"]}


@pytest.mark.extended
@pytest.mark.parametrize("program", [NODE, GO], ids=lambda program: program.label)
async def test_a_plugin_that_calls_is_followed_and_is_back_after_a_kill_of_the_daemon(
    program: DevicePluginProgram, tmp_path: Path
) -> None:
    """Consumers B.3 and D.3: the plugin sees that its socket is gone, and calls the new daemon."""
    directory = tmp_path / "device-plugins"
    directory.mkdir(0o755)
    async with AsyncExitStack() as stack:
        with daemon(tmp_path, f"--device-plugins={directory}") as started:
            await started.ready()
            command = program.command(directory, "gpu.sock", GPU, "--devices", "2")
            plugin = await stack.enter_async_context(plugin_process(command))
            await shown(started, HEALTHY)
            plugin.process.send_signal(signal.SIGUSR1)
            await shown(started, FIRST_UNHEALTHY)
            started.process.kill()
        with daemon(tmp_path, f"--device-plugins={directory}") as started:
            await shown(started, FIRST_UNHEALTHY)
            plugin.process.send_signal(signal.SIGUSR2)
            await shown(started, HEALTHY)
