"""The two clients of a daemon, against a server that answers as it is told: the same values and the same errors."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from plugind.actors.client.awaited import NOT_REGISTERED
from plugind.client import (
    Client,
    DaemonError,
    HandlerAsk,
    Health,
    Instance,
    Lease,
    NoDaemonError,
    NotReadyError,
    PluginStatus,
    ResourceState,
    ResourceStatus,
    RetryAnswer,
    RoleTold,
    Serving,
    SyncClient,
    SyncHandlerAsk,
    SyncServing,
)
from plugind.protocol.status.json import plugin_to_json
from plugind.tests.actors.console.lease_server import LeaseServer, answer, lease_server
from plugind.tests.protocol.client.test_status_values import GPU, NOW, PLUGIN, resource_json

T = TypeVar("T")

PATH = "/nowhere/status.sock"
GONE = resource_json(ResourceStatus("vendor.com/nic", ResourceState.GONE, NOW, "its plugin has left"))


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nTransfer-Encoding: chunked\r\nHeartbeat: 5\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def line(**changes: Any) -> bytes:
    return json.dumps({**plugin_to_json(PLUGIN, NOW, NOW), **changes}).encode() + b"\n"


def amount(healthy: int, state: str = "listed", reason: str | None = None) -> bytes:
    said = {"resource": "vendor.com/gpu", "state": state, "reason": reason, "capacity": 2, "allocatable": healthy}
    return json.dumps(said).encode() + b"\n"


class OfSync:
    """The synchronous client, in a thread."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def called(*args: Any, **more: Any) -> Any:
            return await trio.to_thread.run_sync(lambda: getattr(self._client, name)(*args, **more))

        return called

    async def watched(self) -> list[PluginStatus]:
        return await trio.to_thread.run_sync(_all, self._client.watch())

    async def leases_watched(self) -> list[Lease]:
        return await trio.to_thread.run_sync(_all, self._client.watch_leases())

    async def resources_watched(self) -> list[ResourceStatus]:
        return await trio.to_thread.run_sync(_all, self._client.watch_devices())

    async def served(self, held: list[Instance]) -> list[str]:
        return await trio.to_thread.run_sync(_served, self._client.serve("Sensor", held))


def _served(block: AbstractContextManager[SyncServing]) -> list[str]:
    told = []
    with block as asks:
        for ask in asks:
            match ask:
                case SyncHandlerAsk(kind="validate"):
                    told.append(f"refused {ask.instance.name} in {ask.seconds}: {ask.refuse('too old', cause='old')}")
                case SyncHandlerAsk():
                    told.append(f"{ask.kind}: {ask.done()} {asks.report(ask.instance.id, Health.HEALTHY)}")
                case RoleTold():
                    told.append(f"active: {ask.active}")
    return told


def _all(stream: AbstractContextManager[Iterable[T]]) -> list[T]:
    with stream as found:
        return [*found]


