"""The server of the page over real connections: who gets what, and what hostile clients achieve."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from plugind.actors.http.limits import HttpLimits, Place
from plugind.actors.http.server import HttpRequest, json_response, serve
from plugind.actors.io.tcp_socket import listen
from plugind.actors.status.page.board import PLUGINS, Board
from plugind.actors.status.page.documents import Document, page
from plugind.actors.status.page.routes import LIMITS, AskedDaemon, Routes
from plugind.protocol.plugins.status import StateName
from plugind.protocol.status.metrics_config import TcpAddress
from plugind.tests.actors.status.page.events import Browser, Chunks
from plugind.tests.actors.status.page.stand_in import GPU, StandIn, history, plugin, resource, standing_in

TOKEN = "kfd83-token"
BEARER = f"Authorization: Bearer {TOKEN}"


@attrs.frozen
class Client:
    """Asks the server of a page."""

    address: TcpAddress
    board: Board
    daemon: StandIn

    async def connect(self, buffer: int | None = None) -> trio.SocketStream:
        """Connect; with a receive ``buffer`` of so many bytes, if it is given."""
        made = trio.socket.socket()
        if buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await made.connect((self.address.host, self.address.port))
        return trio.SocketStream(made)

    async def answer(self, sent: bytes) -> bytes:
        """Send bytes and return all that comes back before the connection ends."""
        with trio.fail_after(60):
            async with await self.connect() as stream:
                await stream.send_all(sent)
                return b"".join([piece async for piece in stream])

    async def get(
        self, target: str, *headers: str, host: str = "127.0.0.1", method: str = "GET"
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        lines = "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, ""))
        head, _, body = (await self.answer(lines.encode("latin-1"))).partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body


@asynccontextmanager
async def serving(
    directory: object, limits: HttpLimits = LIMITS, document: Document | None = None
) -> AsyncIterator[Client]:
    """Serve a page, of a daemon that a test plays, for the duration of the block."""
    board = Board()
    async with trio.open_nursery() as nursery, standing_in(f"{directory}/status.sock") as daemon:
        listener = listen(TcpAddress("127.0.0.1", 0))
        answers = Routes(TOKEN, document or page(), board, AskedDaemon(daemon.path, 5.0))
        nursery.start_soon(partial(serve, listener, answers, limits, allowed=None, place=answers.place))
        yield Client(listener.address, board, daemon)
        listener.close()
        nursery.cancel_scope.cancel()


@pytest.fixture(name="client")
async def _client(tmp_path: object) -> AsyncIterator[Client]:
    async with serving(tmp_path) as client:
        yield client


async def test_everybody_gets_the_page_which_says_nothing_about_the_node(client: Client) -> None:
    client.board.put(PLUGINS, "/r/secret.sock", {"name": "secret"})
    status, headers, body = await client.get("/")
    assert (status, body) == (200, page().body)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert page().headers == tuple((name, headers[name]) for name, _ in page().headers)
    assert b"secret" not in body
    assert TOKEN.encode() not in body
    status, headers, body = await client.get("/", method="HEAD")
    assert (status, body, int(headers["Content-Length"])) == (200, b"", len(page().body))


@pytest.mark.parametrize(
    "path", ["/events", "/plugin?socket=%2Fr%2Fa.sock", f"/devices?resource={GPU}", "/devices", "/plugins", "/x"]
)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer "],
        ["Authorization: Bearer kfd83-toke"],
        ["Authorization: Bearer kfd83-tokenx"],
        ["Authorization: bearer kfd83-token"],
        ["Authorization: Basic kfd83-token"],
        ["Authorization: Bearer kfd83-tok\xe9n"],
        ["Cookie: token=kfd83-token"],
        [BEARER, "Authorization: Bearer another"],
        [BEARER, BEARER],
    ],
    ids=str,
)
async def test_who_has_no_token_gets_nothing_else(client: Client, path: str, headers: list[str]) -> None:
    client.daemon.put_plugin(plugin("a"))
    status, answered, body = await client.get(path, *headers)
    assert status == 401
    assert answered["WWW-Authenticate"] == "Bearer"
    assert "plugind page" in json.loads(body)["error"]
    assert client.daemon.asked == []


async def test_a_token_in_the_address_is_not_accepted(client: Client) -> None:
    """It would be in the history of the browser, and in logs of what is between."""
    for path in (f"/events?token={TOKEN}", f"/events?access_token={TOKEN}", f"/events#{TOKEN}"):
        assert (await client.get(path))[0] == 401


async def test_who_has_the_token_is_told_about_one_plugin_and_one_resource(client: Client) -> None:
    client.daemon.put_plugin(plugin("a b", history=history((3.0, StateName.WAITING, "refused"))))
    client.daemon.put_resource(resource(d0="Healthy", d1="Sick"))
    status, headers, body = await client.get("/plugin?socket=%2Fr%2Fa%20b.sock", BEARER)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "application/json", "no-store")
    assert json.loads(body)[0]["history"][0]["reason"] == "refused"
    status, _, body = await client.get(f"/devices?resource={GPU}", BEARER)
    assert [device["id"] for device in json.loads(body)["resources"][0]["devices"]] == ["d0", "d1"]
    client.daemon.put_resource(resource("lab/serial", a="Healthy"))
    status, _, body = await client.get("/devices", BEARER)
    assert [found["resource"] for found in json.loads(body)["resources"]] == [GPU, "lab/serial"]
    assert (await client.get("/devices?resource=", BEARER))[0] == 400
    assert (await client.get("/plugin?socket=%2Fr%2Fb.sock", BEARER))[0] == 404
    assert (await client.get("/plugin", BEARER))[0] == 400
    assert (await client.get("/x", BEARER))[0] == 404


async def test_what_is_asked_about_stays_one_part_of_what_the_daemon_is_asked(client: Client) -> None:
    """A page that could ask anything of the daemon could ask it for more than the page shows."""
    for asked in ("..%2Fretry", "a%3Fx%3D1", "a%20HTTP%2F1.1%0D%0AHost:%20x%0D%0A", "%2F..%2F..%2Fmetrics", "a%23b"):
        assert (await client.get(f"/plugin?socket={asked}", BEARER))[0] == 404
    assert client.daemon.asked == [
        "/plugins/..%2Fretry",
        "/plugins/a%3Fx%3D1",
        "/plugins/a%20HTTP%2F1.1%0D%0AHost%3A%20x%0D%0A",
        "/plugins/%2F..%2F..%2Fmetrics",
        "/plugins/a%23b",
    ]


async def test_the_stream_has_what_is_known_and_each_change(client: Client) -> None:
    client.board.put(PLUGINS, "/r/a.sock", {"state": "waiting"})
    browser = Browser()
    async with await client.connect() as stream:
        await stream.send_all(f"GET /events HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode())
        chunks = Chunks(stream)
        head = await chunks.head()
        assert b"\r\ncontent-type: text/event-stream\r\n" in head.lower()
        while browser.batches < 1:
            browser.take(await chunks.next())
        assert browser.tables[PLUGINS] == {"/r/a.sock": {"state": "waiting"}}
        client.board.put(PLUGINS, "/r/a.sock", {"state": "registered"})
        while browser.batches < 2:
            browser.take(await chunks.next())
    assert browser.tables[PLUGINS] == {"/r/a.sock": {"state": "registered"}}


async def test_a_request_for_another_host_is_refused_on_every_path_even_with_the_token(client: Client) -> None:
    """DNS rebinding: a page of others whose name leads here is of the same origin, and would read the answer."""
    port = client.address.port
    for path in ("/", "/events", "/plugin?socket=a", "/nothing"):
        for host in ("evil.example", f"evil.example:{port}", "192.0.2.7", "localhost.evil.example", "", "a@localhost"):
            status, _, body = await client.get(path, BEARER, host=host)
            assert (status, "localhost" in json.loads(body)["error"]) == (421, True), (path, host)
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", "127.0.0.1", "[::1]:8080"):
        assert (await client.get("/", host=host))[0] == 200, host
    assert (await client.get("http://evil.example/"))[0] == 421
    assert (await client.answer(b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 421 ")
    assert client.daemon.asked == []


async def test_no_answer_permits_other_origins_and_nothing_can_be_changed(client: Client) -> None:
    origin = "Origin: http://evil.example"
    for method in ("POST", "DELETE", "PUT", "OPTIONS", "TRACE", "PATCH"):
        for path in ("/", "/events", "/retry", "/reload"):
            asked = ("Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization")
            status, headers, _ = await client.get(path, origin, BEARER, *asked, method=method)
            assert (status, headers["Allow"]) == (405, "GET"), (method, path)
            assert not [name for name in headers if name.lower().startswith("access-control")]
    for path in ("/", "/plugin?socket=a"):
        _, headers, _ = await client.get(path, origin, BEARER)
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert client.daemon.asked == ["/plugins/a"]


async def test_a_daemon_that_is_gone_is_said(tmp_path: object) -> None:
    async with serving(tmp_path) as client:
        client.daemon.instead["/plugins/a"] = json_response(503, {"error": "busy"})
        assert (await client.get("/plugin?socket=a", BEARER))[0] == 503
    board = Board()
    routes = Routes(TOKEN, page(), board, AskedDaemon(f"{tmp_path}/nothing.sock", 5.0))
    asked = HttpRequest("GET", "/plugin", {"socket": "a"}, b"", host="localhost", authorization=f"Bearer {TOKEN}")
    answer = await routes(asked)
    assert (answer.status, json.loads(answer.body)) == (502, {"error": "no daemon answers: No such file or directory"})


async def test_without_a_token_everybody_who_can_connect_reads_and_takes_the_places_of_readers(
    tmp_path: object,
) -> None:
    async with serving(tmp_path) as client:
        routes = Routes(None, page(), client.board, AskedDaemon(client.daemon.path, 5.0))
        asked = HttpRequest("GET", "/devices", {}, b"", host="localhost")
        assert (await routes(asked)).status == 200
        assert routes.place(asked) == Place.QUERY
        assert (await routes(attrs.evolve(asked, method="POST"))).status == 405
        assert (await routes(attrs.evolve(asked, host="evil.example"))).status == 421


async def test_clients_without_the_token_that_read_nothing_take_no_place_of_those_who_have_it(tmp_path: object) -> None:
    limits = attrs.evolve(LIMITS, connections=1, streams=1, health=2)
    # More than the buffers of the kernel take.
    large = Document(b" " * 20_000_000, ())
    async with serving(tmp_path, limits, large) as client, AsyncExitStack() as stack:
        for target in ("/", "/events", "/plugin?socket=a") * 3:
            stream = await stack.enter_async_context(await client.connect(buffer=1024))
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert (await client.get("/plugin?socket=a", BEARER))[0] == 404
        async with await client.connect() as stream:
            await stream.send_all(f"GET /events HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode())
            assert (await Chunks(stream).head()).startswith(b"HTTP/1.1 200 ")


async def test_a_browser_that_reads_nothing_is_ended_and_nothing_grows_for_it(tmp_path: object) -> None:
    limits = attrs.evolve(LIMITS, piece=0.3, streams=1)
    async with serving(tmp_path, limits) as client, await client.connect(buffer=1024) as stream:
        await stream.send_all(f"GET /events HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode())
        await Chunks(stream).head()
        # More than the buffers of the kernel take.
        for number in range(2_000):
            client.board.put(PLUGINS, f"/r/{number}.sock", {"reason": "x" * 5_000})
        status = 503
        with trio.fail_after(60):
            while status == 503:  # Until its place is free again.
                await trio.sleep(0.05)
                status, _, _ = await client.get("/events", BEARER, "X: only the head is read", method="HEAD")
        assert status == 200
