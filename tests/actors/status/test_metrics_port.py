"""The metrics port over real connections: what is asked there, by which hosts, and what hostile clients achieve."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import NoReturn

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind import MetricsConfig, Supervisor
from plugind.actors.http.limits import HttpLimits
from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.node.node import Node
from plugind.actors.node.ports import Ports
from plugind.actors.simulation.processes import MemoryProcesses
from plugind.actors.status import metrics_port
from plugind.actors.status.api import REQUESTS
from plugind.actors.status.memory import Memory, StatusConfig
from plugind.actors.status.metrics_port import LIMITS, MetricsPort
from plugind.actors.status.page.documents import counts_page
from plugind.actors.status.port_api import PortApi
from plugind.actors.status.serving import served
from plugind.protocol.errors import ConfigError, SocketBusyError
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import StateChanged
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import StateName
from plugind.protocol.status.metrics_config import HostRule, TcpAddress
from plugind.supervisor import NodeSupervisor
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.io.exhaustion import no_descriptor_left
from plugind.tests.actors.status.bench import RecordingLogger
from plugind.tests.actors.status.test_status_restarts import crash_status

LOOPBACK = TcpAddress("127.0.0.1", 0)
GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@attrs.frozen
class Client:
    """Asks a port that is served."""

    address: TcpAddress
    asked: trio.MemoryReceiveChannel[ReconcilerMessage]

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self.address.host, self.address.port)

    async def answer(self, sent: bytes) -> bytes:
        """Send bytes and return all that comes back before the connection ends."""
        async with await self.connect() as stream:
            await stream.send_all(sent)
            return await rest_of(stream)

    async def get(self, target: str, host: str = "localhost", method: str = "GET") -> tuple[int, bytes]:
        return read(await self.answer(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()))


async def rest_of(stream: trio.SocketStream) -> bytes:
    whole = bytearray()
    try:
        async for piece in stream:
            whole += piece
    except trio.BrokenResourceError:  # It was closed before all was read that we have sent.
        return bytes(whole)
    return bytes(whole)


def read(answer: bytes) -> tuple[int, bytes]:
    """Return status and body of the only answer; status 0 if there is none."""
    assert len(re.findall(rb"^HTTP/", answer, re.MULTILINE)) <= 1, answer
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if answer else (0, b"")


@asynccontextmanager
async def port(
    *,
    address: TcpAddress = LOOPBACK,
    names: frozenset[str] = frozenset(),
    limits: HttpLimits = LIMITS,
    memory: Memory | None = None,
) -> AsyncIterator[Client]:
    """Serve a port of a node, by default one without plugins, for the duration of the block."""
    opened = MetricsPort(address, names, limits=limits)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](10)
    made = served(
        StatusConfig(),
        memory or Memory(),
        to_reconciler,
        tuple,
        devices=None,
        leases=None,
        refresh_facts=None,
        reserve=None,
    )
    with to_reconciler, asked, trio.fail_after(120):
        opened.open()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.serve_port, opened)
                yield Client(opened.listener.address, asked)
                nursery.cancel_scope.cancel()
        finally:
            opened.close()


async def test_metrics_are_served_to_whoever_connects() -> None:
    async with port() as client:
        answer = await client.answer(GET)
        status, body = read(answer)
        assert status == 200
        assert b"\nplugind_plugins{" in body
        assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
        assert b"\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n" in answer
        assert f"\r\nContent-Length: {len(body)}\r\n".encode() in answer
        assert b"Access-Control" not in answer
        assert await client.get("/metrics", method="HEAD") == (200, b"")


async def test_the_page_of_the_port_has_numbers_and_no_name_path_or_process() -> None:
    memory = Memory()
    for number, state in enumerate((StateName.REGISTERED, StateName.REGISTERED, StateName.WAITING)):
        path, cause = f"/secret/{number}.sock", "secret cause"
        info = PluginInfo("CSIPlugin", f"secret{number}.example.com", path, ("1.0.0",))
        memory.view.apply(StateChanged(path, "/secret", 1, state, 0.0, info=info, pid=4711, cause=cause, reason=cause))
    odd = PluginInfo("<script>secret", "secret.example.com", "/secret/odd.sock", ())
    memory.view.apply(StateChanged("/secret/odd.sock", "/secret", 1, StateName.PARKED, 0.0, info=odd))
    async with port(memory=memory) as client:
        answer = await client.answer(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, body = read(answer)
        assert status == 200
        none = "<td>\N{EN DASH}</td>"
        head = "<tr><th>type</th><th>all</th><th>registered</th><th>observed</th><th>waiting</th><th>parked</th>"
        csi = f"<tr><th>CSIPlugin</th><td>3</td><td>2</td>{none}<td>1</td>{none * 8}</tr>\n"
        other = f"<tr><th>other</th><td>1</td>{none * 3}<td>1</td>{none * 7}</tr>\n"
        for line in (head, csi, other):
            assert line.encode() in body
        # A type without sockets is counted with zeros, and has no line.
        assert body.count(b"<tr>") == 3
        for secret in (b"secret", b"4711", b"<script"):
            assert secret not in body
        assert b"\r\nContent-Security-Policy: default-src 'none'; " in answer
        assert b"script-src" not in answer
        assert b"\r\nX-Content-Type-Options: nosniff\r\n" in answer
        assert await client.get("/", method="HEAD") == (200, b"")
        # It was made a moment ago for a client of version 1.
        newer = read(await client.answer(b"GET / HTTP/1.1\r\nHost: localhost\r\nPlugind-Status-Version: 2\r\n\r\n"))[1]
        assert (b"<th>dialing</th>" in body, b"<th>dialing</th>" in newer) == (True, False)
        assert f"<tr><th>CSIPlugin</th><td>3</td><td>2</td>{none}<td>1</td>{none * 4}</tr>\n".encode() in newer


async def test_each_request_of_the_status_socket_but_two_is_unknown_here() -> None:
    async with port() as client:
        for request in REQUESTS:
            method, path = request.split()
            if request not in ("GET /", "GET /metrics"):
                assert (await client.get(path, method=method))[0] == 404, request
        for method in ("POST", "DELETE", "PUT", "OPTIONS", "TRACE"):
            for path in ("/", "/metrics"):
                status, body = await client.get(path, method=method)
                assert (status, body) == (405, b'{"error": "only GET is answered here"}\n'), method
        with pytest.raises(trio.WouldBlock):
            client.asked.receive_nowait()


@pytest.mark.parametrize("path", ["/metrics", "/", "/plugins", "/nothing"])
async def test_a_request_for_another_host_is_refused_on_every_path(path: str) -> None:
    """DNS rebinding: a page of others whose name leads here is of the same origin, and would read the answer."""
    async with port() as client:
        for host in ("evil.example", "evil.example:80", "192.0.2.7", "localhost.evil.example", "", "a@localhost"):
            status, body = await client.get(path, host)
            assert status == 421, (path, host)
            assert b"--metrics-host" in body
            assert b"plugind_" not in body
        for host in ("localhost", "127.0.0.1", f"localhost:{client.address.port}", "[::1]:1"):
            assert (await client.get(path, host))[0] != 421, (path, host)


async def test_the_host_of_a_target_counts_and_a_request_without_one_is_refused() -> None:
    async with port(names=frozenset({"node1"})) as client:
        for line, host, status in (
            ("GET http://evil.example/metrics HTTP/1.1", "localhost", 421),
            ("GET http://localhost/metrics HTTP/1.1", "evil.example", 200),
            ("GET //evil.example/metrics HTTP/1.1", "localhost", 421),
            ("GET /metrics?@evil.example HTTP/1.1", "node1:80", 200),
            ("CONNECT evil.example:80 HTTP/1.1", "localhost", 404),
        ):
            assert read(await client.answer(f"{line}\r\nHost: {host}\r\n\r\n".encode()))[0] == status, line
        assert read(await client.answer(b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == 421
        assert read(await client.answer(b"GET /metrics HTTP/1.0\r\nHost: node1\r\n\r\n"))[0] == 200
        assert read(await client.answer(b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 400
        assert read(await client.answer(b"GET /metrics HTTP/1.1\r\nHost: node1\r\nHost: evil\r\n\r\n"))[0] == 400


_SECOND = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Second: 1\r\n\r\n"
_HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET + _SECOND, 200),
        (_HEAD + b"Connection: keep-alive\r\n\r\n" + _SECOND, 200),
        (_HEAD + b"Content-Length: %d\r\n\r\n" % len(_SECOND) + _SECOND, 413),
        (_HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND, 200),
        (_HEAD + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + _SECOND, 200),
    ],
)
async def test_a_connection_has_one_answer_whatever_is_hidden_behind_its_request(sent: bytes, status: int) -> None:
    """Request smuggling: nothing that follows a request is a second one, whoever counts its bytes in another way."""
    async with port() as client:
        assert read(await client.answer(sent))[0] == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (_HEAD + b"A: " + b"x" * 60_000 + b"\r\n\r\n", 431),
        (_HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 413),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4294967296\r\n\r\n" + b"x" * 200_000, 413),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000\r\n" + b"x" * 65_536, 413),
    ],
)
async def test_a_huge_request_and_a_body_are_refused_before_they_are_read(sent: bytes, status: int) -> None:
    async with port() as client:
        stream = await client.connect()
        async with stream, trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await stream.send_all(sent)
                except trio.BrokenResourceError:
                    return  # It was closed while we were sending.

            nursery.start_soon(send)
            assert read(await rest_of(stream))[0] == status
        assert read(await client.answer(GET))[0] == 200


@contextmanager
def many_descriptors(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, number)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_idle_connections_keep_no_scrape_out_and_few_descriptors() -> None:
    with many_descriptors(4096):
        async with port() as client, AsyncExitStack() as stack:
            before = len(os.listdir("/proc/self/fd"))
            idle = [await stack.enter_async_context(await client.connect()) for _ in range(1000)]
            assert read(await client.answer(GET))[0] == 200
            for stream in idle[: 1000 - LIMITS.unread]:
                assert await rest_of(stream) == b"", "closed by the server, the oldest first"
            assert len(os.listdir("/proc/self/fd")) <= before + 1000 + LIMITS.unread
            await idle[-1].send_all(GET)
            assert read(await rest_of(idle[-1]))[0] == 200


async def test_the_port_answers_without_descriptors_from_a_reserve_of_its_own() -> None:
    """Fault 46: a client that says nothing loses the descriptor of the reserve to one that waits."""
    async with port() as client, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await client.connect()) for _ in range(8)]
        with no_descriptor_left():
            await streams[7].send_all(GET)
            assert read(await rest_of(streams[7]))[0] == 200


async def test_metrics_are_made_once_a_second_for_all_who_ask(autojump_clock: MockClock) -> None:
    """Every local user can ask without a pause. To make the text costs milliseconds of the loop of the node."""
    made: list[float] = []

    async def metrics(_: HttpRequest) -> HttpResponse:
        await trio.sleep(0.25)
        made.append(trio.current_time())
        return HttpResponse(200, "text/plain", f"{trio.current_time()}\n".encode())

    api = PortApi(HostRule(loopback=True, names=frozenset()), metrics, dict, counts_page())
    got: list[bytes] = []

    async def ask() -> None:
        got.append((await api(HttpRequest("GET", "/metrics", {}, b"", host="localhost"))).body)

    for pause in (0.5, 0.5, 0.5, 0.5):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        await trio.sleep(pause)
    assert made == [0.25, 1.5]
    assert got == [b"0.25\n"] * 40 + [b"1.5\n"] * 40


async def test_a_port_that_cannot_be_had_is_an_error_of_the_configuration_and_one_that_is_taken_may_be_free_later() -> (
    None
):
    async with port() as client:
        with pytest.raises(
            SocketBusyError, match=r"^cannot serve metrics at 127\.0\.0\.1:\d+: Address already in use; "
        ):
            MetricsPort(client.address).open()
    with pytest.raises(SocketBusyError, match=r"at 192\.0\.2\.1:1: Cannot assign requested address; give another"):
        MetricsPort(TcpAddress("192.0.2.1", 1)).open()


def embedded(simulated: SimulatedNode, metrics: MetricsConfig, log: RecordingLogger) -> Supervisor:
    """A node on simulated ports, with a real port for metrics and without a status socket."""
    ports = Ports(
        simulated.network.dial,
        lambda _root: simulated.directory,
        lambda: MemoryProcesses(simulated.network),
        users=lambda _trust: simulated.users,
    )
    config = attrs.evolve(simulated.config, metrics=metrics)
    return NodeSupervisor(Node(config, {"Colour": FakeHandler()}, ports, StatusConfig(), log))


async def test_an_embedded_node_serves_its_metrics_until_it_ends_and_after_a_crash_of_its_status_actor(
    mock_clock: MockClock,
) -> None:
    # A simulated node needs virtual time. It passes as real time does, so that no deadline passes before TCP delivers.
    mock_clock.rate = 1.0
    log = RecordingLogger()
    simulated = SimulatedNode()
    async with simulated:
        await simulated.stop()
        simulated.plug("a.sock", FakePlugin("Colour", "red"))
        async with embedded(simulated, MetricsConfig("0"), log) as node:
            ((_, _, said),) = [event for event in log.events if event[1] == "metrics are served"]
            address = TcpAddress("127.0.0.1", int(str(said["address"]).rpartition(":")[2]))
            to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](1)
            with to_reconciler, asked:
                client = Client(address, asked)
                await trio.sleep(1)
                registered = b'plugind_plugins{plugin_type="Colour",state="registered"} 1.0'
                assert registered in (await client.get("/metrics"))[1].replace(
                    b'state="registered",plugin_type="Colour"', b'plugin_type="Colour",state="registered"'
                )
                crash_status(node)
                async with await client.connect() as waiting:
                    await waiting.send_all(GET)
                    status, body = read(await rest_of(waiting))
                assert status == 200
                assert b'plugind_actor_restarts_total{actor="status"} 1.0' in body
                await trio.sleep(1)
        with pytest.raises(OSError, match="all attempts to connect"):
            await client.connect()
        # The port is free again.
        async with embedded(simulated, MetricsConfig(str(address.port)), log):
            assert (await client.get("/metrics"))[0] == 200


def test_a_service_that_may_open_no_port_names_the_drop_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: TcpAddress) -> NoReturn:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(metrics_port, "listen", refused)
    with pytest.raises(
        ConfigError, match=r"; if .* with the drop-in of 'plugind install-unit --metrics', or give another"
    ):
        MetricsPort(TcpAddress("127.0.0.1", 9464)).open()


async def test_a_node_that_cannot_have_its_port_does_not_start_and_leaves_nothing() -> None:
    async with port() as client:
        simulated = SimulatedNode()
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot serve metrics at"):
                async with embedded(simulated, MetricsConfig(str(client.address.port)), RecordingLogger()):
                    raise AssertionError("it started")
