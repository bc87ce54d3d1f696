"""The HTTP server over streams in memory, where slow clients take only virtual time, and over real sockets."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import h11
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from plugind.actors.http import server as http
from plugind.actors.http.client import UnreachableError
from plugind.actors.http.on_trio import ask
from plugind.actors.http.places import Place
from plugind.actors.http.server import HttpLimits, HttpRequest, HttpResponse, Send, json_response
from plugind.actors.io.descriptors import DescriptorReserve
from plugind.actors.io.unix_socket import Credentials, UnixListener, listen, peer_credentials
from plugind.tests.actors.io.exhaustion import no_descriptor_left

LIMITS = HttpLimits()


async def echo(request: HttpRequest) -> HttpResponse:
    return json_response(200, [request.method, request.path, dict(request.query), request.body.decode()])


async def served(sent: bytes, *, handler: http.RequestHandler = echo, limits: HttpLimits = LIMITS) -> tuple[int, bytes]:
    """Send bytes on a new connection and return the answer, with status 0 if there was none."""
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await http.serve_connection(server, handler, limits)

        nursery.start_soon(serve)
        await client.send_all(sent)
        return await answer(client, "HEAD" if sent.startswith(b"HEAD") else "GET")


async def answer(client: trio.abc.ReceiveStream, method: str = "GET") -> tuple[int, bytes]:
    whole = b""
    while piece := await client.receive_some():
        whole += piece
    if not whole:
        return 0, b""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(whole)
    connection.receive_data(b"")
    head = connection.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    return head.status_code, body


async def test_a_request_is_answered_and_the_connection_closed() -> None:
    sent = b"POST /a%20b?x=1&y=%2F HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    assert await served(sent) == (200, b'["POST", "/a%20b", {"x": "1", "y": "/"}, "hi"]\n')


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 100_000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4294967296\r\n\r\n" + b"x" * 70_000, 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 70_000, 400),
        (b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /?" + b"a=1&" * 100 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ],
)
async def test_a_malformed_or_oversized_request_is_refused(sent: bytes, status: int) -> None:
    """Fault 93. What is malformed is for h11 to know: these are limits, and what is said to other protocols."""
    assert (await served(sent))[0] == status


@pytest.mark.parametrize("sent", ["healthy", "healthy=", "heartbeat=&healthy"])
async def test_a_parameter_without_a_value_is_there_with_an_empty_one(sent: str) -> None:
    """They were dropped: ``/readyz?healthy`` was answered as ``/readyz``."""
    status, body = await served(f"GET /readyz?{sent} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (status, json.loads(body)[2]) == (200, dict.fromkeys(re.findall("[a-z]+", sent), ""))


async def test_a_client_that_closes_before_its_request_is_whole_is_ignored(nursery: trio.Nursery) -> None:
    client, server = memory_stream_pair()
    await client.aclose()
    await http.serve_connection(server, echo, LIMITS)
    client, server = memory_stream_pair()
    await client.send_all(b"GET / HT")
    await client.aclose()
    await http.serve_connection(server, echo, LIMITS)


async def test_one_byte_a_second_does_not_extend_the_deadline(autojump_clock: MockClock) -> None:
    """Fault 93: slowloris."""
    client, server = memory_stream_pair()
    result: list[tuple[float, int]] = []
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            while True:
                await client.send_all(b"G")
                await trio.sleep(1)

        async def collect() -> None:
            status, _ = await answer(client)
            result.append((trio.current_time(), status))
            nursery.cancel_scope.cancel()

        nursery.start_soon(trickle)
        nursery.start_soon(collect)
        await http.serve_connection(server, echo, LIMITS)
        await trio.sleep_forever()
    assert result == [(10.0, 408)]


async def test_a_client_that_reads_nothing_is_disconnected(autojump_clock: MockClock) -> None:
    """Fault 93."""
    client, server = trio.testing.lockstep_stream_pair()

    async def endless(request: HttpRequest) -> HttpResponse:
        async def write(send: Send) -> None:
            while True:
                await send(b"x" * 1000)

        return HttpResponse(200, "text/plain", write=write, endless=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await http.serve_connection(server, endless, LIMITS)
    assert trio.current_time() == LIMITS.piece


async def test_an_endless_answer_ends_when_the_client_closes(autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    ended = False

    async def endless(request: HttpRequest) -> HttpResponse:
        async def write(send: Send) -> None:
            nonlocal ended
            try:
                await trio.sleep_forever()
            finally:
                ended = True

        return HttpResponse(200, "text/plain", write=write, endless=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.serve_connection, server, endless, LIMITS)
        await client.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.sleep(3600)
        assert not ended, "an hour without a change must not end the answer"
        await client.aclose()
        with trio.fail_after(1):
            while not ended:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.1)


async def test_a_request_whose_handler_hangs_is_answered_with_503(autojump_clock: MockClock) -> None:
    async def hang(request: HttpRequest) -> HttpResponse:
        await trio.sleep_forever()
        raise AssertionError("not reached")

    status, _ = await served(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", handler=hang)
    assert (status, trio.current_time()) == (503, LIMITS.response)


async def test_an_error_of_a_handler_is_raised_by_the_server() -> None:
    async def bug(request: HttpRequest) -> HttpResponse:
        raise KeyError("ours")

    client, server = memory_stream_pair()
    await client.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(KeyError):
        await http.serve_connection(server, bug, LIMITS)


# --- over real sockets ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(
    listener: UnixListener,
    limits: HttpLimits = LIMITS,
    *,
    allowed: frozenset[int] = frozenset({0, os.geteuid()}),
    handler: http.RequestHandler = echo,
) -> AsyncIterator[Callable[[], None]]:
    """Serve on ``listener`` for the duration of the block; cancelling the value stops the server at once."""
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await http.serve(listener, handler, limits, allowed=allowed, place=place_of)

        nursery.start_soon(serve)
        try:
            yield nursery.cancel_scope.cancel
        finally:
            listener.close()


async def test_other_users_are_refused(tmp_path: Path) -> None:
    """Fault 93: peer credentials are checked. The mode already excludes other users, but it may have been changed."""
    listener = listen(str(tmp_path / "s"))
    async with running(listener, allowed=frozenset({os.geteuid() + 1})) as stop:
        with trio.fail_after(60):
            async with ask(str(tmp_path / "s"), "GET", "/") as reply:
                assert reply.status == 403
        stop()


def place_of(request: HttpRequest) -> Place:
    return {"/stream": Place.STREAM, "/health": Place.HEALTH}.get(request.path, Place.QUERY)


async def held_open(request: HttpRequest) -> HttpResponse:
    """Answer ``/x`` and ``/health`` at once; hold everything else open for as long as the client does."""
    if request.path in ("/x", "/health"):
        return await echo(request)

    async def write(send: Send) -> None:
        await send(b"first piece")
        await trio.sleep_forever()

    return HttpResponse(200, "text/plain", write=write, endless=True)


async def status_of(path: str, target: str) -> int:
    async with ask(path, "GET", target) as reply:
        return reply.status


async def test_streams_and_queries_that_hold_all_their_places_keep_out_no_other_kind(tmp_path: Path) -> None:
    """Fault 93: many watchers do not make health answer 503."""
    path = str(tmp_path / "s")
    limits = attrs.evolve(LIMITS, connections=1, streams=2)
    async with running(listen(path), limits, handler=held_open) as stop:
        with trio.fail_after(60):
            async with ask(path, "GET", "/stream") as first, ask(path, "GET", "/stream") as second:
                assert (first.status, second.status) == (200, 200)
                assert await status_of(path, "/stream") == 503
                assert await status_of(path, "/x") == 200
                async with ask(path, "GET", "/held") as query:
                    assert query.status == 200
                    assert await status_of(path, "/x") == 503
                    assert await status_of(path, "/health") == 200
        stop()


async def test_clients_that_send_no_request_lose_their_places_to_others(tmp_path: Path) -> None:
    """Fault 93: clients that send nothing, or send too slowly, do not keep others out. The newest stay."""
    path = str(tmp_path / "s")
    async with running(listen(path), attrs.evolve(LIMITS, unread=4)) as stop, AsyncExitStack() as stack:
        with trio.fail_after(60):
            idle = [await stack.enter_async_context(await trio.open_unix_socket(path)) for _ in range(10)]
            await idle[9].send_all(b"GET / HT")
            assert await status_of(path, "/x") == 200
            for stream in idle[:7]:
                # Closed by the server, in the order in which they came.
                assert await stream.receive_some() == b""
            await idle[9].send_all(b"TP/1.0\r\n\r\n")
            assert (await idle[9].receive_some()).startswith(b"HTTP/1.1 200")
        stop()


async def test_clients_that_do_not_read_about_health_lose_their_places_to_others(tmp_path: Path) -> None:
    """Fault 93: the answer of health is more than the buffers hold, and nobody reads it."""
    path = str(tmp_path / "s")

    async def large(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, "text/plain", b"x" * (8 << 20 if request.query else 1))

    limits = attrs.evolve(LIMITS, health=2)
    async with running(listen(path), limits, handler=large) as stop, AsyncExitStack() as stack:
        with trio.fail_after(60):
            slow = [await stack.enter_async_context(await trio.open_unix_socket(path)) for _ in range(3)]
            for stream in slow:
                await stream.send_all(b"GET /health?large=1 HTTP/1.0\r\n\r\n")
                assert await stream.receive_some(1)
            assert await status_of(path, "/health") == 200
            received = [await length_of(stream) for stream in slow]
            # Two made room: one for the third of them, one for the request that was answered.
            assert [length > 8 << 20 for length in received] == [False, False, True]
        stop()


async def length_of(stream: trio.abc.ReceiveStream) -> int:
    return 1 + sum([len(piece) async for piece in stream])


@asynccontextmanager
async def without_descriptors(path: str, *, clients: int, reserve: int) -> AsyncIterator[list[trio.SocketStream]]:
    """A server of a process that has only its reserve left, and clients that connected before it accepts."""
    with DescriptorReserve(reserve) as kept, listen(path) as listener:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(await trio.open_unix_socket(path)) for _ in range(clients)]
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    allowed = frozenset({os.geteuid()})
                    await http.serve(listener, held_open, LIMITS, allowed=allowed, place=place_of, reserve=kept)

                with no_descriptor_left():
                    nursery.start_soon(serve)
                    yield streams
                    nursery.cancel_scope.cancel()
        assert kept.refill(), "all came back"


async def test_requests_are_answered_without_descriptors_by_the_reserve_and_streams_are_refused(
    tmp_path: Path,
) -> None:
    """Fault 46: the status socket answers, whatever the plugins hold."""
    with trio.fail_after(60):
        async with without_descriptors(str(tmp_path / "s"), clients=9, reserve=2) as clients:
            await clients[0].send_all(b"GET /stream HTTP/1.0\r\n\r\n")
            status, body = await answer(clients[0])
            assert (status, body) == (503, b'{"error": "no descriptors left for a stream"}\n')
            for client in clients[1:]:
                await client.send_all(b"GET /x HTTP/1.0\r\n\r\n")
            for client in clients[1:]:
                assert (await answer(client))[0] == 200


async def test_slow_clients_give_descriptors_of_the_reserve_back_to_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Fault 46: a client that sends no request keeps a descriptor for a second while another one waits."""
    async with without_descriptors(str(tmp_path / "s"), clients=4, reserve=2) as clients:
        await clients[3].send_all(b"GET /x HTTP/1.0\r\n\r\n")
        assert (await answer(clients[3]))[0] == 200
        assert 1.0 <= trio.current_time() < 2.0
        # The two that came first made room.
        assert await clients[0].receive_some() == await clients[1].receive_some() == b""


