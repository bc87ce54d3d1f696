"""The wire benchmark measures what it reports: answers are correct, the counts agree, and all rows are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import grpc
import hpack
import pytest

from plugind.benchmarks.peers.wire_clients import Target, Work, floor
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_protocol import (
    GET_INFO,
    NOTIFY,
    PREFACE,
    SETTINGS,
    AskInfo,
    Automaton,
    BadClient,
    Notification,
    Part,
    frame,
)
from plugind.benchmarks.plugins.server_process import cheap_server
from plugind.benchmarks.report.table import table
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def _call(encoder: hpack.Encoder, stream: int, path: str, message: bytes) -> bytes:
    fields = [(":method", "POST"), (":path", path), ("grpc-timeout", f"{stream}S"), ("te", "trailers")]
    body = bytes([0]) + len(message).to_bytes(4, "big") + message
    return frame(1, 0x4, stream, encoder.encode(fields)) + frame(0, 0x1, stream, body)


def _conversation() -> bytes:
    """Return two GetInfo calls, a PING and a notification, encoded with a dynamic table."""
    encoder = hpack.Encoder()
    calls = [_call(encoder, stream, GET_INFO, b"") for stream in (1, 3)]
    status = RegistrationStatus(plugin_registered=False, error="no such thing").SerializeToString()
    return PREFACE + SETTINGS + calls[0] + frame(6, 0, 0, b"12345678") + calls[1] + _call(encoder, 5, NOTIFY, status)


def _answers(chunks: list[bytes], automaton: Automaton) -> list[Part]:
    node, parts = automaton.start, list[Part]()
    for chunk in chunks:
        transition = node.transitions.get(chunk) or automaton.learn(node, chunk)
        node = transition.node
        parts += transition.parts
    return [part for part in parts if not isinstance(part, bytes)]


def test_the_server_answers_a_conversation_in_any_pieces() -> None:
    data = _conversation()
    automaton = Automaton()
    expected = [AskInfo(1), AskInfo(3), Notification(5, registered=False, error="no such thing")]
    for size in (1, 7, 24, 100, len(data)):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert _answers(chunks, automaton) == expected
        assert _answers(chunks, automaton) == expected, "the second time from the cache"


def test_transitions_depend_on_the_dynamic_table() -> None:
    """The same block has another meaning on a connection with another history (RFC 7541 section 2.3.2)."""
    encoders = hpack.Encoder(), hpack.Encoder()
    asks, other = [
        [PREFACE + _call(encoder, 1, path, b""), _call(encoder, 3, path, b"")]
        for encoder, path in zip(encoders, (GET_INFO, "/some.other/Call"), strict=True)
    ]
    assert asks[1] == other[1]
    automaton = Automaton()
    assert _answers(asks, automaton) == [AskInfo(1), AskInfo(3)]
    assert _answers(other, automaton) == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFACE + frame(1, 0x5, 1, b"\xff\xff\xff\xff\xff"),
        PREFACE + frame(1, 0x0, 1, b"\x82") + frame(6, 0, 0, b"12345678"),
    ],
    ids=["not HTTP/2", "not HPACK", "an interrupted header block"],
)
def test_a_broken_client_is_recognised(data: bytes) -> None:
    with pytest.raises(BadClient):
        _answers([data], Automaton())


def test_each_socket_returns_its_name_and_records_its_notification(tmp_path: Path) -> None:
    options = ServerOptions(directory=tmp_path, sockets=3, type="DRAPlugin", name="dra-{i}.example.com", fail_first=1)
    with cheap_server(options) as server:
        target = Target(str(options.path(1)), options.plugin_name(1))
        with grpc.insecure_channel(f"unix:{target.path}") as channel:
            ask = channel.unary_unary(
                GET_INFO, request_serializer=InfoRequest.SerializeToString, response_deserializer=PluginInfo.FromString
            )
            with pytest.raises(grpc.RpcError) as failed:
                ask(InfoRequest(), timeout=60)
            info = ask(InfoRequest(), timeout=60)
        floor.converse(Work([target]), 1)
        plugin = server.report()[1]
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
    assert info == PluginInfo(
        type="DRAPlugin", name="dra-1.example.com", endpoint=target.path, supported_versions=["v1.DRAPlugin"]
    )
    assert (plugin["asked"], plugin["notified"], plugin["refused"]) == (3, 1, 0)
    assert 0 < plugin["bound_ns"] <= plugin["listening_ns"] < plugin["asked_ns"] < plugin["notified_ns"]


def test_sockets_are_created_and_removed_on_command(tmp_path: Path) -> None:
    options = ServerOptions(directory=tmp_path, sockets=10, wait=True, file="{i}/plugin.sock")
    with cheap_server(options) as server:
        assert not list(tmp_path.iterdir())
        assert server.create()["count"] == 10
        server.remove(2, 5)
        server.create(100, 1)
        assert sorted(int(path.parent.name) for path in tmp_path.rglob("*.sock")) == [0, 1, 7, 8, 9, 100]
        assert server.counts()["sockets"] == 6
        server.remove()
        assert not list(tmp_path.rglob("*.sock"))


@pytest.mark.parametrize(("hang", "asked"), [("accept", 5), ("get-info", 6), ("backlog", 5)])
def test_the_requested_share_hangs_and_the_others_answer(tmp_path: Path, hang: str, asked: int) -> None:
    options = ServerOptions(directory=tmp_path, sockets=10, hang_fraction=0.5, hang=hang)
    healthy = [index for index in range(10) if not options.hangs(index)]
    assert len(healthy) == 5
    with cheap_server(options) as server:
        with grpc.insecure_channel(f"unix:{options.path(1)}") as channel:
            call = channel.unary_unary(GET_INFO).future(b"", timeout=60)
            deadline = time.monotonic() + 60
            while server.counts()["asked"] < asked - 5 and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises((grpc.FutureTimeoutError, grpc.RpcError)):
                call.result(timeout=0.2)
            call.cancel()
        floor.converse(Work(Target(str(options.path(i)), options.plugin_name(i)) for i in healthy), 5)
        counts = server.counts()
    assert (counts["notified"], counts["asked"]) == (5, asked)


def _wire(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.wire", "--sockets", "8", "--runs", "1", "--seconds", "0", *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_benchmark_writes_a_row_for_each_client_and_concurrency(tmp_path: Path) -> None:
    out = tmp_path / "wire.json"
    more = ["--clients", "floor", "grpcio-aio", "--concurrency", "1", "4", "--json", str(out)]
    done = _wire(*more)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(out.read_text())
    notified = [(row["client"], row["sockets"], row["concurrency"]) for row in rows]
    assert notified == [("floor", 8, 1), ("grpcio-aio", 8, 1), ("floor", 8, 4), ("grpcio-aio", 8, 4)]
    assert all(row["conversations_per_s"] > 0 and row["cpu_ms"] > 0 for row in rows)
    assert [row["ratio_to_floor"] for row in rows if row["client"] == "floor"] == [1.0, 1.0]


def test_a_client_whose_package_is_missing_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError('gone', name='grpc')\n")
    done = _wire("--clients", "grpcio-aio", "floor", "--concurrency", "2", path=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == "grpcio-aio was not measured: the module grpc is not installed\n"
    assert "floor" in done.stdout


def test_a_table_is_aligned_and_marks_missing_figures() -> None:
    assert table(["client", "ms"], [["a", 0.0347], ["long name", None]]) == (
        "client        ms\n─────────  ─────\na          0.035\nlong name      -"
    )
