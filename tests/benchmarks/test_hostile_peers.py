"""Each kind of hostile peer does what its name says, as a bare client sees it."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import hpack
import pytest
from google.protobuf.message import DecodeError

from plugind.benchmarks.peers.hostile import floods
from plugind.benchmarks.peers.hostile.entries import Directories, Symlinks
from plugind.benchmarks.peers.hostile.floods import Answer, Flood, Windows
from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, NOTIFY, PREFACE, SETTINGS, frame
from plugind.benchmarks.plugins.server_process import ServerProcess, scratch_directory
from plugind.protocol.proto.dra_health_v1_pb2 import NodeWatchResourcesResponse
from plugind.protocol.proto.pluginregistration_pb2 import PluginInfo, RegistrationStatus

pytestmark = pytest.mark.extended

DATA, HEADERS, SETTINGS_FRAME, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 6, 7, 8, 9
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


def first_frames(kind: str, count: int) -> list[Frame]:
    with peers(kind) as server, connected(server) as client:
        client.sendall(calling(GET_INFO))
        return list(islice(frames(client), count))


def info_of(server: ServerProcess, index: int = 0) -> PluginInfo:
    with connected(server, index) as client:
        client.sendall(calling(GET_INFO))
        return next(PluginInfo.FromString(payload[5:]) for kind, _, payload in frames(client) if kind == DATA)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_silent_peer_accepts_and_sends_nothing() -> None:
    with peers("silent", 2) as server:
        with connected(server) as client:
            client.sendall(calling(GET_INFO))
            wait_until(lambda: server.counts()["dials"] == 1)
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert server.counts()["ended"] == 0
        wait_until(lambda: server.counts()["ended"] == 1)


def test_callers_call_register_all_the_time_and_read_no_answer() -> None:
    with scratch_directory() as scratch, socket.socket(socket.AF_UNIX) as kubelet:
        for name in ("root", "device-plugins"):
            (scratch / name).mkdir()
        kubelet.bind(str(scratch / "device-plugins" / "kubelet.sock"))
        kubelet.listen(1)
        kubelet.settimeout(PATIENCE)
        with hostile_peers("callers", scratch / "root", 1):
            for _ in range(3):
                with kubelet.accept()[0] as caller:
                    caller.settimeout(PATIENCE)
                    data = caller.recv(65536)
                    assert data.startswith(PREFACE)
                    assert b"v1beta1" in data


def test_a_full_backlog_takes_no_connection() -> None:
    with peers("full-backlog") as server, socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.connect(str(next(server.options.directory.iterdir())))


def test_a_closing_peer_ends_each_connection_without_a_byte() -> None:
    with peers("closing") as server:
        for dials in (1, 2):
            with connected(server) as client:
                assert client.recv(1) == b""
            assert server.counts()["dials"] == dials


def test_tiny_data_is_a_message_of_4_mib_in_frames_of_one_byte() -> None:
    sent = first_frames("tiny-data", 1000)
    assert {len(payload) for kind, _, payload in sent if kind == DATA} == {1}
    message = b"".join(payload for kind, _, payload in sent if kind == DATA)
    assert floods.LARGE - 100 < int.from_bytes(message[1:5], "big") < floods.LARGE


def test_informational_answers_are_full_of_huffman_codes_and_within_the_usual_limit_of_a_header_list() -> None:
    blocks = [payload for _, _, payload in first_frames("informational", 10)[1:]]
    decoder, size = hpack.Decoder(max_header_list_size=1 << 16), len(floods.informational().frames)
    block = b"".join(blocks)[: size - 9 * 3]
    fields = list(decoder.decode(block, raw=True))
    assert tuple(fields[0]) == (b":status", b"103")
    assert sum(len(name) + len(value) for name, value in fields) > 60_000 > len(block) > 40_000


def test_settings_have_as_many_entries_as_a_frame_holds() -> None:
    sent = [payload for kind, _, payload in first_frames("settings", 5)[1:] if kind == SETTINGS_FRAME]
    assert [len(payload) // 6 for payload in sent] == [2730] * 4


def test_pings_are_endless() -> None:
    assert {kind for kind, _, _ in first_frames("pings", 1000)[1:]} == {PING}


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


def test_what_is_held_back_is_the_end_of_a_message_of_nearly_64_kib() -> None:
    sent = first_frames("held-back", 65)
    message = b"".join(payload for kind, _, payload in sent if kind == DATA)
    assert 0 < int.from_bytes(message[1:5], "big") + 5 - len(message) <= 1024
    with peers("held-back") as server, connected(server) as client:
        client.sendall(calling(GET_INFO))
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            list(frames(client))


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


def test_windows_are_read_from_frames_in_any_pieces() -> None:
    settings = frame(SETTINGS_FRAME, 0, 0, struct.pack(">HL", 4, 70_000))
    update = frame(WINDOW_UPDATE, 0, 0, (10_000).to_bytes(4, "big"))
    for size in (1, 5, 100):
        windows, data = Windows(), settings + update + frame(WINDOW_UPDATE, 0, 3, (1).to_bytes(4, "big"))
        for at in range(0, len(data), size):
            windows.read(data[at : at + size])
        assert windows.room == 70_000
        windows.spend(60_000)
        assert windows.room == 10_000


def test_the_plugins_of_one_name_differ_by_their_sockets_alone() -> None:
    for kind, versions in (("one-name", 1), ("many-versions", 128)):
        with peers(kind, 3) as server:
            infos = [info_of(server, index) for index in range(3)]
        assert infos[0] == infos[1] == infos[2]
        assert len(infos[0].supported_versions) == versions
    with peers("own-names", 2) as server:
        assert info_of(server, 0).name != info_of(server, 1).name


def test_chmod_fails_each_call_and_changes_modes_all_the_time() -> None:
    with peers("chmod", 2) as server:
        with connected(server) as client:
            client.sendall(calling(GET_INFO))
            block = next(payload for kind, _, payload in frames(client) if kind == HEADERS)
        assert dict(hpack.Decoder().decode(block, raw=True))[b"grpc-status"] == b"14"
        path = next(server.options.directory.iterdir())
        for mode in (0o700, 0o755, 0o700):
            wait_until(lambda mode=mode: path.stat().st_mode & 0o777 == mode)  # type: ignore[misc]
        assert server.counts()["acts"] > 2


@pytest.mark.parametrize("registered", [True, False])
def test_a_crash_loop_replaces_its_socket_when_it_is_told(registered: bool) -> None:
    with peers("crash-loop") as server:
        path = next(server.options.directory.iterdir())
        before = path.stat()
        with connected(server) as client:
            status = RegistrationStatus(plugin_registered=registered, error="" if registered else "no")
            client.sendall(calling(NOTIFY, status.SerializeToString()))
            wait_until(lambda: server.counts()["acts"] == 1)
        assert path.stat().st_ino != before.st_ino
        with connected(server):
            counts = server.counts()
        assert (counts["notified"], counts["refused"], counts["acts"]) == (int(registered), int(not registered), 1)


def test_each_symlink_peer_adds_a_thousand_links_to_one_directory() -> None:
    with peers("symlinks", 2) as server:
        links = list(os.scandir(server.options.directory / "symlinks"))
        assert len(links) == 2 * Symlinks.links
        assert all(link.is_symlink() for link in links)
        assert Path(links[0].path).is_socket()


def test_nobody_listens_on_what_was_left_behind() -> None:
    with peers("unlistened") as server, socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(next(server.options.directory.iterdir())))


@pytest.mark.parametrize(
    ("kind", "first"),
    [("no-window", (SETTINGS_FRAME, 0, b"\0\x04" + bytes(4))), ("goaway", (SETTINGS_FRAME, 0, b""))],
)
def test_what_is_sent_unasked(kind: str, first: Frame) -> None:
    with peers(kind) as server, connected(server) as client:
        received = frames(client)
        assert next(received) == first
        if kind == "goaway":
            assert next(received) == (7, 0, bytes(8))


def test_garbage_is_random() -> None:
    with peers("garbage") as server, connected(server) as one, connected(server) as other:
        assert one.recv(100) != other.recv(100)


def test_a_trickle_sends_a_byte_at_a_time() -> None:
    with peers("trickle") as server, connected(server) as client:
        assert client.recv(100) == SETTINGS
        assert [client.recv(100) for _ in range(2)] == [b"\0", b"\x40"]


def test_odd_names_are_long_and_hold_line_breaks() -> None:
    with peers("odd-names", 2) as server:
        assert all(
            len(os.fsencode(path.name)) > 190 and "\n" in path.name for path in server.options.directory.iterdir()
        )


def test_an_invalid_name_has_a_line_break_and_is_refused_again_and_again() -> None:
    with peers("invalid") as server:
        assert "\n" in info_of(server).name


def test_a_plugin_that_hangs_when_it_is_notified_counts_that_and_does_not_answer() -> None:
    with peers("hang-notify") as server, connected(server) as client:
        client.sendall(calling(NOTIFY, RegistrationStatus(plugin_registered=True).SerializeToString()))
        wait_until(lambda: server.counts()["notified"] == 1)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            list(frames(client))
        server.ask("words")
        assert server.event("words")["words"] == {}


def test_new_names_differ_from_life_to_life() -> None:
    with peers("new-names") as server:
        before = info_of(server).name
        with connected(server) as client:
            client.sendall(calling(NOTIFY, RegistrationStatus(plugin_registered=True).SerializeToString()))
            wait_until(lambda: server.counts()["acts"] == 1)
        assert info_of(server).name != before


def test_what_acts_unasked_stops_when_it_is_to_be_calm() -> None:
    with peers("rebind") as server:
        path = next(server.options.directory.iterdir())
        for _ in range(2):
            acts = server.counts()["acts"]
            wait_until(lambda acts=acts: server.counts()["acts"] > acts)  # type: ignore[misc]
        server.ask("calm")
        acts, inode = server.counts()["acts"], path.stat().st_ino
        time.sleep(0.05)
        assert (server.counts()["acts"], path.stat().st_ino) == (acts, inode)


def test_entries_are_renamed_created_and_removed() -> None:
    with peers("renames") as server:
        wait_until(lambda: (server.options.directory / "renamed-renames-00000.sock").exists())
        wait_until(lambda: (server.options.directory / "renames-00000.sock").exists())
    with peers("files", 2) as server:
        wait_until(lambda: any(server.options.directory.iterdir()))
        wait_until(lambda: not any(server.options.directory.iterdir()))
    with peers("moving-directories") as server:
        wait_until(lambda: (server.options.directory / "moving-directories-00000-renamed/plugin.sock").is_socket())
        wait_until(lambda: (server.options.directory / "moving-directories-00000/plugin.sock").is_socket())
    with peers("directories") as server:
        assert len(list((server.options.directory / "directories-00000").iterdir())) == Directories.directories


def test_the_last_word_to_each_plugin_is_told() -> None:
    with peers("own-names", 2) as server:
        for registered in (True, False):
            with connected(server) as client:
                status = RegistrationStatus(plugin_registered=registered)
                client.sendall(calling(NOTIFY, status.SerializeToString()))
                assert next(kind for kind, _, _ in frames(client)) == SETTINGS_FRAME
            server.ask("words")
            assert list(server.event("words")["words"].values()) == [registered]  # type: ignore[attr-defined]


def test_every_kind_says_what_it_does() -> None:
    assert all(make().about for make in KINDS.values())


# --- hostile endpoints ------------------------------------------------------------------------------------------------

OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
LISTS = "/v1beta1.DevicePlugin/ListAndWatch"
HEALTH = "/v1.DRAResourceHealth/NodeWatchResources"


@pytest.mark.parametrize(
    "kind", ["no-options", "many-devices", "ending-streams", "list-flood", "many-nodes", "going-away"]
)
def test_hostile_endpoints_register_as_device_plugins(kind: str) -> None:
    with peers(kind) as server:
        info = info_of(server)
    assert (info.type, info.endpoint, list(info.supported_versions)) == ("DevicePlugin", "", ["v1beta1"])
    assert info.name.startswith("hostile.example.com/")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("csi-")])
def test_hostile_csi_drivers_register_under_their_names(kind: str) -> None:
    with peers(kind) as server:
        info = info_of(server)
    assert (info.type, info.name, list(info.supported_versions)) == (
        "CSIPlugin",
        f"{kind}-00000.example.com",
        ["1.0.0"],
    )


def test_hostile_dra_drivers_register_as_drivers_that_tell_the_health_of_their_devices() -> None:
    with peers("dra-health") as server:
        info = info_of(server)
    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin",
        "dra-health-00000.example.com",
        ["v1.DRAPlugin", "v1.DRAResourceHealth"],
    )


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


def test_a_csi_driver_without_end_of_its_headers_sends_64_kilobytes_of_them() -> None:
    found = answered("csi-endless-headers", "/csi.v1.Node/NodeGetInfo", 4)
    assert [kind for kind, _, _ in found] == [HEADERS, *[CONTINUATION] * 3]
    assert sum(len(payload) for _, _, payload in found) > 60_000


def answered(kind: str, path: str, count: int) -> list[Frame]:
    """Return the first frames of the answer to one call."""
    with peers(kind) as server, connected(server) as client:
        client.sendall(calling(path))
        return [frame for frame in islice(frames(client), count + 2) if frame[1] == 1]


def test_a_peer_without_options_answers_nothing() -> None:
    with peers("no-options") as server, connected(server) as client:
        client.sendall(calling(OPTIONS))
        found = frames(client)
        assert [kind for kind, _, _ in islice(found, 2)] == [SETTINGS_FRAME, SETTINGS_FRAME]
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            next(found)


def test_a_peer_with_many_devices_announces_a_message_of_twenty_megabytes() -> None:
    head, data = answered("many-devices", LISTS, 2)
    assert (head[0], data[0]) == (HEADERS, DATA)
    assert int.from_bytes(data[2][1:5], "big") == 20_000_000


def test_a_peer_of_ending_streams_sends_one_list_and_the_end() -> None:
    assert [kind for kind, _, _ in answered("ending-streams", LISTS, 3)] == [HEADERS, DATA, HEADERS]


def test_a_peer_that_goes_away_says_so_and_stays() -> None:
    with peers("going-away") as server, connected(server) as client:
        client.sendall(calling(LISTS))
        found = frames(client)
        assert [kind for kind, _, _ in islice(found, 3)] == [SETTINGS_FRAME, SETTINGS_FRAME, GOAWAY]
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            next(found)


def test_a_flood_of_lists_goes_on_when_the_client_allows_more() -> None:
    with peers("list-flood") as server, connected(server) as client:
        client.sendall(calling(LISTS))
        found = frames(client)
        first = [payload for kind, _, payload in islice(found, 8) if kind == DATA]
        assert len(first) == 5
        assert all(payload.startswith(first[0][:50]) for payload in first)
        assert sum(len(payload) for kind, _, payload in islice(found, 3) if kind == DATA) > 40_000
        client.sendall(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 128 * 1024)))
        assert sum(len(payload) for kind, _, payload in islice(found, 8) if kind == DATA) > 100_000
