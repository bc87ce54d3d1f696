"""The fake and the example plugin as processes: their output, their sockets, their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.protocol.proto import csi_v1_pb2 as csi
from plugind.protocol.proto.csi_v1_grpc import IdentityStub, NodeStub
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub as ExampleStubV1Beta1
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest as ExampleRequestV1Beta1
from plugind.protocol.proto.example_v1beta2_grpc import ExampleStub as ExampleStubV1Beta2
from plugind.protocol.proto.example_v1beta2_pb2 import ExampleRequest as ExampleRequestV1Beta2
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from plugind.tests.end_to_end.processes import DEADLINE

FAKE = [sys.executable, "-m", "plugind", "fake"]
EXAMPLE = [sys.executable, str(Path(__file__).parents[2] / "examples" / "example_plugin.py")]
ARGUMENTS = ["--type", "CSIPlugin", "--name", "a.example.com"]


async def read_line(stream: trio.abc.ReceiveStream) -> str:
    """Read one line byte by byte, so that later bytes are not lost."""
    line = b""
    while not line.endswith(b"\n"):
        byte = await stream.receive_some(1)
        assert byte, f"the output ended within a line: {line!r}"
        line += byte
    return line.decode().rstrip("\n")


@asynccontextmanager
async def process(command: list[str], *, ready: str) -> AsyncIterator[trio.Process]:
    """Run a process, and wait for its first line on ``ready`` (stdout or stderr); kill it at exit if it still runs."""
    with trio.fail_after(DEADLINE):
        started = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert started.stdout is not None
        assert started.stderr is not None
        try:
            line = await read_line(started.stderr if ready == "stderr" else started.stdout)
            assert "listening at" in line
            yield started
        finally:
            if started.returncode is None:
                started.kill()
            with trio.CancelScope(shield=True):
                await started.wait()
                await started.stdout.aclose()
                await started.stderr.aclose()


async def notify(channel: Channel, *, registered: bool, error: str = "") -> None:
    stub = channel.stub(RegistrationStub)
    await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=registered, error=error), timeout=DEADLINE)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.mark.usefixtures("real_processes")
async def test_the_fake_prints_a_line_for_each_call_and_ends_cleanly(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    for number in (signal.SIGTERM, signal.SIGINT):
        async with process([*FAKE, "--socket", path, *ARGUMENTS], ready="stderr") as fake:
            assert fake.stdout is not None
            async with await dial(path, timeout=DEADLINE) as channel:
                info = await channel.stub(RegistrationStub).GetInfo(InfoRequest(), timeout=DEADLINE)
                assert info == PluginInfo(type="CSIPlugin", name="a.example.com", supported_versions=["1.0.0"])
                first = json.loads(await read_line(fake.stdout))
                await notify(channel, registered=True)
                second = json.loads(await read_line(fake.stdout))
            assert first.pop("time") <= second.pop("time")
            common = {"socket": path, "peer_pid": os.getpid(), "outcome": "answered"}
            assert first == {"call": "GetInfo", **common}
            assert second == {"call": "NotifyRegistrationStatus", "plugin_registered": True, "error": "", **common}
            fake.send_signal(number)
            assert await fake.wait() == 0
            assert names(tmp_path) == []


@pytest.mark.usefixtures("real_processes")
async def test_a_fake_csi_driver_serves_its_endpoint_and_obeys(tmp_path: Path) -> None:
    """Another process that names the same endpoint is a registrar of that driver."""
    endpoint, pipe = str(tmp_path / "csi.sock"), tmp_path / "pipe"
    driver = [*FAKE, *ARGUMENTS, "--endpoint", f"unix://{endpoint}", "--node-id", "node-7", "--control", str(pipe)]
    registrar = [*FAKE, *ARGUMENTS, "--endpoint", endpoint, "--socket", str(tmp_path / "b.sock")]
    async with process([*driver, "--socket", str(tmp_path / "a.sock")], ready="stderr") as fake:
        assert fake.stdout is not None
        assert fake.stderr is not None
        async with await dial(endpoint, timeout=DEADLINE) as channel:
            info = await channel.stub(NodeStub).NodeGetInfo(csi.NodeGetInfoRequest(), timeout=DEADLINE)
            assert info == csi.NodeGetInfoResponse(node_id="node-7")
            said = json.loads(await read_line(fake.stdout))
            assert (said["call"], said["peer_pid"], said["outcome"]) == ("NodeGetInfo", os.getpid(), "answered")
            await trio.Path(pipe).write_text("not-ready\n")
            while (line := await read_line(fake.stderr)) != "plugind fake: the driver is not ready":
                assert "refuse" in line
            ready = await channel.stub(IdentityStub).Probe(csi.ProbeRequest(), timeout=DEADLINE)
            assert ready == csi.ProbeResponse(ready={"value": False})
        second = await trio.lowlevel.open_process(registrar, stderr=subprocess.PIPE)
        assert second.stderr is not None
        why = f'plugind fake: nothing is served here at the endpoint "{endpoint}": another process listens there'
        assert await read_line(second.stderr) == why
        assert "listening at" in await read_line(second.stderr)
        for one in (second, fake):
            one.terminate()
            assert await one.wait() == 0
        await second.stderr.aclose()
    assert names(tmp_path) == []


async def test_the_fake_keeps_running_when_its_output_is_not_read(tmp_path: Path) -> None:
    """Fault 95."""
    path = str(tmp_path / "a.sock")
    async with process([*FAKE, "--socket", path, *ARGUMENTS], ready="stderr") as fake:
        assert fake.stdout is not None
        assert fake.stderr is not None
        await fake.stdout.aclose()
        async with await dial(path, timeout=DEADLINE) as channel:
            await notify(channel, registered=True)
            await notify(channel, registered=True)
        assert await read_line(fake.stderr) == "plugind fake: calls are no longer written: Broken pipe"
        fake.terminate()
        assert await fake.wait() == 0


async def test_a_socket_that_cannot_be_bound_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """Fault 23, among others."""
    (tmp_path / "file").touch()
    reasons = {
        str(tmp_path / ("x" * 108)): "a unix socket path holds at most 107 bytes",
        str(tmp_path / "no" / "a.sock"): "No such file or directory",
        str(tmp_path / "file"): "something that is no socket is in the way",
    }
    for path, reason in reasons.items():
        with trio.fail_after(DEADLINE):
            done = await trio.run_process(
                [*FAKE, "--socket", path, *ARGUMENTS], check=False, capture_stdout=True, capture_stderr=True
            )
        expected = f"plugind fake: cannot listen at {json.dumps(path)}: {reason}\n"
        assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", expected)


def test_a_fake_says_that_a_daemon_would_refuse_its_endpoint(tmp_path: Path) -> None:
    """Fault 43."""
    command = [*FAKE, "--socket", str(tmp_path / "a.sock"), *ARGUMENTS, "--endpoint", "/etc/passwd", "--registrar-only"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as fake:
        try:
            assert fake.stderr is not None
            said = next(line for line in fake.stderr if "would refuse" in line)
        finally:
            fake.terminate()
    assert "a daemon would refuse this plugin: the endpoint '/etc/passwd' is no socket" in said


async def call_both(channel: Channel) -> list[str]:
    first = channel.stub(ExampleStubV1Beta1).GetExampleInfo
    second = channel.stub(ExampleStubV1Beta2).GetExampleInfo
    return [
        (await first(ExampleRequestV1Beta1(request="one", v1beta1_field="old"), timeout=DEADLINE)).error,
        (await second(ExampleRequestV1Beta2(request="two", v1beta2_field="new"), timeout=DEADLINE)).error,
    ]


async def test_the_example_plugin_serves_both_versions_on_its_registration_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "e.sock")
    command = [*EXAMPLE, "--socket", path, "--name", "e.example.com"]
    async with process(command, ready="stdout") as plugin, await dial(path, timeout=DEADLINE) as channel:
        assert plugin.stdout is not None
        info = await channel.stub(RegistrationStub).GetInfo(InfoRequest(), timeout=DEADLINE)
        assert info == PluginInfo(type="ExamplePlugin", name="e.example.com", supported_versions=["v1beta1", "v1beta2"])
        assert await call_both(channel) == ["", ""]
        await notify(channel, registered=True)
        lines = [await read_line(plugin.stdout) for _ in range(3)]
        assert lines == ["v1beta1 asked: 'one' 'old'", "v1beta2 asked: 'two' 'new'", "registered"]
        plugin.terminate()
        assert await plugin.wait() == 0
        assert names(tmp_path) == []


async def test_the_example_plugin_exits_1_when_it_is_refused(tmp_path: Path) -> None:
    """Fault 77: like real registrars, it answers the notification first."""
    path = str(tmp_path / "e.sock")
    async with process([*EXAMPLE, "--socket", path, "--name", "e.example.com"], ready="stdout") as plugin:
        assert plugin.stderr is not None
        async with await dial(path, timeout=DEADLINE) as channel:
            await notify(channel, registered=False, error="no handler")
        assert await plugin.wait() == 1
        assert await read_line(plugin.stderr) == "example plugin: not registered: no handler"
        assert names(tmp_path) == []