class OfTrio:
    """The asynchronous client on Trio."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def watched(self) -> list[PluginStatus]:
        return await _all_async(self._client.watch())

    async def leases_watched(self) -> list[Lease]:
        return await _all_async(self._client.watch_leases())

    async def resources_watched(self) -> list[ResourceStatus]:
        return await _all_async(self._client.watch_devices())

    async def served(self, held: list[Instance]) -> list[str]:
        return await _served_async(self._client.serve("Sensor", held))


class OfAsyncio:
    """The asynchronous client on asyncio, in a thread; a block of it is one of a synchronous program."""

    def __init__(self, client: Client, portal: BlockingPortal) -> None:
        self._client = client
        self._portal = portal

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._called, getattr(self._client, name))

    async def _called(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        found = await trio.to_thread.run_sync(self._portal.call, partial(method, *args, **more))
        if isinstance(found, AbstractAsyncContextManager):
            return self._portal.wrap_async_context_manager(found)
        return found

    async def watched(self) -> list[PluginStatus]:
        return await trio.to_thread.run_sync(self._portal.call, _all_async, self._client.watch())

    async def leases_watched(self) -> list[Lease]:
        return await trio.to_thread.run_sync(self._portal.call, _all_async, self._client.watch_leases())

    async def resources_watched(self) -> list[ResourceStatus]:
        return await trio.to_thread.run_sync(self._portal.call, _all_async, self._client.watch_devices())

    async def served(self, held: list[Instance]) -> list[str]:
        return await trio.to_thread.run_sync(self._portal.call, _served_async, self._client.serve("Sensor", held))


async def _all_async(stream: AbstractAsyncContextManager[AsyncIterable[T]]) -> list[T]:
    async with stream as found:
        return [element async for element in found]


async def _served_async(block: AbstractAsyncContextManager[Serving]) -> list[str]:
    told = []
    async with block as asks:
        async for ask in asks:
            match ask:
                case HandlerAsk(kind="validate"):
                    taken = await ask.refuse("too old", cause="old")
                    told.append(f"refused {ask.instance.name} in {ask.seconds}: {taken}")
                case HandlerAsk():
                    told.append(f"{ask.kind}: {await ask.done()} {await asks.report(ask.instance.id, Health.HEALTHY)}")
                case RoleTold():
                    told.append(f"active: {ask.active}")
    return told


Make = Callable[..., Any]


@pytest.fixture(params=["sync", "trio", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Return what makes a client: the tests are on Trio, and use each client in the same way."""

    def made(path: str | Path, timeout: float = 5.0) -> Any:
        match request.param:
            case "sync":
                return OfSync(SyncClient(str(path), timeout=timeout))
            case "trio":
                return OfTrio(Client(str(path), timeout=timeout))
            case _:
                return OfAsyncio(Client(str(path), timeout=timeout), opened.enter_context(start_blocking_portal()))

    with ExitStack() as opened:
        yield made


@asynccontextmanager
async def asking(
    make: Make, directory: Path, *answers: bytes, hold: bool = False
) -> AsyncIterator[tuple[Any, LeaseServer]]:
    with lease_server(directory, *answers, hold=hold) as server:
        yield make(server.path), server


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_the_plugins_are_listed(make: Make, tmp_path: Path) -> None:
    body = b"[" + line() + b"]"
    async with asking(make, tmp_path, chunked(body[:100], body[100:])) as (client, server):
        (plugin,) = await client.list("a b", type="CSIPlugin")
    assert (plugin.name, plugin.state, plugin.since) == ("red.example.com", "registered", NOW - 4.25)
    assert server.requests[0].line == "GET /plugins?name=a+b&type=CSIPlugin HTTP/1.1"


async def test_a_plugin_is_described_by_a_path_that_is_not_utf_8(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, answer(200, [plugin_to_json(PLUGIN, NOW, NOW)])) as (client, server):
        (plugin,) = await client.describe("/r/\udcff.sock")
    assert plugin.pid == 991
    assert server.requests[0].line == "GET /plugins/%2Fr%2F%FF.sock HTTP/1.1"


async def test_the_devices_are_listed(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, answer(200, {"resources": [resource_json(GPU)]})) as (client, server):
        (gpu,) = await client.devices("vendor.com/gpu")
    assert [(device.id, device.healthy) for device in gpu.devices()] == [("GPU-0", True), ("GPU-1", False)]
    assert server.requests[0].line == "GET /v1/devices?resource=vendor.com%2Fgpu HTTP/1.1"


@pytest.mark.parametrize("facts", [{}, {"facts": True}])
async def test_a_plugin_is_tried_now_or_asked_for_facts(make: Make, facts: dict[str, bool], tmp_path: Path) -> None:
    tried = {"socket": "/r/a.sock", "tried": True, "why": "tried now"}
    async with asking(make, tmp_path, answer(200, {"answers": [tried]}), answer(200, {})) as (client, server):
        assert await client.retry("red", **facts) == (RetryAnswer("/r/a.sock", tried=True, why="tried now"),)
        with pytest.raises(DaemonError, match=r"cannot be understood: it is no list"):
            await client.retry("red", **facts)
    assert (server.requests[0].line, server.requests[0].body) == ("POST /retry HTTP/1.1", {"target": "red"} | facts)


