"""Plugins that send what costs us work: every flood ends with an error that names the exceeded limit."""

import struct
from pathlib import Path

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from plugind.protocol.proto.deviceplugin_v1beta1_pb2 import Device, Empty, ListAndWatchResponse
from plugind.protocol.proto.example_v1beta1_grpc import ExampleStub
from plugind.protocol.proto.example_v1beta1_pb2 import ExampleRequest
from plugind.protocol.proto.pluginregistration_pb2 import PluginInfo
from plugind.protocol.wire.errors import WireProblem
from plugind.protocol.wire.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from plugind.protocol.wire.limits import Limits
from plugind.tests.wire.hostile import (
    HELLO,
    INFO,
    RESPONSE,
    answer,
    asking,
    both_ways,
    connected,
    data,
    fields,
    get_info,
    goaway,
    headers,
    message,
    refused,
    sends,
    sends_forever,
)

__all__ = ["both_ways"]

pytestmark = pytest.mark.usefixtures("both_ways")


def over(problem: WireProblem, what: str, limit: int) -> tuple[str, WireProblem, str]:
    return "RESOURCE_EXHAUSTED", problem, f"{what} over the limit of {limit} (limit {problem.value})"


FLOODS = {
    "fault 54: PING": (HELLO, frame(PING, 0, 0, bytes(8)), "PING frames", WireProblem.PINGS, 100),
    "fault 54: PING acknowledgements": (HELLO, frame(PING, 1, 0, bytes(8)), "PING frames", WireProblem.PINGS, 100),
    "fault 55: SETTINGS": (HELLO, frame(SETTINGS, 0, 0), "SETTINGS frames", WireProblem.SETTINGS, 32),
    "fault 55: SETTINGS acknowledgements": (HELLO, frame(SETTINGS, 1, 0), "SETTINGS frames", WireProblem.SETTINGS, 32),
    "fault 56: empty DATA": (HELLO + headers(1), frame(DATA, 0, 1), "empty DATA frames", WireProblem.EMPTY_DATA, 100),
    "fault 56: DATA of padding alone": (
        HELLO + headers(1),
        frame(DATA, PADDED, 1, b"\x09" + bytes(9)),
        "empty DATA frames",
        WireProblem.EMPTY_DATA,
        100,
    ),
    "fault 57: 1xx": (HELLO, headers(1, fields((":status", "103"))), "1xx responses", WireProblem.INFORMATIONAL, 16),
    "fault 58: WINDOW_UPDATE of the connection": (
        HELLO,
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
        "WINDOW_UPDATE frames",
        WireProblem.WINDOW_UPDATES,
        1000,
    ),
    "fault 58: WINDOW_UPDATE of the call": (
        HELLO,
        frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)),
        "WINDOW_UPDATE frames",
        WireProblem.WINDOW_UPDATES,
        1000,
    ),
    "fault 58: PRIORITY": (HELLO, frame(PRIORITY, 0, 1, bytes(5)), "PRIORITY frames", WireProblem.PRIORITIES, 100),
    "fault 58: PRIORITY of calls that never were": (
        HELLO,
        frame(PRIORITY, 0, 9999, bytes(5)),
        "PRIORITY frames",
        WireProblem.PRIORITIES,
        100,
    ),
    "fault 58: unknown frames": (
        HELLO,
        frame(0xBE, 0xFF, 1, b"grease"),
        "frames of unknown types",
        WireProblem.UNKNOWN_FRAMES,
        100,
    ),
    "fault 60: GOAWAY": (
        HELLO,
        goaway(2**31 - 1, 0),
        "GOAWAY frames and late RST_STREAM frames",
        WireProblem.RESETS,
        100,
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_frames_ends_at_its_limit(tmp_path: Path, flood: str) -> None:
    """Faults 54 to 60, as each case says: the reason names the limit, and the call ends before any deadline."""
    first, again, what, problem, limit = FLOODS[flood]
    assert await refused(tmp_path, sends_forever(first, again * 50), timeout=None) == over(problem, what, limit)


async def test_a_flood_of_continuations_ends_at_its_limit(tmp_path: Path) -> None:
    """Fault 53: a header block that never ends."""
    peer = sends_forever(HELLO + frame(HEADERS, 0, 1, RESPONSE), frame(CONTINUATION, 0, 1))
    expected = over(WireProblem.CONTINUATIONS, "CONTINUATION frames of one block", 16)
    assert await refused(tmp_path, peer, timeout=None) == expected


async def test_a_large_header_block_ends_at_its_limit(tmp_path: Path) -> None:
    """Fault 52: the encoded block has over 64 KiB, in a few large frames."""
    peer = sends_forever(HELLO + frame(HEADERS, 0, 1, RESPONSE), frame(CONTINUATION, 0, 1, b"\0" * 16_000))
    assert await refused(tmp_path, peer, timeout=None) == over(WireProblem.HEADER_LIST_BYTES, "a header block", 65_536)


async def test_a_header_block_that_inflates_is_refused(tmp_path: Path) -> None:
    """Fault 61: a table entry of 4 KiB, then one byte for each repetition of it."""
    name_and_value = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000
    inflating = headers(1, RESPONSE + name_and_value + b"\xbe" * 1000)
    expected = over(WireProblem.HEADER_LIST_BYTES, "a header list", 65_536)
    assert await refused(tmp_path, sends(HELLO + inflating), timeout=None) == expected


async def test_a_push_is_an_error(tmp_path: Path) -> None:
    """Fault 59: our SETTINGS forbid it."""
    peer = sends(HELLO + frame(PUSH_PROMISE, 4, 1, struct.pack(">I", 2) + RESPONSE))
    expected = ("INTERNAL", WireProblem.PROTOCOL, "PUSH_PROMISE, though push is disabled")
    assert await refused(tmp_path, peer) == expected


async def test_a_flood_of_resets_fails_only_its_attempt(tmp_path: Path) -> None:
    """Fault 60: another connection of the same node goes on."""
    peer = sends(HELLO + frame(RST_STREAM, 0, 1, struct.pack(">I", 8)) * 5000)
    expected = ("CANCELLED", WireProblem.PROTOCOL, "the peer reset the call (CANCEL)")
    assert await refused(tmp_path, peer) == expected
    other = tmp_path / "other"
    other.mkdir()
    async with asking(other, sends(HELLO + answer(1))) as channel:
        assert await get_info(channel) == INFO


async def test_a_huge_length_prefix_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    """Fault 50: the prefix announces four gigabytes, and a few bytes follow."""
    peer = sends(HELLO + headers(1) + data(1, b"\0\xff\xff\xff\xff" + b"x" * 100))
    expected = over(WireProblem.MESSAGE_BYTES, "a message of 4294967295 bytes", 4 * 1024 * 1024)
    assert await refused(tmp_path, peer) == expected


async def test_millions_of_empty_versions_are_over_the_limit_of_a_message(tmp_path: Path) -> None:
    """Fault 51: ten megabytes that would take hundreds when decoded are not decoded."""
    size = len(PluginInfo(supported_versions=[""]).SerializeToString()) * 5_000_000
    peer = sends(HELLO + headers(1) + data(1, struct.pack(">BI", 0, size) + b"\x22\0" * 1000))
    expected = over(WireProblem.MESSAGE_BYTES, f"a message of {size} bytes", 4 * 1024 * 1024)
    assert await refused(tmp_path, peer) == expected


async def test_an_endless_response_stops_at_the_limit_of_bytes(tmp_path: Path) -> None:
    """Fault 64: a stream of valid messages that never ends."""
    body = ListAndWatchResponse(devices=[Device(ID="x" * 1000)])
    peer = sends_forever(HELLO + headers(1), data(1, message(body.SerializeToString())))
    async with connected(tmp_path, peer, Limits(total_bytes=200_000)) as channel:
        with pytest.raises(GRPCError) as caught:
            await channel.stub(DevicePluginStub).ListAndWatch(Empty())
    assert (caught.value.status.name, caught.value.message) == (
        "RESOURCE_EXHAUSTED",
        "bytes received on this connection over the limit of 200000 (limit total_bytes)",
    )


async def test_a_peer_that_sends_one_byte_at_a_time_does_not_extend_the_deadline(tmp_path: Path) -> None:
    """Fault 63: progress does not move the deadline."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        for byte in HELLO + headers(1) + data(1, message(b"x" * 10_000)):
            try:
                await stream.send_all(bytes((byte,)))
            except trio.BrokenResourceError:
                return
            await trio.sleep(0.005)

    expected = ("DEADLINE_EXCEEDED", None, "the deadline of the call passed")
    assert await refused(tmp_path, peer, timeout=0.1) == expected


async def test_a_window_that_stays_shut_ends_the_call_at_its_deadline(tmp_path: Path) -> None:
    """Fault 62: the request is larger than the first window, and SETTINGS then set the initial window to zero."""
    peer = sends(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    async with connected(tmp_path, peer) as channel:
        with pytest.raises(GRPCError) as caught:
            await channel.stub(ExampleStub).GetExampleInfo(ExampleRequest(request="x" * 100_000), timeout=0.1)
    assert caught.value.args == (Status.DEADLINE_EXCEEDED, "the deadline of the call passed", None)


async def test_end_stream_on_empty_data_costs_no_budget(tmp_path: Path) -> None:
    """Fault 56 does not concern a server that ends each call with an empty frame; it may do so without limit."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO)
        for number in range(1, 301, 2):
            await stream.send_all(headers(number) + frame(DATA, END_STREAM, number))
            await stream.receive_some()

    async with asking(tmp_path, peer, Limits(empty_data=1)) as channel:
        for _ in range(100):
            with pytest.raises(GRPCError, match="without trailers"):
                await get_info(channel)
