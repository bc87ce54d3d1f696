"""The behaviour of a channel for its callers: concurrent waits, deadlines, cancellation, closing, hours of silence."""

import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.transport import SocketTransport
from plugind.actors.simulation.streams import ServerEnd, memory_connection
from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Empty, ListAndWatchResponse
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest, ExampleResponse
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest
from plugind.protocol.wire.errors import ErrorCode
from plugind.protocol.wire.frames import DATA, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame
from plugind.tests.wire.hostile import (
    HELLO,
    INFO,
    answer,
    connected,
    data,
    get_info,
    headers,
    message,
    sends,
    trailers,
)


def in_memory() -> tuple[Channel, ServerEnd]:
    """Return a channel, and the server's end of its connection."""
    made = memory_connection()
    return Channel(made.client), made.server


def frames(heard: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return type, flags, stream and payload of each frame; a preface before them is skipped."""
    heard = heard.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    found = []
    while heard:
        size = int.from_bytes(heard[:3], "big")
        found.append((heard[3], heard[4], int.from_bytes(heard[5:9], "big"), heard[9 : 9 + size]))
        heard = heard[9 + size :]
    return found


async def test_each_of_two_requests_is_one_send(tmp_path: Path) -> None:
    """A registration takes two sends: preface to DATA in the first; SETTINGS are acknowledged with the next request."""
    heard: list[bytes] = []

    async def peer(stream: trio.SocketStream) -> None:
        for number in (1, 3):
            heard.append(bytes(await stream.receive_some()))
            await stream.send_all((HELLO if number == 1 else b"") + answer(number))

    async with connected(tmp_path, peer) as channel:
        assert await get_info(channel, None) == INFO
        assert await get_info(channel, None) == INFO
    kinds = [[kind for kind, _, _, _ in frames(part)] for part in heard]
    assert kinds == [[SETTINGS, WINDOW_UPDATE, HEADERS, DATA], [SETTINGS, HEADERS, DATA]]


async def test_a_deadline_is_exact_on_trios_clock(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 32: a deadline is exact in virtual time, and the plugin receives a reset."""
    channel, theirs = in_memory()
    with pytest.raises(GRPCError) as caught:
        await get_info(channel, 7.25)
    assert trio.current_time() == 7.25
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    heard = frames(bytes(await theirs.receive_some()))
    assert heard[-1] == (RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.CANCEL))


async def test_keep_alive_is_answered_for_hours(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 54: a quiet stream whose server pings every ten seconds never exhausts a budget."""
    channel, theirs = in_memory()
    acknowledged = 0

    async def server() -> None:
        nonlocal acknowledged
        await theirs.receive_some()
        await theirs.send_all(HELLO + headers(1))
        for _ in range(1000):
            await trio.sleep(10)
            await theirs.send_all(frame(PING, 0, 0, b"keepaliv"))
            heard = frames(bytes(await theirs.receive_some()))
            acknowledged += heard.count((PING, 1, 0, b"keepaliv"))
        await theirs.send_all(data(1, message(b"")) + trailers(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server)
        assert await channel.stub(DevicePluginStub).ListAndWatch(Empty()) == [ListAndWatchResponse()]
    assert acknowledged == 1000


async def test_wait_closed_returns_when_the_connection_of_an_idle_channel_ends(tmp_path: Path) -> None:
    """A task that monitors connections relies on this."""
    go = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO + frame(PING, 0, 0, bytes(8)))
        await go.wait()

    async with connected(tmp_path, peer) as channel:
        with trio.move_on_after(0.02):
            await channel.wait_closed()
        go.set()
        assert await channel.wait_closed() == "the peer closed the connection"


async def test_calls_that_wait_together_each_get_their_answer_whichever_task_reads(tmp_path: Path) -> None:
    """Whether the leader is answered first, last or in between, the other tasks get their answers."""
    for order in ((1, 3, 5), (5, 3, 1), (3, 5, 1)):
        ready = trio.Event()

        async def peer(stream: trio.SocketStream, order: tuple[int, ...] = order, ready: trio.Event = ready) -> None:
            await stream.receive_some()
            await ready.wait()
            await stream.send_all(HELLO)
            for number in order:
                await stream.send_all(answer(number))
                await trio.testing.wait_all_tasks_blocked()
            await stream.receive_some()

        got: list[object] = []

        async def call(channel: Channel, got: list[object] = got) -> None:
            got.append(await get_info(channel))

        async with connected(tmp_path, peer) as channel, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, channel)
                await trio.testing.wait_all_tasks_blocked()
            ready.set()
        assert got == [INFO] * 3
        await trio.Path(tmp_path / "peer.sock").unlink()


async def test_another_task_reads_after_the_leader_is_cancelled(tmp_path: Path) -> None:
    """The leader is the task that reads for the others."""
    ready = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await ready.wait()
        await stream.send_all(HELLO + answer(3))
        while await stream.receive_some():
            pass

    leader = trio.CancelScope()

    async def lead(channel: Channel) -> None:
        with leader:
            await get_info(channel)

    async with connected(tmp_path, peer) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(lead, channel)
        await trio.testing.wait_all_tasks_blocked()

        async def follow() -> None:
            assert await get_info(channel) == INFO
            nursery.cancel_scope.cancel()

        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        leader.cancel()
        await trio.testing.wait_all_tasks_blocked()
        ready.set()
    assert leader.cancelled_caught


async def test_a_call_that_waits_for_room_begins_when_another_ends_though_a_stream_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The reader of a long stream is the leader; other tasks own the call that ends and the call that begins."""
    channel, theirs = in_memory()

    async def server() -> None:
        await theirs.send_all(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 2)))
        async for part in theirs:
            for kind, _, number, _ in frames(bytes(part)):
                if kind == HEADERS and number == 1:
                    await theirs.send_all(headers(1) + data(1, message(b"")))
                elif kind == HEADERS:
                    await trio.sleep(1)
                    await theirs.send_all(answer(number))

    async def follow() -> None:
        await channel.stub(DevicePluginStub).ListAndWatch(Empty(), timeout=3600)

    done: list[float] = []

    async def call() -> None:
        assert await get_info(channel, None) == INFO
        done.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server)
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(call)
        nursery.cancel_scope.cancel()
    assert done == [1, 2, 3]