async def test_a_watch_yields_each_line_until_the_daemon_stops(make: Make, tmp_path: Path) -> None:
    """An empty line is a heartbeat. A line may come in pieces."""
    lines = line() + b"\n" + line(state="gone")
    async with asking(make, tmp_path, chunked(lines[:30], lines[30:-3], lines[-3:])) as (client, server):
        assert [plugin.state for plugin in await client.watched()] == ["registered", "gone"]
    assert server.requests[0].line == "GET /watch?heartbeat=1.25 HTTP/1.1"


async def test_a_watch_that_ends_amid_the_stream_is_no_end_of_the_daemon(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, chunked(line(), end=False)) as (client, _):
        with pytest.raises(NoDaemonError, match=r"does not answer as it should: it closed the connection"):
            await client.watched()


async def test_a_reader_that_is_too_slow_is_told(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, chunked(b'{"error": "too slow: watch again"}\n')) as (client, _):
        with pytest.raises(DaemonError, match=r"too slow: watch again"):
            await client.watched()


async def test_a_watch_of_devices_yields_each_resource_as_it_is_then_and_one_that_has_gone(
    make: Make, tmp_path: Path
) -> None:
    """Of one that has gone between its line and the request, only the last line is shown."""
    gpu, nic = (
        {"time": GONE["since"], **resource_json(GPU), "resource": name} for name in (GPU.name, "vendor.com/nic")
    )
    del gpu["devices"], nic["devices"]  # The stream is without them.
    lines = [json.dumps(each).encode() + b"\n" for each in (gpu, nic, GONE)]
    shown = (answer(200, {"resources": [resource_json(GPU)]}), answer(404, {"error": "no device plugin has it"}))
    async with asking(make, tmp_path, chunked(*lines), *shown) as (client, server):
        found = await client.resources_watched()
    assert [(each.name, each.state, len([*each.devices()])) for each in found] == [
        ("vendor.com/gpu", "listed", 2),
        ("vendor.com/nic", "gone", 0),
    ]
    assert [request.line.split()[1] for request in server.requests] == [
        "/v1/devices/watch?heartbeat=1.25",
        "/v1/devices?resource=vendor.com%2Fgpu",
        "/v1/devices?resource=vendor.com%2Fnic",
    ]


async def test_a_watch_of_devices_whose_request_is_refused_otherwise_raises_that(make: Make, tmp_path: Path) -> None:
    stream = chunked(json.dumps(resource_json(GPU)).encode() + b"\n")
    async with asking(make, tmp_path, stream, answer(503, {"error": "no answer"})) as (client, _):
        with pytest.raises(DaemonError, match="no answer"):
            await client.resources_watched()


async def test_a_handler_answers_what_it_is_asked_until_the_daemon_stops(make: Make, tmp_path: Path) -> None:
    """A ping is answered at the next look, and what is new is ignored."""
    plugin = {"instance": "e-1", "name": "a", "socket": "/a.sock"}
    stream = chunked(
        b'{"hello": {"session": "S", "heartbeat": 15.0}}\n',
        b'\n{"ask": "ping", "id": 1}\n{"weather": "fine"}\n',
        json.dumps({"ask": "validate", "id": 2, "seconds": 60.0, "plugin": plugin}).encode() + b"\n",
        json.dumps({"ask": "follow", "id": 3, "plugin": plugin}).encode() + b"\n",
        b'{"role": {"instance": "e-1", "active": true}}\n',
    )
    taken, dropped = answer(200, {"taken": 1, "dropped": 0}), answer(200, {"taken": 0, "dropped": 1})
    answers = (stream, answer(200, {"held": 1}), taken, taken, dropped, taken)
    async with asking(make, tmp_path, *answers) as (client, server):
        told = await client.served([Instance("e-1", "a", "/a.sock")])
    assert told == ["refused a in 60.0: True", "follow: False True", "active: True"]
    path = "POST /v1/handlers/Sensor"
    assert [(request.line.removesuffix(" HTTP/1.1"), request.body) for request in server.requests[1:]] == [
        (f"{path}/held", {"session": "S", "held": [plugin], "more": False}),
        (f"{path}/answers", {"session": "S", "answers": [{"id": 1, "error": None, "cause": None}]}),
        (f"{path}/answers", {"session": "S", "answers": [{"id": 2, "error": "too old", "cause": "old"}]}),
        (f"{path}/answers", {"session": "S", "answers": [{"id": 3, "error": None, "cause": None}]}),
        (
            f"{path}/health",
            {"session": "S", "plugins": [{"instance": "e-1", "reason": "", "warnings": [], "health": "healthy"}]},
        ),
    ]