async def test_a_connection_whose_credentials_the_kernel_does_not_tell_is_closed_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: an error of SO_PEERCRED is one connection's."""
    path, failures = str(tmp_path / "s"), [OSError(errno.ENOTCONN, "not connected")]

    def credentials(accepted: trio.socket.SocketType) -> Credentials:
        if failures:
            raise failures.pop()
        return peer_credentials(accepted)

    monkeypatch.setattr(http, "peer_credentials", credentials)
    with trio.fail_after(60):
        async with running(listen(path)) as stop:
            async with await trio.open_unix_socket(path) as refused:
                assert await refused.receive_some() == b""
            assert await status_of(path, "/x") == 200
            stop()


async def test_a_closed_listener_ends_the_server_once_every_request_is_answered(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = listen(path)
    slow = trio.Event()

    async def wait(request: HttpRequest) -> HttpResponse:
        slow.set()
        await trio.sleep(0.05)
        return json_response(200, "late")

    with trio.fail_after(60):
        async with running(listener, handler=wait), ask(path, "GET", "/") as reply:
            listener.close()
            assert await reply.body() == b'"late"\n'


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nothing", "No such file"),
        ("stale", "Connection refused"),
        ("garbage", "not HTTP"),
        ("leaves", "not HTTP|Connection reset by peer"),
    ],
)
async def test_the_client_says_why_there_is_no_answer(
    tmp_path: Path, nursery: trio.Nursery, kind: str, reason: str
) -> None:
    path = str(tmp_path / "s")
    with trio.socket.socket(socket.AF_UNIX) as server, trio.fail_after(60):
        if kind != "nothing":
            await server.bind(path)

        async def misbehave() -> None:
            connection, _ = await server.accept()
            with connection:
                if kind == "garbage":
                    await connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")

        if kind in ("garbage", "leaves"):
            server.listen()
            nursery.start_soon(misbehave)
        with pytest.raises(UnreachableError) as caught:
            async with ask(path, "GET", "/"):
                pass
    assert re.search(reason, caught.value.reason)