async def test_more_calls_than_a_peer_may_refuse_wait_for_its_settings(autojump_clock: trio.testing.MockClock) -> None:
    """Before the SETTINGS arrive, only as many calls begin as every server must accept; the others begin afterwards."""
    channel, theirs = in_memory()
    opened: list[list[int]] = []

    async def server() -> None:
        for hello in (HELLO, b""):
            await trio.sleep(1)
            numbers = [number for kind, _, number, _ in frames(bytes(await theirs.receive_some())) if kind == HEADERS]
            opened.append(numbers)
            await theirs.send_all(hello)
        await theirs.send_all(b"".join(answer(number) for numbers in opened for number in numbers))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server)
        for _ in range(150):
            nursery.start_soon(get_info, channel, None)
    assert [len(numbers) for numbers in opened] == [100, 50]


async def test_a_call_to_a_peer_that_allows_no_streams_ends_at_its_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 62 in another form: the peer's limit of streams is zero."""
    channel, theirs = in_memory()
    await theirs.send_all(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 0)) + answer(1))
    assert await get_info(channel, None) == INFO
    with pytest.raises(GRPCError) as caught:
        await get_info(channel, 2.0)
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    assert trio.current_time() == 2


async def test_closing_ends_the_calls_that_wait_and_refuses_new_ones(tmp_path: Path) -> None:
    """We close the channel ourselves, so the error is Trio's and not a status of the plugin."""
    ended: list[str] = []

    async def call(channel: Channel) -> None:
        try:
            await get_info(channel, None)
        except trio.ClosedResourceError as error:
            ended.append(type(error).__name__)

    async with connected(tmp_path, sends(HELLO)) as channel:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, channel)
            await trio.testing.wait_all_tasks_blocked()
            channel.close()
            channel.close()
        with pytest.raises(trio.ClosedResourceError):
            await get_info(channel)
    assert ended == ["ClosedResourceError"] * 3


