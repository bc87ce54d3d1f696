"""``plugind fake --type DevicePlugin`` as a process, called by a client and a node on grpcio."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import grpc

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto import pluginregistration_pb2 as registration
from plugind.tests.end_to_end.device_clients import SERVICE, call, health, running, watch
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND

#: A shell with job control: its own process group is in the foreground. The command ends when the shell is killed.
SHELL = ["setsid", "--ctty", "bash", "-c", 'set -m; setpriv --pdeathsig KILL "$@" & wait', "bash"]
FAKE = [*PLUGIND, "fake", "--type", "DevicePlugin"]
NULL = device.DeviceSpec(container_path="/dev/gpu-0", host_path="/dev/null", permissions="rw")


def test_a_fake_device_plugin_lists_its_devices_and_turns_them_by_command(tmp_path: Path) -> None:
    """It is found by its socket; commands come in a named pipe, as another shell writes them, and on standard input."""
    socket, pipe = tmp_path / "gpu.sock", tmp_path / "gpu.control"
    command = [*FAKE, "--name", "example.com/gpu", "--socket", str(socket), "--control", str(pipe)]
    with running([*command, "--devices", "2", "--env", "VISIBLE={ids}"]) as fake:
        assert fake.process.stdin is not None
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            info = call(
                channel, "/pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo
            )
            assert info == registration.PluginInfo(
                type="DevicePlugin", name="example.com/gpu", supported_versions=["v1beta1"]
            )
            lists = watch(channel)
            assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}
            pipe.write_text("unhealthy gpu-0\n")
            assert health(next(lists)) == {"gpu-0": "Unhealthy", "gpu-1": "Healthy"}
            fake.process.stdin.write(b"healthy gpu-0\nunhealthy gpu-1\n")
            fake.process.stdin.close()
            assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}
            assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": "Unhealthy"}
            # The end of standard input ends nothing.
            pipe.write_text("healthy all\n")
            assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}
            wanted = device.AllocateRequest(container_requests=[device.ContainerAllocateRequest(devices_ids=["gpu-0"])])
            answer = call(channel, f"{SERVICE}Allocate", wanted, device.AllocateResponse)
        container = device.ContainerAllocateResponse(envs={"VISIBLE": "gpu-0"}, devices=[NULL])
        assert answer == device.AllocateResponse(container_responses=[container])
        line = fake.line(call="Allocate")
        assert (line["devices"], line["peer_pid"], line["outcome"]) == (["gpu-0"], os.getpid(), "answered")
        fake.process.terminate()
        assert fake.process.wait(DEADLINE) == 0
    assert os.listdir(tmp_path) == []


def test_a_fake_device_plugin_in_the_background_leaves_the_terminal_to_the_shell(tmp_path: Path) -> None:
    """A process that reads the terminal in the background is stopped, unless it ignores SIGTTIN."""
    socket, pipe = tmp_path / "gpu.sock", tmp_path / "gpu.control"
    fake = [*FAKE, "--name", "example.com/gpu", "--socket", str(socket), "--devices", "2", "--control", str(pipe)]
    terminal, stdin = pty.openpty()
    with (
        os.fdopen(terminal, "wb", buffering=0) as keyboard,
        running([*SHELL, *fake], stdin=stdin),
        grpc.insecure_channel(f"unix:{socket}") as channel,
    ):
        os.close(stdin)
        lists = watch(channel)
        assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": "Healthy"}
        keyboard.write(b"unhealthy gpu-0\n")
        for command, health_1 in [("unhealthy", "Unhealthy"), ("healthy", "Healthy")]:
            pipe.write_text(f"{command} gpu-1\n")
            assert health(next(lists)) == {"gpu-0": "Healthy", "gpu-1": health_1}
