"""Hostile and broken clients, simulated byte by byte. Each ends only its own connection, with a typed ending."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import h2.connection
import h2.events
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from plugind.actors.grpc.server.serve import ConnectionEnding, EndReason, ServerLimits
from plugind.tests.wire.server_helpers import HELLO, ByteClient, frame, in_memory, message, served

OK = {"grpc-status": "0"}
FLOODS = [
    pytest.param(frame(6, b"8 bytes."), "more PING frames than the budget allows", id="fault-54-ping"),
    pytest.param(frame(4), "more SETTINGS frames than the budget allows", id="fault-55-settings"),
    pytest.param(frame(0, stream=1), "more empty DATA frames than the budget allows", id="fault-56-empty-data"),
    pytest.param(frame(8, b"\0\0\0\1"), "more WINDOW_UPDATE frames than the budget allows", id="fault-58-window"),
    pytest.param(
        frame(2, b"\0\0\0\0\1", stream=3), "more PRIORITY frames than the budget allows", id="fault-58-priority"
    ),
    pytest.param(frame(0x77, b"?"), "more unknown frames than the budget allows", id="fault-58-unknown"),
    pytest.param(frame(3, b"\0\0\0\0", stream=1), "more RST_STREAM frames than the budget allows", id="fault-60-reset"),
    pytest.param(frame(7, bytes(8)), "more GOAWAY frames than the budget allows", id="fault-60-goaway"),
]
BROKEN = [
    pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="fault-66-http1"),
    pytest.param(HELLO + frame(1, b"\xff\xff\xff\xff\xff", flags=4, stream=1), id="fault-61-bad-hpack"),
    # One kilobyte would expand to megabytes.
    pytest.param(
        HELLO + frame(1, b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 1000, flags=4, stream=1), id="fault-61-bomb"
    ),
    pytest.param(HELLO + frame(1, b"", stream=1) + frame(9, b"", stream=1) * 100, id="fault-53-continuations"),
]


@pytest.mark.parametrize(("flood", "detail"), FLOODS)
async def test_a_flood_of_frames_ends_only_its_own_connection(
    flood: bytes, detail: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Faults 54 to 60."""
    async with in_memory() as server:
        await server.client.hello()
        stream_id = server.client.open_call("hang", end=False)
        assert stream_id == 1
        await server.client.flush()
        await server.client.stream.send_all(flood * 2000)
        assert await server.ending() == ConnectionEnding(EndReason.FLOOD, detail)
        server.client.events.clear()
        await server.client.read_until(h2.events.ConnectionTerminated)
        (goaway,) = [e for e in server.client.events if isinstance(e, h2.events.ConnectionTerminated)]
        assert goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_message_in_thousands_of_tiny_pieces_ends_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 56 with one byte in each frame: neither the size nor the duration of the message exceeds a limit."""
    async with in_memory() as server:
        await server.client.hello()
        stream_id = server.client.open_call("unary", end=False)
        await server.client.flush()
        pieces = b"".join(frame(0, bytes([byte]), stream=stream_id) for byte in message(b"x" * 5000))
        await server.client.stream.send_all(pieces)
        assert await server.ending() == ConnectionEnding(
            EndReason.FLOOD, "more tiny DATA frames than the budget allows"
        )


async def test_many_tiny_messages_and_a_few_in_pieces_are_not_a_flood(autojump_clock: trio.testing.MockClock) -> None:
    """Some clients send each message in one frame, others send its prefix in a separate frame."""
    count = 3000
    async with in_memory() as server:
        await server.client.hello()
        stream_id = server.client.open_call("total", end=False)
        await server.client.flush()
        one = message(b"x")
        whole = frame(0, one, stream=stream_id)
        parted = frame(0, one[:5], stream=stream_id) + frame(0, one[5:], stream=stream_id)
        bytewise = b"".join(frame(0, bytes([byte]), stream=stream_id) for byte in one)
        end = frame(0, flags=1, stream=stream_id)
        await server.client.stream.send_all((whole + parted) * count + bytewise * 100 + end)
        await server.client.read_until(h2.events.StreamEnded)
        assert server.client.trailers(stream_id) == OK


async def test_calls_that_are_reset_at_once_end_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 60 (rapid reset): each call starts a handler, so resets have a budget although every frame is valid."""
    async with in_memory() as server:
        await server.client.hello()
        # The server closes before all of them have arrived.
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(60):
                for _ in range(10):
                    stream_id = server.client.open_call("hang")
                    server.client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                await server.client.flush()
        assert await server.ending() == ConnectionEnding(
            EndReason.FLOOD, "more RST_STREAM frames than the budget allows"
        )