async def test_both_sides_may_be_blocked_in_sending(tmp_path: Path) -> None:
    """A sender whose socket is full reads in the meantime, so two peers that both send first do not deadlock."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    heard = bytearray()

    async def server() -> None:
        await stream.send_all(HELLO + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))
        await stream.send_all(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**30)))
        # Sends far more than the socket holds before it reads a byte.
        await stream.send_all(
            headers(1) + data(1, message(b"\x0a\x88\x27" + b"y" * 5000)) + frame(PING, 0, 0, bytes(8)) * 90
        )
        while len(heard) < 1_000_000:
            heard.extend(await stream.receive_some())
        await stream.send_all(trailers(1))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, Channel(SocketTransport(ours)) as channel:
            nursery.start_soon(server)
            reply = await channel.stub(ExampleStub).GetExampleInfo(ExampleRequest(request="x" * 1_000_000))
            assert reply.error == "y" * 5000
        await stream.aclose()


async def test_cancelling_a_call_that_is_half_sent_leaves_whole_frames(tmp_path: Path) -> None:
    """The rest of a frame is sent before the reset, and the next call works on the same connection."""
    go = trio.Event()
    heard = bytearray()

    async def peer(stream: trio.SocketStream) -> None:
        await stream.send_all(HELLO + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))
        await go.wait()
        while True:
            heard.extend(await stream.receive_some())
            # The acknowledgement of SETTINGS may come before or after the second request.
            if any((kind, number) == (DATA, 3) for kind, _, number, _ in frames(bytes(heard))):
                break
        await stream.send_all(answer(3))
        await stream.receive_some()

    async with connected(tmp_path, peer) as channel:
        channel._transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)  # type: ignore[attr-defined]
        with trio.move_on_after(0.02) as scope:
            await channel.stub(ExampleStub).GetExampleInfo(ExampleRequest(request="x" * 60_000))
        assert scope.cancelled_caught
        go.set()
        assert await get_info(channel) == INFO
    kinds = [(kind, number) for kind, _, number, _ in frames(bytes(heard)) if number]
    assert kinds[0] == (HEADERS, 1)
    assert kinds[-3:] == [(RST_STREAM, 1), (HEADERS, 3), (DATA, 3)]


async def test_a_sender_goes_on_while_another_call_reads(tmp_path: Path) -> None:
    """The leader sees when the socket has room, and wakes the sender that waits for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    heard = bytearray()

    async def server() -> None:
        await stream.send_all(HELLO + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))
        await stream.send_all(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**30)))
        while not heard.endswith(frame(DATA, 1, 3)):
            await trio.testing.wait_all_tasks_blocked()
            heard.extend(await stream.receive_some(3000))
        await stream.send_all(answer(3, b"") + answer(1))

    async def upload(channel: Channel) -> None:
        async with channel.request("/a.B/C", Cardinality.STREAM_UNARY, ExampleRequest, ExampleResponse) as upload:
            for _ in range(20):
                await upload.send_message(ExampleRequest(request="x" * 10_000))
            await upload.end()
            assert await upload.recv_message() == ExampleResponse()

    with trio.fail_after(60):
        async with Channel(SocketTransport(ours)) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(server)
            nursery.start_soon(get_info, channel, None)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(upload, channel)
        await stream.aclose()
    assert (
        sum(len(body) for kind, _, number, body in frames(bytes(heard)) if (kind, number) == (DATA, 3)) == 20 * 10_008
    )


async def test_a_stream_that_is_left_early_is_reset_and_the_connection_goes_on(tmp_path: Path) -> None:
    """The caller leaves the block before it has read the whole response."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO + headers(1) + data(1, message(b"")) * 3)
        while (RST_STREAM, 0, 1, b"\0\0\0\x08") not in frames(bytes(await stream.receive_some())):
            pass
        await stream.send_all(data(1, message(b"")) + trailers(1) + answer(3))
        await stream.receive_some()

    async with connected(tmp_path, peer) as channel:
        async with channel.stub(DevicePluginStub).ListAndWatch.open() as stream:
            await stream.send_message(Empty(), end=True)
            async for _ in stream:
                await stream.cancel()
                break
        assert await get_info(channel) == INFO


async def test_misuse_raises_the_errors_of_grpclibs_client(tmp_path: Path) -> None:
    """The same exceptions as grpclib's own client raises."""
    async with connected(tmp_path, sends(HELLO + answer(1))) as channel:
        method = channel.stub(ExampleStub).GetExampleInfo
        wrong: list[Callable[..., Awaitable[object]]] = [
            lambda stream: stream.recv_message(),
            lambda stream: stream.recv_initial_metadata(),
            lambda stream: stream.recv_trailing_metadata(),
            lambda stream: stream.end(),
            lambda stream: stream.cancel(),
            lambda stream: stream.send_request(end=True),
        ]
        for use in wrong:
            async with method.open() as stream:
                with pytest.raises(ProtocolError):
                    await use(stream)
        async with method.open() as stream:
            with pytest.raises(TypeError, match="must be a ExampleRequest"):
                await stream.send_message(InfoRequest())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Invalid metadata key"):
            await method(ExampleRequest(), metadata={"grpc-status": "0"})
        assert await get_info(channel) == INFO
