"""Our client against grpcio's server, an implementation that we did not write."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.dial import dial
from plugind.actors.io.unix_socket import Credentials
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, Empty, ListAndWatchResponse
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest, ExampleResponse
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.protocol.wire.hpack_cache import CACHE
from plugind.protocol.wire.limits import REGISTRATION_LIMITS, WireLimits
from plugind.tests.wire.grpcio_server import INFO, grpcio_server
from plugind.tests.wire.hostile import budgets_used

LARGE = WireLimits(message_bytes=8 * 1024 * 1024)
SIZES = [0, 1, *(k * 1024 + d for k in (16, 64, 256) for d in (-1, 0, 1)), 4 * 1024 * 1024]


async def test_a_whole_conversation_goes_through_generated_stubs(tmp_path: Path) -> None:
    """Faults 53 to 64: each call of a registration takes a tenth of the budgets, for which floods are refused."""
    path = str(tmp_path / "a.sock")
    CACHE.clear()  # A response that is recognized whole is not counted.
    with grpcio_server(path), trio.fail_after(60):
        async with await dial(path, timeout=60, limits=REGISTRATION_LIMITS) as channel:
            stub = channel.stub(RegistrationStub)
            info = await stub.GetInfo(InfoRequest(), timeout=60)
            assert 0 < max(budgets_used(channel)) < 0.1
            reply = await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=60)
            assert 0 < max(budgets_used(channel)) < 0.1
    assert info == INFO
    assert reply == RegistrationStatusResponse()
    assert channel.peer == Credentials(os.getpid(), os.getuid(), os.getgid())


async def test_messages_of_every_size_go_both_ways(tmp_path: Path) -> None:
    """Sizes around those of frames and windows, up to 4 MiB, one after another on one connection."""
    path = str(tmp_path / "a.sock")
    with grpcio_server(path), trio.fail_after(60):
        async with await dial(path, timeout=60, limits=LARGE) as channel:
            stub = channel.stub(ExampleStub)
            for size in SIZES:
                text = "x" * size
                assert (await stub.GetExampleInfo(ExampleRequest(request=text))).error == text


async def test_every_status_arrives_with_its_message(tmp_path: Path) -> None:
    """The error is a trailers-only response, and its message is percent-encoded."""
    said = "für %41 ✓\nsecond line"

    def fail(request: ExampleRequest, context: grpc.ServicerContext) -> ExampleResponse:
        context.abort(grpc.StatusCode[request.request], said)
        raise AssertionError

    path = str(tmp_path / "a.sock")
    with grpcio_server(path, example_info=fail), trio.fail_after(60):
        async with await dial(path, timeout=60) as channel:
            for status in set(Status) - {Status.OK}:
                with pytest.raises(GRPCError) as caught:
                    await channel.stub(ExampleStub).GetExampleInfo(ExampleRequest(request=status.name))
                assert (caught.value.status, caught.value.message, caught.value.__cause__) == (status, said, None)


async def test_metadata_goes_both_ways(tmp_path: Path) -> None:
    """Text and binary (``-bin``), in the request, the response headers and the trailers."""
    heard: list[tuple[str, str | bytes]] = []

    def answer(request: object, context: grpc.ServicerContext) -> ExampleResponse:
        heard.extend((item.key, item.value) for item in context.invocation_metadata() if item.key.startswith("x-"))
        context.send_initial_metadata([("x-first", "a b"), ("x-raw-bin", b"\x00\xff")])
        context.set_trailing_metadata([("x-last", "z"), ("x-last", "y"), ("x-end-bin", b"12345")])
        return ExampleResponse()

    path = str(tmp_path / "a.sock")
    sent: list[tuple[str, str | bytes]] = [("x-who", "plugind"), ("x-token-bin", b"\x01\x02\x03\x04")]
    with grpcio_server(path, example_info=answer), trio.fail_after(60):
        channel = await dial(path, timeout=60)
        async with channel, channel.stub(ExampleStub).GetExampleInfo.open(metadata=sent) as stream:
            await stream.send_message(ExampleRequest(), end=True)
            await stream.recv_message()
            await stream.recv_trailing_metadata()
    assert heard == sent
    assert stream.initial_metadata is not None
    assert stream.trailing_metadata is not None
    assert list(stream.initial_metadata.items()) == [("x-first", "a b"), ("x-raw-bin", b"\x00\xff")]
    assert list(stream.trailing_metadata.items()) == [("x-last", "z"), ("x-last", "y"), ("x-end-bin", b"12345")]


async def test_the_deadline_is_sent_to_the_plugin(tmp_path: Path) -> None:
    """The header is grpc-timeout."""
    remaining: list[float | None] = []

    def answer(request: object, context: grpc.ServicerContext) -> ExampleResponse:
        remaining.append(context.time_remaining())
        return ExampleResponse()

    path = str(tmp_path / "a.sock")
    with grpcio_server(path, example_info=answer), trio.fail_after(60):
        async with await dial(path, timeout=60) as channel:
            stub = channel.stub(ExampleStub)
            for timeout in (100.0, 100_000.0, None):
                await stub.GetExampleInfo(ExampleRequest(), timeout=timeout)
    assert remaining[0] is not None
    assert remaining[1] is not None
    assert 50 < remaining[0] <= 100
    assert 99_000 < remaining[1] <= 100_060
    assert remaining[2] is None or remaining[2] > 1e6


async def test_a_call_past_its_deadline_ends_and_the_connection_goes_on(tmp_path: Path) -> None:
    """Fault 32: the connection is usable afterwards."""
    go = threading.Event()

    def wait(request: ExampleRequest, context: grpc.ServicerContext) -> ExampleResponse:
        if request.request == "wait":
            go.wait(10)
        return ExampleResponse(error=request.request)

    path = str(tmp_path / "a.sock")
    with grpcio_server(path, example_info=wait), trio.fail_after(60):
        async with await dial(path, timeout=60) as channel:
            stub = channel.stub(ExampleStub)
            with pytest.raises(GRPCError) as caught:
                await stub.GetExampleInfo(ExampleRequest(request="wait"), timeout=0.05)
            after = await stub.GetExampleInfo(ExampleRequest(request="after"))
        go.set()
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    assert after.error == "after"


async def test_cancelling_the_task_cancels_the_call_at_the_plugin(tmp_path: Path) -> None:
    """Trio's cancellation becomes RST_STREAM, and the connection stays usable."""
    cancelled, started = threading.Event(), threading.Event()

    def watch(request: object, context: grpc.ServicerContext) -> Iterator[ListAndWatchResponse]:
        context.add_callback(cancelled.set)
        started.set()
        yield ListAndWatchResponse()
        cancelled.wait(10)

    path = str(tmp_path / "a.sock")
    with grpcio_server(path, watch=watch), trio.fail_after(60):
        async with await dial(path, timeout=60) as channel:
            with trio.CancelScope() as scope:
                async with channel.stub(DevicePluginStub).ListAndWatch.open() as stream:
                    await stream.send_message(Empty(), end=True)
                    await stream.recv_message()
                    scope.cancel()
                    await stream.recv_message()
            assert scope.cancelled_caught
            assert await trio.to_thread.run_sync(cancelled.wait, 5)
            assert await channel.stub(RegistrationStub).GetInfo(InfoRequest()) == INFO


