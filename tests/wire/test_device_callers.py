"""Hostile callers of Register, on the real socket: what they cost is bounded, and good plugins are served."""

from __future__ import annotations

import collections
import itertools
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from grpclib.exceptions import GRPCError, StreamTerminatedError

from plugind.actors.devices.directory import RealDeviceDirectory
from plugind.actors.devices.register_calls import CallsConfig, RegisterCalls
from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.actors.simulation.device_plugins import options_message
from plugind.protocol.logs.lines import SILENT, Field, Level, Logger
from plugind.protocol.messages.discovery import CallAnswered, SocketAppeared
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import RegisterCalled, StatusMessage
from plugind.protocol.plugins.devices import DeviceOptions
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import RegistrationStub
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import RegisterRequest
from plugind.protocol.settings.config import DevicePluginDirectory
from plugind.protocol.settings.rules import Rules
from plugind.protocol.trust.users import Users
from plugind.protocol.wire.errors import DialError
from plugind.tests.wire.hostile import HELLO

#: Seconds in which any step must end, even on a busy machine.
DEADLINE = 60.0
GPU = "vendor.com/gpu"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Reconciler = trio.MemoryReceiveChannel[ReconcilerMessage]


@asynccontextmanager
async def served(
    path: Path, log: Logger = SILENT, called: list[RegisterCalled] | None = None
) -> AsyncIterator[Reconciler]:
    """Serve Register in ``path`` as the device server does, and return what the reconciler would read.

    What is to be counted is added to ``called`` at the end.
    """
    to_reconciler, reconciler = trio.open_memory_channel[ReconcilerMessage](10_000)
    to_status, status = trio.open_memory_channel[StatusMessage](10_000)
    directory = RealDeviceDirectory(DevicePluginDirectory(path), log=log)
    rules = Rules(users=Users(own=os.geteuid()))
    config = CallsConfig(str(path), rules, itertools.count(1), to_reconciler, to_status)
    directory.hold()
    serving = directory.listen()
    try:
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                await nursery.start(serving.serve, RegisterCalls(config, directory).register)
                serving.publish(delete_sockets=True)
                yield reconciler
                nursery.cancel_scope.cancel()
    finally:
        serving.close()
        directory.release()
    while called is not None and status.statistics().current_buffer_used:
        message = status.receive_nowait()
        if isinstance(message, RegisterCalled):
            called.append(message)


async def accept(reconciler: Reconciler) -> None:
    """Answer every call yes."""
    async for message in reconciler:
        if isinstance(message, SocketAppeared) and message.call is not None and message.call.reply is not None:
            message.call.reply.send_nowait(CallAnswered())


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(path))


async def call(path: Path, endpoint: str, resource: str = GPU) -> str:
    """Call Register on a connection of its own; return the code of the answer."""
    channel = await dial(str(path / "kubelet.sock"), timeout=DEADLINE)
    try:
        return await call_on(channel, endpoint, resource)
    finally:
        channel.close()


async def call_on(channel: Channel, endpoint: str, resource: str) -> str:
    return (await answer_to(channel, endpoint, resource))[0]


async def answer_to(channel: Channel, endpoint: str, resource: str) -> tuple[str, str | None]:
    """Call Register; return the code and the text of the answer."""
    try:
        await channel.stub(RegistrationStub).Register(
            RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
        )
    except GRPCError as error:
        return error.status.name, error.message
    return "OK", None


async def test_a_thousand_calls_are_all_answered_and_few_are_under_way(tmp_path: Path) -> None:
    """They come from one process, of which four may be under way; the others are refused at once."""
    path = tmp_path / "device-plugins"
    async with served(path) as reconciler:
        bind(path / "a.sock")
        answers: collections.Counter[tuple[str, str | None]] = collections.Counter()

        async def caller() -> None:
            channel = await dial(str(path / "kubelet.sock"), timeout=DEADLINE)
            for number in range(100):
                answers[await answer_to(channel, "a.sock", f"vendor.com/r{number}")] += 1
            channel.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, reconciler)
            async with trio.open_nursery() as callers:
                for _ in range(10):
                    callers.start_soon(caller)
            nursery.cancel_scope.cancel()
        busy = f"4 calls of Register of process {os.getpid()} are under way: wait for their answers"
        assert answers.total() == 1000
        assert answers.keys() <= {
            ("OK", None),
            ("RESOURCE_EXHAUSTED", busy),
            ("UNAVAILABLE", "the plugin has called Register again"),
        }
        assert answers["OK", None] > 0


