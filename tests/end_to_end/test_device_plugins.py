"""Device plugins that register by a call, with a daemon and plugins in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from plugind.tests.end_to_end.processes import PluginProcess, daemon, run

PLUGIN = Path(__file__).parent / "plugins" / "grpcio_device_plugin.py"


@asynccontextmanager
async def device_plugin(directory: Path, endpoint: str) -> AsyncIterator[PluginProcess]:
    """Run a device plugin on grpcio that serves in ``directory``."""
    command = [sys.executable, str(PLUGIN), str(directory), endpoint]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(_run, command)
        plugin = PluginProcess(process)
        await plugin.line(listening=endpoint)
        yield plugin
        nursery.cancel_scope.cancel()


async def _run(command: list[str], task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, task_status=task_status)


async def register(plugin: PluginProcess, endpoint: str, version: str = "v1beta1") -> tuple[object, object]:
    """Have the plugin call Register; return the code and the text of the answer."""
    call = {"version": version, "endpoint": endpoint, "resource_name": "vendor.com/gpu"}
    assert plugin.process.stdin is not None
    await plugin.process.stdin.send_all(json.dumps(call).encode() + b"\n")
    while "answer" not in (said := await plugin.line()):
        pass
    return said["answer"], said["text"]


async def test_a_device_plugin_registers_by_a_call_and_is_shown_like_any_other(tmp_path: Path) -> None:
    """Consumers B.1, the classical route: the plugin is a process on grpcio, and its name is in the call."""
    directory = tmp_path / "device-plugins"
    with daemon(tmp_path, f"--device-plugins={directory}") as started:
        await started.ready()
        async with started.watch() as watch, device_plugin(directory, "a.sock") as plugin:
            assert await register(plugin, "a.sock") == ("OK", "")
            assert await register(plugin, "a.sock") == ("OK", "")
            assert await register(plugin, "../a.sock") == (
                "INVALID_ARGUMENT",
                f'the endpoint "../a.sock" is not a file name in {directory}',
            )
            shown = await watch.state(directory / "a.sock", "registered")
            pid = plugin.process.pid
            assert {key: shown[key] for key in ("state", "type", "name", "root", "pid", "source", "generation")} == {
                "state": "registered",
                "type": "DevicePlugin",
                "name": "vendor.com/gpu",
                "root": str(directory),
                "pid": pid,
                "source": f"Register call of pid {pid}",
                "generation": 1,
            }
            await started.metric('device_plugin_registration_total{resource_name="vendor.com/gpu"} 3.0')


def test_a_directory_that_may_not_be_taken_ends_the_start_and_nothing_is_deleted(tmp_path: Path) -> None:
    """``--device-plugins=/run`` must not delete the socket of another daemon."""
    directory = tmp_path / "run"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as docker:
        docker.bind(str(directory / "docker.sock"))
    status, root = str(tmp_path / "s.sock"), str(tmp_path / "root")

    done = run("run", "--root", root, f"--device-plugins={directory}", status=status)

    assert (done.code, done.err.splitlines()[-1]) == (
        os.EX_CONFIG,
        f"plugind: {directory} is not empty, not named device-plugins and was not used by plugind before, so its"
        " sockets are not deleted: give plugind an empty directory with --device-plugins=DIR",
    )
    assert os.listdir(directory) == ["docker.sock"]


async def test_a_daemon_whose_kubelet_socket_was_replaced_lets_its_device_plugins_go(tmp_path: Path) -> None:
    """Consumers B.3, consequence 5: whoever starts later wins, and two consumers never share the directory."""
    directory = tmp_path / "device-plugins"
    with daemon(tmp_path, f"--device-plugins={directory}") as started:
        await started.ready()
        async with device_plugin(directory, "a.sock") as plugin, started.watch() as watch:
            assert await register(plugin, "a.sock") == ("OK", "")
            await watch.state(directory / "a.sock", "registered")
            with socket.socket(socket.AF_UNIX) as kubelet:
                os.unlink(directory / "kubelet.sock")
                kubelet.bind(str(directory / "kubelet.sock"))
                kubelet.listen()
                await watch.state(directory / "a.sock", "gone")
                reason = (
                    f"{directory}/kubelet.sock was replaced, by pid {os.getpid()}: device plugins are let go until"
                    " plugind is started again"
                )
                await started.logged("device plugins are let go")
                status, body = await started.get("/readyz")
                assert (status, json.loads(body)["awaiting"]) == (503, [f"the root {directory} ({reason})"])
                done = run("ls", status=started.status)
                assert f"root {directory} is taken: {reason}" in done.err + done.out
