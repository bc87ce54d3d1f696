"""The wire benchmark measures what it reports: answers are correct, the counts agree, and all rows are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hpack
import pytest

from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_protocol import (
    GET_INFO,
    NOTIFY,
    PREFACE,
    SETTINGS,
    AskInfo,
    Automaton,
    Notification,
    Part,
    frame,
)
from plugind.benchmarks.plugins.server_process import cheap_server
from plugind.protocol.proto.pluginregistration_pb2 import RegistrationStatus

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
