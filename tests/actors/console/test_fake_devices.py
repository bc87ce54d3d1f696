"""The fake device plugin: its options, its answers, the commands that it takes, and its calls of Register."""

from __future__ import annotations

import argparse
import io
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.console.fake import FakeSpec, add_arguments, fake_main, spec_from
from plugind.actors.console.fake_calls import Announcement, Caller, Registered
from plugind.actors.console.fake_control import MAX_LINE, LineBuffer, follow_pipe, named_pipe
from plugind.actors.console.fake_devices import obey
from plugind.actors.grpc.server.serve import serve_listener, serve_unix
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.simulation.feeds import MOST_WAITING
from plugind.actors.simulation.file_devices import DeviceFile, FileDevices
from plugind.actors.simulation.plugins import Call
from plugind.actors.simulation.reactions import Reaction
from plugind.actors.simulation.streams import connected
from plugind.protocol.plugins.devices import Device, DeviceOptions
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub, RegistrationBase

if TYPE_CHECKING:
    from grpclib.server import Stream

NULL = "/dev/null"
BASE = ("--type=DevicePlugin", "--name=example.com/gpu")


# --- the options ------------------------------------------------------------------------------------------------------


def parse(*words: str) -> FakeSpec:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return spec_from(parser.parse_args(words))


def devices_of(spec: FakeSpec) -> FileDevices:
    assert spec.commanded is not None
    assert isinstance(spec.commanded.service, FileDevices)
    return spec.commanded.service


def test_every_option_of_devices_reaches_the_plugin(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    spec = parse(
        *BASE, "--socket=/s", f"--device=a={NULL}", f"--device=b={file}", f"--device=c={NULL}", "--numa=0,1",
        "--env=X=1", "--env=IDS=<{ids}>", "--pre-start", "--preferred", "--control=/c",
    )  # fmt: skip
    devices = devices_of(spec)
    assert devices.devices == [Device("a", numa=(0,)), Device("b", numa=(1,)), Device("c", numa=(0,))]
    assert devices.options == DeviceOptions(pre_start_required=True, get_preferred_allocation_available=True)
    assert spec.control == "/c"
    assert devices_of(parse(*BASE, "--socket=/s", "--devices=0")).devices == []


@pytest.mark.parametrize(
    ("words", "name", "directory"),
    [
        (["--device-plugins"], "example.com_gpu.sock", "/var/lib/kubelet/device-plugins"),
        (["--device-plugins=/d"], "example.com_gpu.sock", "/d"),
        (["--device-plugins=d", "--socket=d/own"], "own", "d"),
    ],
)
def test_a_device_plugin_that_calls_has_its_socket_beside_that_of_the_node(
    words: list[str], name: str, directory: str
) -> None:
    spec = parse(*BASE, *words, "--version=v1")
    announcement = Announcement(f"{directory}/kubelet.sock", "v1", "example.com/gpu", DeviceOptions())
    assert (spec.socket, spec.announcement) == (f"{directory}/{name}", announcement)


# --- what it serves ---------------------------------------------------------------------------------------------------


def one(*ids: str) -> api.AllocateRequest:
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


async def test_allocated_devices_are_device_nodes_and_other_files_are_mounts(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "file"
    file.touch()
    files = [DeviceFile("n", NULL), DeviceFile("f", str(file))]
    calls: list[Call] = []
    devices = FileDevices(files, envs={"IDS": "<{ids}>", "X": "1"})
    devices.record = calls.append
    async with connected(devices) as channel:
        stub = channel.stub(DevicePluginStub)
        answer = await stub.Allocate(one("n", "f"), timeout=5)
    container = api.ContainerAllocateResponse(
        envs={"IDS": "<n,f>", "X": "1"},
        mounts=[api.Mount(container_path="/dev/f", host_path=str(file))],
        devices=[api.DeviceSpec(container_path="/dev/n", host_path=NULL, permissions="rw")],
    )
    assert answer == api.AllocateResponse(container_responses=[container])
    assert calls == [Call(0.0, "Allocate", devices=("n", "f"))]


async def test_devices_that_it_lacks_and_files_that_have_gone_are_refused(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    devices = FileDevices([DeviceFile("f", str(tmp_path / "gone"))])
    calls: list[Call] = []
    devices.record = calls.append
    async with connected(devices) as channel:
        stub = channel.stub(DevicePluginStub)
        for name in ("x", "f"):
            with pytest.raises(GRPCError) as caught:
                await stub.Allocate(one(name), timeout=5)
            said = {
                "x": (Status.INVALID_ARGUMENT, "there is no device 'x'"),
                "f": (
                    Status.FAILED_PRECONDITION,
                    f"the file of device 'f' cannot be used: {tmp_path}/gone: No such file or directory",
                ),
            }
            assert (caught.value.status, caught.value.message) == said[name]
    assert [call.reaction for call in calls] == [Reaction.REFUSED] * 2


async def test_devices_that_must_be_included_are_preferred_and_then_those_listed_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    devices = FileDevices([DeviceFile(name, NULL) for name in "abcd"], DeviceOptions(True, True))
    wanted = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=["d", "c", "b"], must_include_deviceIDs=["c"], allocation_size=2
    )
    async with connected(devices) as channel:
        stub = channel.stub(DevicePluginStub)
        answer = await stub.GetPreferredAllocation(
            api.PreferredAllocationRequest(container_requests=[wanted]), timeout=5
        )
        await stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=["c"]), timeout=5)
    assert [list(container.deviceIDs) for container in answer.container_responses] == [["c", "b"]]


