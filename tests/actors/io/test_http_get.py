"""GET requests to a server on a TCP port, which may answer whatever it likes."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.io.http_get import HttpGetError, Origin, Tls, get, origin
from plugind.tests.end_to_end.certificates import Certificate, certificate

#: The name in the certificate of an agent of Nomad.
NAME = "client.global.nomad"
MOST = 1000
CLOSED = "the connection was closed before an answer came"


@attrs.define
class Server:
    """Sends the same pieces to each caller, and keeps what it was asked."""

    pieces: Callable[[], Iterable[bytes]]
    #: Whether the connection stays open after the last piece.
    stays: bool = False
    context: ssl.SSLContext | None = None
    asked: list[bytes] = attrs.field(factory=list)

    async def serve(self, stream: trio.SocketStream) -> None:
        talking = stream if self.context is None else trio.SSLStream(stream, self.context, server_side=True)
        try:
            self.asked.append(bytes(await talking.receive_some(65536)))
            for piece in self.pieces():
                await talking.send_all(piece)
            if self.stays:
                await trio.sleep_forever()
        except trio.BrokenResourceError:
            pass  # The client has left, which the test is about.
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(*pieces: bytes, **more: object) -> AsyncIterator[tuple[Server, Origin]]:
    async with served(Server(lambda: pieces, **more)) as found:  # type: ignore[arg-type] # as the test gives it
        yield found


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[tuple[Server, Origin]]:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        yield server, Origin("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def asked(server: Origin, **headers: str) -> bytes:
    return await get(server, "/v1/agent/self", headers, timeout=10.0, most=MOST)


async def why(server: Origin) -> str:
    with pytest.raises(HttpGetError) as caught:
        await asked(server)
    return str(caught.value)


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_a_request_has_its_headers_and_the_answer_its_body() -> None:
    async with serving(whole(b"[]")) as (server, at):
        assert await get(at, "/v1/x", {"X-Nomad-Token": "s"}, timeout=10.0, most=MOST) == b"[]"
    (request,) = server.asked
    assert request.split(b"\r\n") == [
        b"GET /v1/x HTTP/1.1",
        b"Host: %s" % str(at).encode(),
        b"Connection: close",
        b"Accept: application/json",
        b"X-Nomad-Token: s",
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n", b"1\r\n]\r\n0\r\nA: b\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n[", b"]"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]",),
        (b"HTTP/1.1 102 Processing\r\n\r\n" * 3, whole(b"[]")),
        tuple(bytes([letter]) for letter in whole(b"[]")),
        # As many as are allowed.
        (whole(b"[" + b" " * (MOST - 2) + b"]"),),
    ],
)
async def test_a_body_comes_in_any_form_of_http(pieces: tuple[bytes, ...]) -> None:
    async with serving(*pieces) as (_, at):
        assert (await asked(at)).split() in ([b"[]"], [b"[", b"]"])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (whole(b"", "301 Moved\r\nLocation: http://127.0.0.1:1/"), "the answer is 301, and not 200"),
        (whole(b"no", "403 Forbidden"), "the answer is 403, and not 200"),
        (whole(b"no", "500 Whatever"), "the answer is 500, and not 200"),
        (whole(b"", "204 No Content"), "the answer is 204, and not 200"),
        (b"HTTP/1.1 101 Upgraded\r\n\r\n", "does not answer in HTTP"),
        (whole(b"[" * (MOST + 1)), "the answer is over 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[]", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200", CLOSED),
        (b"HTTP/2 200\r\n\r\n", "does not answer in HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", CLOSED),
        (b"\x15\x03\x01\x00\x02\x02", "does not answer in HTTP"),
        (b"", CLOSED),
    ],
)
async def test_any_other_answer_is_an_error(answer: bytes, reason: str) -> None:
    async with serving(answer) as (_, at):
        assert reason in await why(at)


async def test_a_body_without_an_end_is_given_up_at_the_limit() -> None:
    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        yield from itertools.repeat(b" " * 65536)

    async with served(Server(endless)) as (_, at):
        assert await why(at) == "the answer is over 1000 bytes"


@pytest.mark.parametrize("line", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_headers_without_an_end_are_given_up(line: bytes) -> None:
    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        yield from itertools.repeat(line)

    async with served(Server(endless)) as (_, at):
        assert "does not answer in HTTP" in await why(at)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[", b"HTTP/1.1 200"])
async def test_a_silent_server_has_one_deadline_for_all_of_its_answer(sent: bytes, autojump_clock: MockClock) -> None:
    # Time passes only while the test sleeps: the bytes are not in the way of the clock.
    autojump_clock.autojump_threshold = 0.2
    async with serving(sent, stays=True) as (_, at):
        began = trio.current_time()
        assert await why(at) == f"{at} has not answered within 10 s"
        assert trio.current_time() - began == 10.0


async def test_answers_that_tell_of_a_later_one_have_that_deadline_too(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:

        async def drip(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(b"HTTP/1.1 102 Processing\r\n\r\n")
                    await trio.sleep(1)

        autojump_clock.autojump_threshold = 0.02
        (listener,) = await nursery.start(partial(trio.serve_tcp, drip, 0, host="127.0.0.1"))
        at = Origin("127.0.0.1", listener.socket.getsockname()[1])
        assert await why(at) == f"{at} has not answered within 10 s"
        nursery.cancel_scope.cancel()


async def test_where_nobody_listens_the_error_says_so() -> None:
    async with serving() as (_, at):
        pass
    assert await why(at) == f"{at} does not answer: Connection refused"
    assert await why(Origin("localhost", at.port)) == f"localhost:{at.port} does not answer: Connection refused"


class Elsewhere(trio.abc.AsyncResource):
    """A connection to another machine."""

    def __init__(self) -> None:
        self.socket = self
        self.closed = False

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.7", 4646

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.8", 50000

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


async def test_a_server_on_another_machine_is_not_told_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allocations are those of another node. This connection can send nothing."""
    connection = Elsewhere()

    async def connect(_: str, __: int) -> Elsewhere:
        return connection

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    assert await why(Origin("nomad.example.com", 4646)) == "192.0.2.7 is no address of this machine"
    assert connection.closed


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("agent"), NAME)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("caller"), "cli.global.nomad")


