"""The device plugins of the end-to-end tests without plugind, called by a client and server of grpcio."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
import pytest

from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as device
from plugind.protocol.proto import pluginregistration_pb2 as registration
from plugind.tests.end_to_end.device_clients import SERVICE, call, health, kubelet, running, watch
from plugind.tests.end_to_end.device_plugins import ALL, DevicePluginProgram
from plugind.tests.end_to_end.processes import DEADLINE

pytestmark = pytest.mark.parametrize("program", ALL, ids=lambda program: program.label)


def test_a_device_plugin_calls_register_lists_its_devices_and_comes_back(
    program: DevicePluginProgram, tmp_path: Path
) -> None:
    healthy = {"gpu-0": "Healthy", "gpu-1": "Healthy"}
    command = program.command(tmp_path, "gpu.sock", "example.com/gpu", "--devices", "2", "--preferred")
    with kubelet(tmp_path, refuses=1) as requests, running(command) as plugin:
        assert plugin.line(call="Register") == {
            "call": "Register", "registered": False, "code": "UNKNOWN", "error": "not now",
        }  # fmt: skip
        plugin.line(call="Register", registered=True)
        wanted = device.RegisterRequest(version="v1beta1", endpoint="gpu.sock", resource_name="example.com/gpu")
        assert requests.get(timeout=DEADLINE) == wanted

        with grpc.insecure_channel(f"unix:{tmp_path}/gpu.sock") as channel:
            options = call(channel, f"{SERVICE}GetDevicePluginOptions", device.Empty(), device.DevicePluginOptions)
            assert options == device.DevicePluginOptions(get_preferred_allocation_available=True)
            lists = watch(channel)
            first = next(lists)
            assert health(first) == healthy
            assert [node.ID for one in first.devices for node in one.topology.nodes] == [0, 1]
            plugin.process.send_signal(signal.SIGUSR1)
            assert health(next(lists)) == healthy | {"gpu-0": "Unhealthy"}
            plugin.process.send_signal(signal.SIGUSR2)
            assert health(next(lists)) == healthy
            plugin.process.send_signal(signal.SIGHUP)
            with pytest.raises(grpc.RpcError) as caught:
                next(lists)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert plugin.line(ended="ListAndWatch")["streams"] == 0
            assert health(next(watch(channel))) == healthy
            allocated = call(
                channel,
                f"{SERVICE}Allocate",
                device.AllocateRequest(container_requests=[device.ContainerAllocateRequest(devices_ids=["gpu-1"])]),
                device.AllocateResponse,
            )
        node = device.DeviceSpec(container_path="/dev/gpu-1", host_path="/dev/null", permissions="rw")
        answer = device.ContainerAllocateResponse(envs={"VISIBLE_DEVICES": "gpu-1"}, devices=[node])
        assert allocated == device.AllocateResponse(container_responses=[answer])

        # What a node does when it starts: it deletes the sockets of the directory.
        (tmp_path / "gpu.sock").unlink()
        plugin.line(lost=str(tmp_path / "gpu.sock"))
        assert requests.get(timeout=DEADLINE) == wanted
        assert (tmp_path / "gpu.sock").is_socket()
        plugin.process.terminate()
        assert plugin.process.wait(DEADLINE) == 0
        assert sorted(os.listdir(tmp_path)) == ["kubelet.sock"]


def test_a_device_plugin_that_is_not_registered_yet_listens_anew_when_its_socket_is_gone(
    program: DevicePluginProgram, tmp_path: Path
) -> None:
    """It listens before there is a node, and calls in vain; then the node starts, and deletes its socket."""
    command = program.command(tmp_path, "gpu.sock", "example.com/gpu")
    with running(command) as plugin:
        plugin.line(call="Register", registered=False)
        (tmp_path / "gpu.sock").unlink()
        plugin.line(lost=str(tmp_path / "gpu.sock"))
        plugin.line(listening=str(tmp_path / "gpu.sock"))
        with kubelet(tmp_path) as requests:
            assert requests.get(timeout=DEADLINE).endpoint == "gpu.sock"
        assert (tmp_path / "gpu.sock").is_socket()


def test_a_device_plugin_of_the_watcher_serves_both_services_on_one_socket(
    program: DevicePluginProgram, tmp_path: Path
) -> None:
    command = program.command(tmp_path, "a.sock", "example.com/a", "--route", "socket", "--pre-start")
    with running(command) as plugin:
        plugin.line(listening=str(tmp_path / "a.sock"))
        with grpc.insecure_channel(f"unix:{tmp_path}/a.sock") as channel:
            info = call(
                channel, "/pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo
            )
            assert info == registration.PluginInfo(
                type="DevicePlugin", name="example.com/a", supported_versions=["v1beta1"]
            )
            verdict = registration.RegistrationStatus(plugin_registered=True)
            notify = "/pluginregistration.Registration/NotifyRegistrationStatus"
            call(channel, notify, verdict, registration.RegistrationStatusResponse)
            assert plugin.line(call="NotifyRegistrationStatus")["plugin_registered"] is True
            options = call(channel, f"{SERVICE}GetDevicePluginOptions", device.Empty(), device.DevicePluginOptions)
            assert options == device.DevicePluginOptions(pre_start_required=True)
            assert len(next(watch(channel)).devices) == 4