async def test_each_call_is_counted_once_with_what_became_of_it(tmp_path: Path) -> None:
    """Names that were refused were counted like those that were registered, and took their labels."""
    path = tmp_path / "device-plugins"
    called: list[RegisterCalled] = []
    async with served(path, called=called) as reconciler, trio.open_nursery() as nursery:
        bind(path / "a.sock")
        assert await call(path, "../x", "flood.com/r0") == "INVALID_ARGUMENT"
        assert await call(path, "a.sock", "?") == "INVALID_ARGUMENT"
        caller = trio.CancelScope()
        nursery.start_soon(call_in, caller, path)
        await reconciler.receive()
        caller.cancel()
        nursery.start_soon(accept, reconciler)
        assert await call(path, "a.sock") == "OK"
        nursery.cancel_scope.cancel()
    left = RegisterCalled("vendor.com/left", registered=False)
    assert left in called
    called.remove(left)
    assert called == [
        RegisterCalled("flood.com/r0", registered=False),
        RegisterCalled(None, registered=False),
        RegisterCalled(GPU, registered=True),
    ]


async def call_in(scope: trio.CancelScope, path: Path) -> None:
    """Call until ``scope`` is cancelled."""
    with scope:
        await call(path, "a.sock", "vendor.com/left")


@pytest.mark.parametrize("named", [None, DeviceOptions(), DeviceOptions(pre_start_required=True)])
async def test_the_options_of_a_call_are_passed_on_if_it_names_any(tmp_path: Path, named: DeviceOptions | None) -> None:
    path = tmp_path / "device-plugins"
    request = RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name=GPU)
    if named is not None:
        request.options.CopyFrom(options_message(named))
    async with served(path) as reconciler:
        bind(path / "a.sock")
        channel = await dial(str(path / "kubelet.sock"), timeout=DEADLINE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.stub(RegistrationStub).Register, request)
            message = await reconciler.receive()
            assert isinstance(message, SocketAppeared)
            assert message.call is not None
            assert message.call.options == named
            nursery.cancel_scope.cancel()
        channel.close()


@pytest.mark.parametrize("endpoint", ["../x", "x" * 300, "kubelet.sock"])
async def test_what_is_no_file_name_reaches_nobody(tmp_path: Path, endpoint: str) -> None:
    path = tmp_path / "device-plugins"
    async with served(path) as reconciler:
        channel = await dial(str(path / "kubelet.sock"), timeout=DEADLINE)
        assert await answer_to(channel, endpoint, GPU) == (
            "INVALID_ARGUMENT",
            f'the endpoint "{endpoint}" is not a file name in {path}',
        )
        name = f"vendor.com/{'x' * 289}"
        assert await answer_to(channel, "a.sock", name) == ("INVALID_ARGUMENT", f'the ResourceName "{name}" is invalid')
        assert await call_on(channel, "a\x00b", GPU) == "INVALID_ARGUMENT"
        channel.close()
        assert reconciler.statistics().current_buffer_used == 0


class Log:
    """Keeps why connections ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[Level, Field, Field, Field]] = []

    def enabled(self, level: Level) -> bool:
        return level >= Level.INFO

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        assert message == "a connection to kubelet.sock ended"
        self.ended.append((level, fields["reason"], fields["detail"], fields["pid"]))


async def test_callers_that_never_read_keep_no_others_out(tmp_path: Path) -> None:
    """A process has at most 16 connections; more are closed at once, and the log says so."""
    path = tmp_path / "device-plugins"
    log = Log()
    async with served(path, log) as reconciler:
        bind(path / "a.sock")
        silent = []
        for _ in range(40):
            connection = trio.socket.socket(trio.socket.AF_UNIX)
            await connection.connect(str(path / "kubelet.sock"))
            with suppress(BrokenPipeError):
                await connection.send(PREFACE + HELLO)
            silent.append(connection)
        closed = 0
        for connection in silent:
            closed += await is_closed(connection)
        assert closed == 24
        too_many = (Level.WARNING, "too many connections", "16 of this process are open", os.getpid())
        assert log.ended == [too_many] * 24
        for connection in silent:
            connection.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, reconciler)
            assert await call_once_served(path) == "OK"
            nursery.cancel_scope.cancel()


async def is_closed(connection: trio.socket.SocketType) -> bool:
    """Whether the server has closed the connection, rather than greeted on it."""
    try:
        return await connection.recv(1) == b""
    except ConnectionResetError:
        return True


async def call_once_served(path: Path) -> str:
    """Call until the server has noticed that the other connections of this process have ended."""
    while True:
        with suppress(StreamTerminatedError, DialError):
            if (code := await call(path, "a.sock")) != "UNAVAILABLE":
                return code
        await trio.sleep(0.01)