def context(own: Certificate, caller: Certificate | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.load_cert_chain(own.file, own.key)
    if caller is not None:
        made.load_verify_locations(caller.file)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


async def test_a_server_is_known_by_its_certificate_and_knows_the_caller_by_ours(
    agent: Certificate, caller: Certificate
) -> None:
    tls = Tls(agent.file, caller.file, caller.key, NAME)
    async with serving(whole(b"[]"), context=context(agent, caller)) as (_, at):
        assert await asked(attrs.evolve(at, tls=tls)) == b"[]"


@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (lambda agent, _: Tls(agent.file), "IP address mismatch"),
        (lambda agent, _: Tls(agent.file, name="server.global.nomad"), "Hostname mismatch"),
        (lambda _, caller: Tls(caller.file, name=NAME), "certificate verify failed"),
        (lambda *_: Tls(name=NAME), "certificate verify failed"),
        (lambda *_: Tls("/absent"), "the files for TLS cannot be used: No such file or directory"),
        (lambda agent, _: Tls(agent.key), "the files for TLS cannot be used"),
        (lambda agent, caller: Tls(agent.file, caller.file, agent.key), "the files for TLS cannot be used"),
    ],
)
async def test_a_server_that_is_not_the_one_is_not_asked(
    tls: Callable[[Certificate, Certificate], Tls], reason: str, agent: Certificate, caller: Certificate
) -> None:
    async with serving(whole(b"[]"), context=context(agent)) as (server, at):
        assert reason in await why(attrs.evolve(at, tls=tls(agent, caller)))
    assert server.asked == []


async def test_a_server_that_wants_a_certificate_refuses_whoever_has_none(
    agent: Certificate, caller: Certificate
) -> None:
    async with serving(whole(b"[]"), context=context(agent, caller)) as (_, at):
        # It says so after our half of the handshake, when the request is on its way.
        assert await why(attrs.evolve(at, tls=Tls(agent.file, name=NAME))) == CLOSED


async def test_tls_is_not_asked_of_a_server_without_it_nor_the_other_way_round(agent: Certificate) -> None:
    async with serving(b"HTTP/1.0 400 Bad Request\r\n\r\n") as (_, at):
        assert "does not answer: " in await why(attrs.evolve(at, tls=Tls(agent.file, name=NAME)))
    async with serving(whole(b"[]"), context=context(agent)) as (_, at):
        # It closes the connection, and perhaps before it has read all of the request.
        assert await why(at) in (CLOSED, f"{at} does not answer: Connection reset by peer")


async def test_a_key_with_a_password_asks_nobody_for_it(agent: Certificate, tmp_path: Path) -> None:
    from plugind.tests.end_to_end.packages import program

    key = str(tmp_path / "key")
    command = [program("openssl"), "ec", "-aes256", "-in", agent.key, "-passout", "pass:word", "-out", key]
    await trio.run_process(command, capture_stderr=True)
    text = await why(Origin("127.0.0.1", 1, Tls(agent.file, agent.file, key)))
    assert text == "the key of the client's certificate has a password"


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://127.0.0.1:4646", Origin("127.0.0.1", 4646)),
        ("http://localhost:4646/", Origin("localhost", 4646)),
        ("https://nomad.example.com", Origin("nomad.example.com", 443, Tls("ca"))),
        ("http://[::1]:4646", Origin("::1", 4646)),
    ],
)
def test_an_address_is_that_of_a_server(address: str, found: Origin) -> None:
    assert origin(address, Tls("ca")) == found
    assert str(found) in (address.partition("//")[2].rstrip("/"), "nomad.example.com:443")


@pytest.mark.parametrize(
    "address",
    [
        *("", "127.0.0.1:4646", "unix:///run/nomad.sock", "http://", "http://a/v1", "http://a?b", "http://a#b"),
        *("http://a:b", "http://u:p@a", "http://a:70000", "http://[::1", "ftp://a", "http://b\u00fccher"),
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reason is also that of the standard library
        origin(address, Tls())