async def test_a_handler_whose_daemon_is_silent_for_three_heartbeats_is_told(make: Make, tmp_path: Path) -> None:
    stream = chunked(b'{"hello": {"session": "S", "heartbeat": 0.05}}\n', end=False)
    async with asking(make, tmp_path, stream, answer(200, {"held": 0}), hold=True) as (client, _):
        with pytest.raises(NoDaemonError, match=r"within 0.15 s"):
            await client.served([])


def test_another_thread_closes_a_session_and_the_iteration_is_over(tmp_path: Path) -> None:
    stream = chunked(b'{"hello": {"session": "S", "heartbeat": 15.0}}\n', end=False)
    with (
        lease_server(tmp_path, stream, answer(200, {"held": 0}), hold=True) as server,
        SyncClient(str(server.path)).serve("Sensor") as asks,
    ):
        threading.Timer(0.1, asks.close).start()
        assert [*asks] == []


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_wait_ends_with_the_status_of_the_plugin_that_is_registered(make: Make, tmp_path: Path) -> None:
    """Also if the daemon went away before: the next stream tells all anew."""
    first = chunked(line(state="dialing"), b"\n", line(state="gone"))
    second = chunked(line(name="blue.example.com"), line(type="DRAPlugin", socket="/r/dra.sock"), line(), end=False)
    async with asking(make, tmp_path, first, second) as (client, server):
        plugin = await client.wait_for("red.example.com", type="CSIPlugin")
    assert (plugin.name, plugin.type, plugin.socket) == ("red.example.com", "CSIPlugin", "/r/red.sock")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("name", "plugin_type", "why"),
    [
        ("red.example.com", None, "is waiting (dial: refused\\x1b)"),
        ("no.example.com", None, "is not known: no socket has given this name"),
        ("red.example.com", "DRAPlugin", "is not known: no socket has given this name and the type DRAPlugin"),
        # Another plugin has taken the place of the one that was registered.
        ("blue.example.com", None, "is not known: no socket has given this name"),
    ],
)
async def test_a_wait_that_is_too_long_says_what_is_missing(
    make: Make, tmp_path: Path, name: str, plugin_type: str | None, why: str
) -> None:
    earlier = line(name="blue.example.com", state="dialing")
    lines = chunked(earlier, line(state="waiting", cause="dial: refused\x1b"), b"\n", end=False)
    async with asking(make, tmp_path, lines, hold=True) as (client, _):
        with pytest.raises(NotReadyError) as caught:
            await client.wait_for(name, type=plugin_type, timeout=2)
    assert str(caught.value) == f"within 2 s: {name} {why}"


async def test_a_wait_for_devices_ends_when_there_are_enough(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, chunked(amount(1), b"\n", amount(2), end=False)) as (client, server):
        await client.wait_for_devices({"vendor.com/gpu": 2})
    assert server.requests[0].line == "GET /v1/devices/watch?heartbeat=1.25 HTTP/1.1"