async def status_of_get_info(channel: Channel) -> Status:
    try:
        await channel.stub(RegistrationStub).GetInfo(InfoRequest())
    except GRPCError as error:
        return error.status
    return Status.OK


async def test_a_server_that_stops_gracefully_refuses_new_calls_and_ends_old_ones(tmp_path: Path) -> None:
    """GOAWAY arrives in the middle of a stream, and the stream is read to its end."""
    go = threading.Event()

    def watch(request: object, context: grpc.ServicerContext) -> Iterator[ListAndWatchResponse]:
        yield ListAndWatchResponse()
        go.wait(10)
        yield ListAndWatchResponse(devices=[Device(ID="last")])

    path = str(tmp_path / "a.sock")
    with grpcio_server(path, watch=watch) as server, trio.fail_after(60):
        channel = await dial(path, timeout=60)
        async with channel, channel.stub(DevicePluginStub).ListAndWatch.open() as stream:
            await stream.send_message(Empty(), end=True)
            await stream.recv_message()
            stopped = server.stop(10)
            # grpcio cancels calls that arrive after it decides to stop and before it sends GOAWAY.
            while await status_of_get_info(channel) is not Status.UNAVAILABLE:
                pass
            go.set()
            last = await stream.recv_message()
        await trio.to_thread.run_sync(stopped.wait)
    assert last == ListAndWatchResponse(devices=[Device(ID="last")])
