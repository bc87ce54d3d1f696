"""Connections that end early: errors of our own, and clients that leave while their calls are in progress."""

from __future__ import annotations

from pathlib import Path

import h2.connection
import h2.events
import pytest
import trio
import trio.testing

from plugind.actors.grpc.server.serve import ConnectionEnding, EndReason
from plugind.tests.wire.server_helpers import HELLO, ByteClient, frame, in_memory, message, served

GOAWAY = frame(7, bytes(8))
BAD = frame(0x77, b"bad")


def breakable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let h2 raise an error that is not one of its own when it reads the frame BAD."""
    whole = h2.connection.H2Connection.receive_data

    def receive(self: h2.connection.H2Connection, data: bytes) -> list[h2.events.Event]:
        if BAD in data:
            raise KeyError("unforeseen")
        return whole(self, data)

    monkeypatch.setattr(h2.connection.H2Connection, "receive_data", receive)


async def test_an_unforeseen_error_within_h2_ends_one_connection_and_not_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakable(monkeypatch)
    async with served(tmp_path / "s") as server:
        async with await trio.open_unix_socket(server.path) as other:
            client = ByteClient(other)
            await client.hello()
            async with await trio.open_unix_socket(server.path) as bad:
                await bad.send_all(HELLO + BAD)
                said = bytearray()
                while data := await bad.receive_some(65536):
                    said += data
            internal_error = 2
            assert said.endswith(frame(7, bytes(4) + internal_error.to_bytes(4, "big")))
            assert (await client.call("unary", message(b"there")))["grpc-status"] == "0"
        assert server.reports.endings[0] == ConnectionEnding(EndReason.INTERNAL, "KeyError: 'unforeseen'")


async def test_a_client_that_sends_goaway_still_gets_the_answers_to_its_calls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """RFC 9113 section 6.8. The frames come in one write, as Node's do."""
    async with in_memory() as server:
        await server.client.hello()
        stream_id = server.client.open_call("unary", end=False)
        await server.client.flush()
        last = frame(0, message(b"last"), flags=1, stream=stream_id)
        await server.client.stream.send_all(GOAWAY + frame(6, b"8 bytes.") + last)
        await server.client.read_until(h2.events.StreamEnded)
        assert server.client.trailers(stream_id) == {"grpc-status": "0"}
        assert any(isinstance(event, h2.events.PingAckReceived) for event in server.client.events)
        assert await server.ending() == ConnectionEnding(EndReason.PEER_CLOSED, "GOAWAY")


async def test_a_client_that_sends_goaway_for_an_error_gets_no_more_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_memory() as server:
        await server.client.hello()
        server.client.open_call("hang")
        await server.client.flush()
        await server.client.stream.send_all(frame(7, bytes(7) + b"\1"))
        assert await server.ending() == ConnectionEnding(EndReason.PEER_CLOSED, "GOAWAY 1")
        assert server.echo.cancelled.is_set()