REFUSED = {"resource": "vendor.com/gpu", "endpoint": "gpu.sock", "pid": 812, "reason": "no\nname", "age": 12.3}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (amount(1, "lost", "the stream ended\n"), "has 1 of 2 healthy devices: it is lost: the stream ended\\n"),
        (
            amount(1),
            "has 1 of 2 healthy devices: it lists 2 devices, of which 1 is healthy, and not GPU-1 (Unhealthy)",
        ),
        (amount(0, reason="no node matches /dev/a"), "has 0 of 2 healthy devices: no node matches /dev/a"),
        (amount(0, "gone"), f"has 0 of 2 healthy devices: {NOT_REGISTERED}"),
        (b"", f"has 0 of 2 healthy devices: {NOT_REGISTERED}"),
    ],
)
@pytest.mark.parametrize("refused", [[], [REFUSED]])
async def test_a_wait_for_devices_says_what_the_command_says(
    make: Make, tmp_path: Path, said: bytes, why: str, refused: list[object]
) -> None:
    lines = chunked(said + b"\n", end=False)
    shown = answer(200, {"resources": [resource_json(GPU)]})
    async with asking(make, tmp_path, lines, answer(200, refused), shown, hold=True) as (client, server):
        with pytest.raises(NotReadyError) as caught:
            await client.wait_for_devices({"vendor.com/gpu": 2}, timeout=2)
    also = r"; the last Register call for it, by pid 812, was refused 12 s ago: no\nname" if refused else ""
    assert str(caught.value) == f"within 2 s: vendor.com/gpu {why}{also}"
    asked = [request.line for request in server.requests[1:]]
    assert asked == ["GET /v1/devices/refused HTTP/1.1", "GET /v1/devices HTTP/1.1"]


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_no_daemon_is_an_error_that_says_what_to_do(make: Make) -> None:
    with pytest.raises(NoDaemonError) as caught:
        await make(PATH).list()
    assert str(caught.value) == (
        f"no daemon answers at {PATH} (No such file or directory); start one with 'plugind run', give the path of its"
        " status socket, or name it with PLUGIND_STATUS"
    )
    assert caught.value.code == 2


async def test_a_daemon_that_says_nothing_is_given_up_after_the_timeout(make: Make, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "status.sock"))
        listener.listen()
        client = make(tmp_path / "status.sock", 0.1)
        with pytest.raises(NoDaemonError, match=r"within 0.1 s\); a greater timeout gives it more time"):
            await client.list()
        with pytest.raises(NoDaemonError, match=r"within 0.1 s"):
            await client.watched()


async def test_a_refusal_has_the_daemons_words_and_the_status(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, answer(404, {"error": "no plugin has the name a\n"})) as (client, _):
        with pytest.raises(DaemonError, match=r"^no plugin has the name a\\n$") as caught:
            await client.describe("a")
        assert caught.value.status == 404
        with pytest.raises(DaemonError) as caught:
            await client.watched()
        assert caught.value.status == 404


@pytest.mark.parametrize("body", [b"[1", b"{}", b'[{"socket": 1}]', b"[" * 100_000])
async def test_an_answer_that_cannot_be_understood_is_an_error_of_the_client(
    make: Make, tmp_path: Path, body: bytes
) -> None:
    async with asking(make, tmp_path, chunked(body)) as (client, _):
        with pytest.raises(DaemonError, match=r"^the daemon's answer cannot be understood: "):
            await client.list()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nContent-Length: 9\r\n\r\n[",
        chunked(b"[", end=False),
        chunked(b"[")[:-4],
    ],
)
async def test_an_answer_that_is_not_whole_is_no_daemon(make: Make, tmp_path: Path, sent: bytes) -> None:
    async with asking(make, tmp_path, sent) as (client, _):
        with pytest.raises(NoDaemonError):
            await client.list()


# --- what is loaded ---------------------------------------------------------------------------------------------------


def loaded(code: str, *names: str) -> list[str]:
    code = f"{code}\nimport sys\nprint(*sorted({{*{names!r}}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_synchronous_client_loads_nothing_heavy() -> None:
    heavy = ("anyio", "trio", "rich", "email", "http", "ssl", "sqlite3", "asyncio", "google", "grpclib", "argparse")
    assert loaded("from plugind.client import SyncClient", *heavy) == []


def test_the_asynchronous_client_loads_neither_trio_nor_asyncio() -> None:
    """The one on which the program runs is there already."""
    assert loaded("from plugind.client import *", "anyio", "trio", "asyncio") == []


def test_the_page_loads_trio_alone() -> None:
    assert loaded("import plugind.actors.console.page", "anyio", "trio", "asyncio") == ["trio"]
