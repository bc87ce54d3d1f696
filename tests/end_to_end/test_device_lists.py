"""Device plugins that others' libraries serve are followed: by a call and by socket, and after each kind of end."""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from plugind.tests.end_to_end.device_plugins import GO, GRPCIO, NODE, DevicePluginProgram
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, plugin_process
from plugind.tests.end_to_end.test_device_surge import Resources

GPU = "example.com/gpu"
HEALTHY = {"gpu-0": "Healthy", "gpu-1": "Healthy"}
FIRST_UNHEALTHY = HEALTHY | {"gpu-0": "Unhealthy"}
UNHEALTHY = {"gpu-0": "Unhealthy", "gpu-1": "Unhealthy"}


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


async def test_a_stream_that_ends_is_opened_again_while_the_plugin_is_registered(tmp_path: Path) -> None:
    """k8s 125501. Meanwhile all devices are unhealthy; the plugin is in a root, as SR-IOV plugins are."""
    root = tmp_path / "root"
    root.mkdir(0o755)
    with daemon(tmp_path) as started:
        async with plugin_process(
            GRPCIO.command(root, "gpu.sock", GPU, "--devices", "2", "--route", "socket")
        ) as plugin:
            await shown(started, HEALTHY)
            async with started.pieces("/v1/devices/watch") as pieces:
                watch = Resources(pieces)
                await watch.until(lambda resource: resource["allocatable"] == 2)
                plugin.process.send_signal(signal.SIGHUP)
                # It is opened again after a second, so a look from time to time might come too late.
                await watch.until(lambda resource: (resource["capacity"], resource["allocatable"]) == (2, 0))
                await watch.until(lambda resource: (resource["capacity"], resource["allocatable"]) == (2, 2))
            await shown(started, HEALTHY)
            plugin.process.send_signal(signal.SIGKILL)
            await shown(started, UNHEALTHY)
        (lost, gone) = (await started.logged("device plugin is lost", 2))[:2]
        assert (lost["name"], lost["reason"]) == (
            GPU,
            "ListAndWatch has ended: UNAVAILABLE: the stream was told to end",
        )
        assert gone["reason"] == "ListAndWatch has ended: UNAVAILABLE: the peer closed the connection"