class SlowStream:
    """A stream whose reader takes the next list only when it is told to."""

    def __init__(self) -> None:
        self.sent: list[api.ListAndWatchResponse] = []
        self.reads = trio.Event()

    async def recv_message(self) -> api.Empty:
        return api.Empty()

    async def send_message(self, message: api.ListAndWatchResponse) -> None:
        self.sent.append(message)
        await self.reads.wait()


async def test_a_reader_that_is_slow_gets_the_newest_lists_and_the_end(autojump_clock: trio.testing.MockClock) -> None:
    """A bounded number of lists wait for it, however many are shown (fault 65)."""
    devices, stream = FakeDevices([Device("first")]), SlowStream()

    async def serve() -> None:
        with pytest.raises(GRPCError, match="over"):
            await devices.ListAndWatch(cast("Any", stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1000):
            devices.show(Device(str(number)))
        devices.end(GRPCError(Status.UNAVAILABLE, "over"))
        devices.show(Device("too late"))
        stream.reads.set()
    assert [message.devices[0].ID for message in stream.sent] == ["first", *map(str, range(1000 - MOST_WAITING, 1000))]
    assert devices.streams == 0


# --- commands ---------------------------------------------------------------------------------------------------------


def sick(devices: FileDevices) -> list[str]:
    return [device.id for device in devices.devices if not device.healthy]


def test_commands_turn_devices_and_answer_what_they_did() -> None:
    devices = FileDevices(DeviceFile(f"d{number}", NULL) for number in range(10))
    assert obey("unhealthy d1 d2\n", devices) == "d1, d2 are unhealthy"
    assert sick(devices) == ["d1", "d2"]
    assert obey("  healthy d1  ", devices) == "d1 is healthy"
    assert sick(devices) == ["d2"]
    assert obey("unhealthy all", devices) == "10 devices are unhealthy"
    assert len(sick(devices)) == 10
    obey("healthy all", devices)
    assert sick(devices) == []
    assert obey("unplug d1 d2", devices) == "d1, d2 are unplugged"
    assert [device.id for device in devices.devices] == ["d0", *(f"d{number}" for number in range(3, 10))]
    obey("unhealthy d1", devices)
    obey("healthy d2", devices)
    assert (len(devices.devices), sick(devices)) == (10, ["d1"])
    obey("unplug d1", devices)
    assert obey(f"plug d1 new={NULL}", devices) == "d1, new are plugged in"
    assert (len(devices.devices), sick(devices)) == (11, ["d1"])
    assert obey("plug lost=/no/such", devices) == (
        "the file of device lost cannot be used: /no/such: No such file or directory"
    )
    assert obey("plug a/b", devices) == "'a/b' is no ID: it has a slash, a space or a control character"
    assert len(devices.devices) == 11


async def test_commands_refuse_the_calls_that_lease_devices_or_let_them_hang(
    autojump_clock: trio.testing.MockClock,
) -> None:
    devices, calls = FileDevices([DeviceFile("d1", NULL)]), list[Call]()
    devices.record = calls.append
    request = api.PreStartContainerRequest(devices_ids=["d1"])
    async with connected(devices) as channel:
        stub = channel.stub(DevicePluginStub)
        assert obey("refuse pre-start", devices) == "PreStartContainer is refused from now on"
        with pytest.raises(GRPCError) as caught:
            await stub.PreStartContainer(request, timeout=5)
        assert (caught.value.status, caught.value.message) == (
            Status.FAILED_PRECONDITION,
            "PreStartContainer is refused on command",
        )
        assert obey("hang pre-start", devices) == "PreStartContainer is not answered from now on"
        with pytest.raises(GRPCError) as caught:
            await stub.PreStartContainer(request, timeout=5)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert obey("answer pre-start", devices) == "PreStartContainer is answered from now on"
        await stub.PreStartContainer(request, timeout=5)
    assert [call.reaction for call in calls] == [Reaction.REFUSED, Reaction.HUNG, Reaction.ANSWERED]


def fed(pieces: Iterable[bytes]) -> list[str]:
    lines = LineBuffer()
    return [line for piece in pieces for line in lines.add(piece)] + list(lines.end())


def test_lines_are_put_together_from_pieces_and_a_long_one_is_cut() -> None:
    assert fed([b"a b\nc", b"", b"d\n\n", b"e"]) == ["a b", "cd", "", "e"]
    assert fed([b"\xff\n"]) == ["\\xff"]
    long = fed([b"x" * MAX_LINE, b"yy", b"zz\nnext\n"])
    assert long == ["x" * 80, "next"]


async def test_a_pipe_takes_the_commands_of_several_writers(tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    devices = FileDevices([DeviceFile("a", NULL), DeviceFile("b", NULL)])
    said: list[str] = []
    with trio.fail_after(10), named_pipe(path) as pipe:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_pipe, pipe, partial(obey, devices=devices), said.append)
            for name in ("a", "b"):
                write(path, f"unhealthy {name}\n\n")
                while name not in sick(devices):  # noqa: ASYNC110 - the pipe says nothing when it is read
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    assert said == ["a is unhealthy", "b is unhealthy"]
    assert os.listdir(tmp_path) == []


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# --- calls of Register ------------------------------------------------------------------------------------------------


class Node(RegistrationBase):
    """The service on ``kubelet.sock``, which refuses the first calls."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.requests: list[api.RegisterRequest] = []

    async def Register(self, stream: Stream[api.RegisterRequest, api.Empty]) -> None:  # noqa: N802
        request = await stream.recv_message()
        assert request is not None
        self.requests.append(request)
        if len(self.requests) <= self.refuses:
            raise GRPCError(Status.UNKNOWN, "not now")
        await stream.send_message(api.Empty())


@attrs.define
class Played:
    """A plugin that calls Register in a directory, and what it said."""

    directory: Path
    nursery: trio.Nursery
    said: list[str] = attrs.field(factory=list)
    answers: list[Registered] = attrs.field(factory=list)

    async def answered(self, times: int) -> None:
        """Wait until so many of its calls were answered."""
        with trio.fail_after(10):
            while len(self.answers) < times:  # noqa: ASYNC110 - what it waits for is said to a function
                await trio.sleep(0.001)

    async def serve(self, node: Node) -> None:
        """Serve ``kubelet.sock`` from now on; a socket that is there is replaced."""
        path = self.directory / "kubelet.sock"
        path.unlink(missing_ok=True)
        await self.nursery.start(partial(serve_unix, [node], str(path)))


@asynccontextmanager
async def played(directory: Path) -> AsyncIterator[Played]:
    kubelet = directory / "kubelet.sock"
    announcement = Announcement(str(kubelet), "v1beta1", "example.com/gpu", DeviceOptions())
    async with trio.open_nursery() as nursery:
        playing = Played(directory, nursery)
        caller = Caller(announcement, playing.said.append, playing.answers.append)
        devices = FileDevices([DeviceFile("a", NULL)])
        serve: Callable[..., Awaitable[None]] = partial(serve_listener, [devices])
        await nursery.start(caller.play, listen(str(directory / "own.sock")), serve)
        yield playing
        nursery.cancel_scope.cancel()


WANTED = api.RegisterRequest(
    version="v1beta1", endpoint="own.sock", resource_name="example.com/gpu", options=api.DevicePluginOptions()
)


async def test_a_plugin_waits_for_the_node_and_calls_each_new_one(tmp_path: Path) -> None:
    """Consumers B.3: the creation of ``kubelet.sock`` is one sign of a restart."""
    kubelet = tmp_path / "kubelet.sock"
    first, second = Node(), Node()
    async with played(tmp_path) as plugin:
        await trio.testing.wait_all_tasks_blocked()
        assert plugin.said == [f"waiting for {kubelet}"]
        await plugin.serve(first)
        await plugin.answered(1)
        assert plugin.said[1:] == [f"registered with {kubelet}"]
        await plugin.serve(second)
        await plugin.answered(2)
    assert (first.requests, second.requests) == ([WANTED], [WANTED])
    assert [answer.error for answer in plugin.answers] == ["", ""]


async def test_a_plugin_whose_socket_is_removed_or_replaced_listens_and_calls_again(tmp_path: Path) -> None:
    """Consumers B.3: the other sign of a restart is that the plugin's own socket is gone."""
    own, registered = tmp_path / "own.sock", f"registered with {tmp_path}/kubelet.sock"
    again = "the file of its socket was removed or replaced: listening again"
    node = Node()
    async with played(tmp_path) as plugin:
        await plugin.serve(node)
        await plugin.answered(1)
        own.unlink()
        await plugin.answered(2)
        with socket.socket(socket.AF_UNIX) as another:
            another.bind(str(tmp_path / "another"))
        os.rename(tmp_path / "another", own)
        await plugin.answered(3)
        await (await trio.open_unix_socket(str(own))).aclose()
    assert plugin.said[1:] == [registered, again, registered, again, registered]
    assert node.requests == [WANTED] * 3


class RemovesOnce(io.StringIO):
    """Standard error: with the first line that is written, the socket is removed."""

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self.socket = socket
        self.listening_again = trio.Event()

    def write(self, text: str) -> int:
        if not self.getvalue():
            self.socket.unlink()
        elif "listening again" in text:
            self.listening_again.set()
        return super().write(text)


async def test_a_plugin_whose_socket_is_removed_as_soon_as_it_listens_listens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that starts removes it."""
    own = tmp_path / "example.com_gpu.sock"
    monkeypatch.setattr(sys, "stderr", said := RemovesOnce(own))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(fake_main, parse(*BASE, f"--device-plugins={tmp_path}"), out=io.StringIO()))
        with trio.fail_after(60):
            await said.listening_again.wait()
            while not own.exists():  # noqa: ASYNC110 - it tells nobody that it listens again
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert "cannot be found out: No such file or directory" in said.getvalue()


async def test_a_refused_call_is_repeated_after_a_second(tmp_path: Path) -> None:
    kubelet = tmp_path / "kubelet.sock"
    node = Node(refuses=1)
    async with played(tmp_path) as plugin:
        await plugin.serve(node)
        await plugin.answered(2)
    refused = f"not registered with {kubelet}: UNKNOWN: not now; the next try is in 1 s"
    assert plugin.said[1:] == [refused, f"registered with {kubelet}"]
    assert len(node.requests) == 2
    first, second = plugin.answers
    assert (first.error, second.error) == ("UNKNOWN: not now", "")
    assert second.time - first.time >= 1.0