@pytest.mark.parametrize("sent", BROKEN)
async def test_bytes_that_are_not_http2_end_as_a_protocol_error(
    sent: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Faults 53, 61 and 66; which bytes break HTTP/2 is for h2 to know."""
    async with in_memory() as server:
        await server.client.stream.send_all(sent)
        assert (await server.ending()).reason is EndReason.PROTOCOL
        assert server.reports.failures == []


async def test_a_header_list_over_the_limit_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 52."""
    async with in_memory(ServerLimits(max_header_list=2000)) as server:
        await server.client.hello()
        server.client.open_call("unary", big="x" * 3000)
        await server.client.flush()
        assert (await server.ending()).reason is EndReason.PROTOCOL


async def test_one_byte_a_second_does_not_extend_the_handshake(autojump_clock: trio.testing.MockClock) -> None:
    """Faults 32 and 63: as little as nothing."""
    began = trio.current_time()
    async with in_memory() as server, trio.open_nursery() as nursery:

        async def dribble() -> None:
            for byte in HELLO:
                await server.client.stream.send_all(bytes([byte]))
                await trio.sleep(1)

        nursery.start_soon(dribble)
        assert await server.ending() == ConnectionEnding(EndReason.HANDSHAKE)
        assert trio.current_time() - began == 10.0
        nursery.cancel_scope.cancel()


async def test_one_byte_a_second_does_not_extend_a_request(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 63: the message has 30 s in total; the connection stays open."""
    async with in_memory() as server:
        await server.client.hello()
        began = trio.current_time()
        stream_id = server.client.open_call("unary", end=False)
        await server.client.flush()
        for byte in message(b"x" * 25):
            server.client.h2.send_data(stream_id, bytes([byte]))
            await server.client.flush()
            await trio.sleep(1)
        await server.client.read_until(h2.events.StreamEnded)
        assert server.client.trailers(stream_id)["grpc-status"] == "4"
        assert server.client.trailers(stream_id)["grpc-message"] == "the request took longer than 30 s"
        assert trio.current_time() - began <= 32
        server.client.events.clear()
        assert await server.client.call("unary", message(b"next")) == OK


async def test_a_client_without_calls_and_pings_is_disconnected_after_the_idle_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_memory(ServerLimits(idle_timeout=60)) as server:
        await server.client.hello()
        for _ in range(10):
            await trio.sleep(50)
            server.client.h2.ping(b"8 bytes.")
            await server.client.flush()
        assert await server.client.call("unary", message(b"x")) == OK
        ended = trio.current_time()
        assert await server.ending() == ConnectionEnding(EndReason.IDLE)
        assert trio.current_time() - ended == 60.0


async def test_a_window_that_stays_closed_ends_the_call_at_the_send_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 62."""
    async with in_memory(ServerLimits(send_timeout=7)) as server:
        await server.client.hello()
        # The client reads everything and never enlarges its windows, which are smaller than this reply.
        server.client.open_call("make", body=b"\0\0\0\0\4\x08\x80\x80\x08")
        await server.client.flush()
        began = trio.current_time()
        await server.client.read_until(h2.events.StreamReset)
        (reset,) = [e for e in server.client.events if isinstance(e, h2.events.StreamReset)]
        assert (reset.error_code, trio.current_time() - began) == (ErrorCodes.CANCEL, 7.0)
        assert server.reports.failures == []


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    """Fault 62 below HTTP/2: the client's socket is full."""
    async with served(tmp_path / "s", ServerLimits(write_timeout=0.2)) as server:
        stream = await trio.open_unix_socket(server.path)
        async with stream:
            client = ByteClient(stream)
            await client.hello()
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
            client.h2.increment_flow_control_window(2**30)
            for _ in range(3):
                client.open_call("make", body=b"\0\0\0\0\5\x08\x80\x80\x80\x01")
            await client.flush()
            while not server.reports.endings:  # noqa: ASYNC110 -- a report is a call, not an event
                await trio.sleep(0.01)
            assert server.reports.endings == [ConnectionEnding(EndReason.NOT_READING, "took nothing for 0.2 s")]


async def test_more_calls_than_the_limit_are_refused_one_by_one(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ServerLimits(max_streams=3)) as server:
        # All in one write, before the client can have read the limit.
        server.client.h2.initiate_connection()
        ids = [server.client.open_call("hang") for _ in range(5)]
        await server.client.flush()
        await server.client.read_until(h2.events.StreamReset)
        refused = [e for e in server.client.events if isinstance(e, h2.events.StreamReset)]
        assert [(e.stream_id, e.error_code) for e in refused] == [(i, ErrorCodes.REFUSED_STREAM) for i in ids[3:]]
        assert server.reports.endings == []


async def test_a_call_over_the_limit_after_the_acknowledgement_costs_that_call_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client that has acknowledged the limit and still exceeds it loses the call, not its connection."""
    async with in_memory(ServerLimits(max_streams=3)) as server:
        await server.client.hello()
        await server.client.read_until(h2.events.RemoteSettingsChanged)
        await trio.testing.wait_all_tasks_blocked()
        server.client.exceed_the_stream_limit()
        kept = server.client.open_call("unary", end=False)
        for _ in range(2):
            server.client.open_call("hang")
        over = server.client.open_call("unary", body=message(b"over"))
        await server.client.flush()
        await server.client.read_until(h2.events.StreamReset)
        refused = [e for e in server.client.events if isinstance(e, h2.events.StreamReset)]
        assert [(e.stream_id, e.error_code) for e in refused] == [(over, ErrorCodes.REFUSED_STREAM)]
        server.client.h2.send_data(kept, message(b"kept"), end_stream=True)
        await server.client.flush()
        await server.client.read_until(h2.events.StreamEnded)
        assert server.client.trailers(kept) == OK
        assert server.reports.endings == []


async def test_a_client_that_closes_its_sending_side_cancels_its_calls(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 37."""
    async with in_memory() as server:
        await server.client.hello()
        server.client.open_call("hang")
        await server.client.flush()
        await server.echo.hanging.wait()
        assert isinstance(server.client.stream, trio.StapledStream)
        await server.client.stream.send_eof()
        assert await server.ending() == ConnectionEnding(EndReason.PEER_CLOSED)
        assert server.echo.cancelled.is_set()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        pytest.param(b"\1\0\0\0\0", "12", "compressed messages are not taken", id="fault-68-compressed"),
        pytest.param(b"\7\0\0\0\0", "13", "the compression flag of a message is 7", id="bad-flag"),
        pytest.param(b"\0\0\0\0\5abc", "13", "the request ends within a message", id="fault-69-truncated"),
        pytest.param(b"", "13", "a unary request has no message", id="none"),
        pytest.param(message(b"a") * 2, "13", "a unary request has more than one message", id="fault-70-two"),
        pytest.param(b"\0\0\0\0\2\x0a\x7f", "13", "a request message cannot be parsed", id="fault-72-bad-wire"),
        pytest.param(
            b"\0\xff\xff\xff\xff", "8", "a message of 4294967295 bytes is over the limit of 4194304", id="fault-50-huge"
        ),
    ],
)
async def test_a_bad_message_ends_its_call_with_a_reason(
    body: bytes, status: str, text: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_memory() as server:
        await server.client.hello()
        trailers = await server.client.call("unary", body)
        assert (trailers["grpc-status"], trailers["grpc-message"]) == (status, text)
        server.client.events.clear()
        assert await server.client.call("unary", message(b"next")) == OK
        assert server.reports.failures == []


@pytest.mark.parametrize("timeout", ["", "1", "S", "-1S", "123456789S", "1x", "\u0661S".encode().decode("latin-1")])
async def test_a_malformed_timeout_ends_the_call(timeout: str, autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as server:
        await server.client.hello()
        trailers = await server.client.call("unary", message(b"x"), grpc_timeout=timeout)
        assert trailers["grpc-status"] == "13"
        assert server.reports.failures == []


async def test_a_deadline_is_on_trios_clock_and_cancels_the_handler(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as server:
        await server.client.hello()
        began = trio.current_time()
        assert await server.client.call("unary", message(b"x"), grpc_timeout="90S") == OK
        assert server.echo.deadlines == [began + 90]
        server.client.events.clear()
        trailers = await server.client.call("hang", message(b"x"), grpc_timeout="2S")
        assert trailers["grpc-status"] == "4"
        assert server.echo.cancelled.is_set()
        assert trio.current_time() - began == 2.0


@pytest.mark.parametrize(("header", "status"), [({":method": "GET"}, "405"), ({"content-type": "text/html"}, "415")])
async def test_a_request_that_is_not_grpc_gets_the_answer_of_http(
    header: dict[str, str], status: str, autojump_clock: trio.testing.MockClock
) -> None:
    base = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/a/b",
        ":authority": "x",
        "content-type": "application/grpc",
    }
    async with in_memory() as server:
        await server.client.hello()
        server.client.h2.send_headers(1, list((base | header).items()), end_stream=True)
        await server.client.flush()
        await server.client.read_until(h2.events.StreamEnded)
        assert server.client.trailers(1) == {":status": status}


async def test_stopping_lets_calls_in_progress_end(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 87, on the server: GOAWAY is sent first, then calls in progress end, then the connection does."""
    async with in_memory() as server:
        await server.client.hello()
        stream_id = server.client.open_call("unary", end=False)
        await server.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        server.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        await server.client.stream.send_all(frame(0, message(b"last"), flags=1, stream=stream_id))
        received = bytearray()
        while data := await server.client.stream.receive_some(65536):
            received += data
        assert await server.ending() == ConnectionEnding(EndReason.STOPPED)
        assert frame(7, b"\0\0\0\1\0\0\0\0") in received
        assert message(b"last") in received
        assert received.index(frame(7, b"\0\0\0\1\0\0\0\0")) < received.index(message(b"last"))


async def test_stopping_cancels_calls_that_outlive_the_grace(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ServerLimits(grace=3)) as server:
        await server.client.hello()
        server.client.open_call("hang")
        await server.client.flush()
        await server.echo.hanging.wait()
        began = trio.current_time()
        server.stopping.set()
        assert await server.ending() == ConnectionEnding(EndReason.STOPPED, "1 calls outlived the grace")
        assert trio.current_time() - began == 3.0
        assert server.echo.cancelled.is_set()


async def test_cancellation_sends_goaway_and_stops_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as server:
        await server.client.hello()
        await trio.testing.wait_all_tasks_blocked()
        client = server.client
    await client.read_until(h2.events.ConnectionTerminated)
    assert [e.error_code for e in client.events if isinstance(e, h2.events.ConnectionTerminated)] == [0]


@pytest.mark.parametrize("method", ["nothing", "unary", "hang"])
async def test_a_call_that_is_reset_in_the_write_that_opens_it_affects_no_other_call(
    tmp_path: Path, method: str
) -> None:
    """Fault 60: h2 closes the stream before it can be answered. This once ended the whole listener."""
    async with served(tmp_path / "s") as server:
        good = ByteClient(await trio.open_unix_socket(server.path))
        await good.hello()
        bad = ByteClient(await trio.open_unix_socket(server.path))
        await bad.hello()
        for _ in range(5):
            bad.h2.reset_stream(bad.open_call(method, body=message(b"x"), end=False))
        await bad.flush()
        assert await bad.call("unary", message(b"the same connection goes on")) == OK
        assert await good.call("unary", message(b"and so does another")) == OK
        assert (server.reports.endings, server.reports.failures) == ([], [])
        await trio.aclose_forcefully(bad.stream)
        await trio.aclose_forcefully(good.stream)


@pytest.mark.parametrize("seed", range(8))
async def test_mutated_conversations_end_in_typed_endings(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Whatever bytes arrive, the connection ends by itself with an Ending, and no exception escapes."""
    chance = random.Random(seed)
    for _ in range(40):
        script = _script(chance)
        for _ in range(chance.randrange(1, 6)):
            script[chance.randrange(24, len(script))] = chance.randrange(256)
        async with in_memory(ServerLimits(idle_timeout=5, receive_timeout=5, send_timeout=5)) as server:
            await server.client.stream.send_all(bytes(script))
            assert isinstance(server.client.stream, trio.StapledStream)
            await server.client.stream.send_eof()
            ending = await server.ending()
            assert ending.reason in (EndReason.PROTOCOL, EndReason.PEER_CLOSED, EndReason.FLOOD)
            assert server.reports.failures == []


def _script(chance: random.Random) -> bytearray:
    """Return a valid conversation of a few calls, as bytes."""
    client = ByteClient.__new__(ByteClient)
    client.h2 = h2.connection.H2Connection()
    client.h2.initiate_connection()
    for _ in range(chance.randrange(1, 6)):
        method = chance.choice(["unary", "count", "hang", "status", "both"])
        client.open_call(method, body=message(b"x" * chance.randrange(200)))
        client.h2.ping(b"8 bytes.")
    return bytearray(client.h2.data_to_send())
