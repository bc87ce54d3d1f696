"""Devices as a user sees them, over restarts of the daemon: with a fake plugin, and processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, daemon, daemon_process, run

GPU = "vendor.com/gpu"


async def listed(node: Daemon) -> Mapping[str, Any]:
    """Return the resource once a plugin has listed its devices."""
    with trio.fail_after(DEADLINE):
        while True:
            resources = json.loads((await node.get("/v1/devices"))[1])["resources"]
            if resources and resources[0]["state"] == "listed":
                found: Mapping[str, Any] = resources[0]
                return found
            await trio.sleep(0.05)  # It is in another process.


@pytest.mark.usefixtures("real_processes")
async def test_devices_are_listed_and_awaited_after_a_restart(tmp_path: Path) -> None:
    """Fault 88 and TestCheckpoint: the daemon is killed, and knows the resource when it is started again."""
    directory = tmp_path / "device-plugins"
    fake = [*PLUGIND, "fake", "--type", "DevicePlugin", "--name", GPU, "--device-plugins", str(directory)]
    fake += ["--socket", str(directory / "gpu.sock"), "--devices", "2"]
    with daemon(tmp_path, f"--device-plugins={directory}") as node:
        await node.ready()
        with (tmp_path / "fake").open("wb") as output, daemon_process(fake, output):
            resource = await listed(node)
            assert [(device["id"], device["healthy"]) for device in resource["devices"]] == [
                ("gpu-0", True),
                ("gpu-1", True),
            ]
            assert resource["plugin"] == str(directory / "gpu.sock")
            (described,) = json.loads((await node.get(f"/plugins/{quote(GPU, safe='')}"))[1])
            assert (described["device_plugin"]["devices"], described["device_plugin"]["active"]) == (2, True)
        os.kill(node.process.pid, signal.SIGKILL)
        await node.ended()
    with daemon(tmp_path, f"--device-plugins={directory}") as node:
        await node.ready()
        (resource,) = json.loads((await node.get("/v1/devices"))[1])["resources"]
        assert (resource["resource"], resource["state"], resource["capacity"]) == (GPU, "awaited", 0)
        assert 200 < resource["goes_in"] <= 300


async def test_a_second_daemon_on_one_state_ends_before_it_deletes_a_socket(tmp_path: Path) -> None:
    """It says what to do, and exits with 78 (fault 96)."""
    with daemon(tmp_path, f"--device-plugins={tmp_path / 'device-plugins'}") as node:
        await node.ready()
        (tmp_path / "other/device-plugins").mkdir(parents=True)
        (tmp_path / "other/root").mkdir()
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(tmp_path / "other/device-plugins/gpu.sock"))
            arguments = ("--root", str(tmp_path / "other/root"), "--state", str(tmp_path / "state"))
            where = f"--device-plugins={tmp_path / 'other/device-plugins'}"
            done = run("run", *arguments, where, status=str(tmp_path / "other/s"))
        said = f"another plugind uses {tmp_path}/state/state.db: give this one another directory with --state DIR"
        assert (done.code, done.err.splitlines()[-1]) == (78, f"plugind: {said}")
        assert "started" not in done.err
        assert (tmp_path / "other/device-plugins/gpu.sock").exists()


async def test_a_daemon_runs_on_without_a_place_for_its_state(tmp_path: Path) -> None:
    """Degraded, with the reason; a link to a missing directory stands for a disk that is missing or read-only."""
    (tmp_path / "state").symlink_to(tmp_path / "missing" / "state")
    with daemon(tmp_path, f"--device-plugins={tmp_path / 'device-plugins'}") as node:
        await node.unready("state cannot be used")
        health = json.loads((await node.get("/healthz"))[1])
        (devices,) = [actor for actor in health["actors"] if actor["name"] == "devices"]
        assert (health["status"], devices["status"]) == ("degraded", "degraded")
        assert devices["reason"] == f"{tmp_path}/state cannot be used: File exists; repair it, or use --state"
        assert json.loads((await node.get("/v1/devices"))[1])["problem"] == devices["reason"]
