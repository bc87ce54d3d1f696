"""The kinds of hostile peers run, and those that have rules of their own keep them, as a bare client sees it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import hpack
import pytest
from google.protobuf.message import DecodeError

from plugind.benchmarks.peers.hostile import floods
from plugind.benchmarks.peers.hostile.floods import Answer, Flood
from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, PREFACE, SETTINGS, frame
from plugind.benchmarks.plugins.server_process import ServerProcess, scratch_directory
from plugind.protocol.proto.dra_health_v1_pb2 import NodeWatchResourcesResponse
from plugind.protocol.proto.pluginregistration_pb2 import PluginInfo

pytestmark = pytest.mark.extended

DATA, HEADERS, SETTINGS_FRAME, WINDOW_UPDATE = 0, 1, 4, 8
#: Seconds until a peer must have done what it does.
PATIENCE = 60.0
Frame = tuple[int, int, bytes]


def calling(path: str, message: bytes = b"") -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    body = b"\0" + len(message).to_bytes(4, "big") + message
    call = frame(HEADERS, 0x4, 1, hpack.Encoder().encode(fields)) + frame(DATA, 0x1, 1, body)
    return PREFACE + SETTINGS + call


@contextmanager
def peers(kind: str, count: int = 1) -> Iterator[ServerProcess]:
    with scratch_directory() as directory, hostile_peers(kind, directory, count) as server:
        yield server


def connected(server: ServerProcess, index: int = 0) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE)
    client.connect(str(sorted(server.options.directory.glob("*.sock"))[index]))
    return client


def frames(client: socket.socket) -> Iterator[Frame]:
    """Yield the kind, the stream and the payload of each frame, until the peer closes."""
    with client.makefile("rb") as stream:
        while len(header := stream.read(9)) == 9:
            high, low, kind, _flags, on = struct.unpack(">HBBBL", header)
            yield kind, on, stream.read(high << 8 | low)


@pytest.mark.parametrize("kind", KINDS)
def test_peers_of_each_kind_run_and_say_what_they_do(kind: str) -> None:
    assert KINDS[kind]().about
    with peers(kind, 2) as server:
        assert server.counts()["dials"] == 0


@pytest.mark.parametrize("flood", [floods.tiny_data(4096), floods.big_info(), floods.empty_versions()])
def test_a_flood_that_fits_in_its_windows_is_a_valid_answer(flood: Flood) -> None:
    assert isinstance(flood, Answer)
    message, at, read = b"", 0, len(flood.frames)
    while at < read:
        size = int.from_bytes(flood.frames[at : at + 3], "big")
        message += flood.frames[at + 9 : at + 9 + size]
        at += 9 + size
    assert message[0] == 0
    assert int.from_bytes(message[1:5], "big") == len(message) - 5
    info = PluginInfo.FromString(message[5:])
    assert len(info.name) > 4000 or len(info.supported_versions) > 2_000_000
    assert flood.data_in(0, read) == len(message)


def test_a_flood_stops_where_the_windows_end_and_goes_on_when_they_grow() -> None:
    """Otherwise a client would end the connection for a flow-control error, at no cost."""
    with peers("big-info") as server, connected(server) as client:
        client.sendall(calling(GET_INFO))
        received = frames(client)
        taken = [len(payload) for kind, _, payload in islice(received, 5) if kind == DATA]
        assert sum(taken) == 3 * 16_384, "a fourth frame would be one byte over the initial window"
        more = (50_000).to_bytes(4, "big")
        client.sendall(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, 1, more))
        assert [len(payload) for _, _, payload in islice(received, 3)] == [16_384] * 3


# --- hostile endpoints ------------------------------------------------------------------------------------------------

HEALTH = "/v1.DRAResourceHealth/NodeWatchResources"


def test_hostile_dra_drivers_tell_of_devices_in_turn_as_each_should_not() -> None:
    with peers("dra-health", 6) as server:
        _, huge, many, unnamed, *broken = [first_message(server, index) for index in range(6)]
    found = NodeWatchResourcesResponse.FromString(huge)
    assert (len(found.devices), len(found.devices[0].message), len(huge) < 4 * 1024 * 1024) == (4096, 471, True)
    assert len(NodeWatchResourcesResponse.FromString(many).devices) == 10_000
    assert [one.device.device_name for one in NodeWatchResourcesResponse.FromString(unnamed).devices] == ["", ""]
    for message in broken:
        with pytest.raises(DecodeError):
            NodeWatchResourcesResponse.FromString(message)


def first_message(server: ServerProcess, index: int) -> bytes:
    """Return the first message of the stream of a driver, and allow as much more as comes."""
    with connected(server, index) as client:
        client.sendall(calling(HEALTH))
        sent = bytearray()
        for kind, on, payload in frames(client):
            sent += payload if (kind, on) == (DATA, 1) else b""
            if len(sent) > 5 and len(sent) - 5 >= (size := int.from_bytes(sent[1:5], "big")):
                return bytes(sent[5 : 5 + size])
            client.sendall(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", len(payload))))
    raise AssertionError("the driver has ended")
