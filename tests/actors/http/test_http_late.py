"""Answers that take as long as the client stays, and users who may ask for some things alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from plugind.actors.http import server as http
from plugind.actors.http.on_trio import ask
from plugind.actors.http.places import AllPlaces, Connection, Place, Standing
from plugind.actors.http.server import Guests, HttpLimits, HttpRequest, HttpResponse, LateResponse, Send, json_response
from plugind.actors.io.client_streams import AcceptedStream, ClientWatch
from plugind.actors.io.unix_socket import Credentials, listen

LIMITS = HttpLimits(response=5.0)
POST = b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="it takes the identity of another user, which root may")


@attrs.define
class Late:
    """A handler whose answers are made when the test says so."""

    make: Callable[[], Awaitable[HttpResponse]] | None = None
    may_go_on: trio.Event = attrs.field(factory=trio.Event)
    #: What the server said of answers that were not delivered.
    left: list[bool] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, _: HttpRequest, /) -> HttpResponse:
        return LateResponse(make=self.make or self._make, undelivered=self._undelivered)

    async def _make(self) -> HttpResponse:
        await self.may_go_on.wait()
        return json_response(201, "made")

    def _undelivered(self, left: bool) -> None:
        self.left.append(left)
        self.ended.set()


@asynccontextmanager
async def serving(late: Late) -> AsyncIterator[trio.SocketStream]:
    """Yield a client that has sent its request, and whose answer is being made."""
    ours, theirs = map(trio.socket.from_stdlib_socket, socket.socketpair())
    with trio.fail_after(60), closing(ClientWatch()) as watch:
        async with trio.SocketStream(ours) as client, trio.open_nursery() as nursery:

            async def serve() -> None:
                await http.serve_connection(AcceptedStream(theirs), late, LIMITS, watch=watch)

            nursery.start_soon(watch.run)
            nursery.start_soon(serve)
            await client.send_all(POST)
            yield client
            nursery.cancel_scope.cancel()


async def whole(client: trio.SocketStream) -> bytes:
    return b"".join([piece async for piece in client])


async def test_an_answer_may_take_longer_than_others(autojump_clock: MockClock) -> None:
    """A caller who waits for devices waits for as long as it likes."""
    late = Late()
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.serve_connection, server, late, LIMITS)
        await client.send_all(POST)
        await trio.sleep(100 * LIMITS.response)
        late.may_go_on.set()
        assert b"".join([piece async for piece in client]).endswith(b'"made"\n')
    assert late.left == []


async def test_an_answer_is_not_made_for_a_client_that_has_left() -> None:
    late = Late()
    async with serving(late) as client:
        await client.aclose()
        await late.ended.wait()
        assert late.left == [True]


async def test_a_client_that_has_closed_only_its_half_gets_the_answer() -> None:
    """As ``nc -N`` and ``socat`` do. It has left once it closes the other half, too."""
    late = Late()
    async with serving(late) as client:
        await client.send_eof()
        await wait_all_tasks_blocked()
        late.may_go_on.set()
        assert (await whole(client)).startswith(b"HTTP/1.1 201 ")
    async with serving(another := Late()) as client:
        await client.send_eof()
        await wait_all_tasks_blocked()
        await client.aclose()
        await another.ended.wait()
    assert (late.left, another.left) == ([], [True])


async def test_what_comes_after_the_request_is_ignored_as_long_as_it_is_not_too_much() -> None:
    """A second request on the connection is not answered, as elsewhere: each answer says ``Connection: close``."""
    late = Late()
    async with serving(late) as client:
        await client.send_all(POST)
        await wait_all_tasks_blocked()
        late.may_go_on.set()
        assert (await whole(client)).count(b"HTTP/1.1 ") == 1
    async with serving(flooded := Late()) as client:
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"x" * (1 << 22))
        await flooded.ended.wait()
    assert (late.left, flooded.left) == ([], [True])


async def test_an_answer_that_cannot_be_written_is_reported() -> None:
    """The client has left between the making of the answer and its writing."""
    there = trio.Event()

    async def make() -> HttpResponse:
        await there.wait()
        client.socket.close()
        return json_response(201, "made")

    async with serving(late := Late(make)) as client:
        there.set()
        await late.ended.wait()
    assert late.left == [True]


async def test_a_server_that_ends_says_that_it_was_not_the_client() -> None:
    late = Late()
    async with serving(late):
        await wait_all_tasks_blocked()
    assert late.left == [False]


async def test_an_endless_answer_is_undelivered_when_its_client_leaves() -> None:
    """So a lease that belongs to a connection ends with it."""

    async def write(send: Send) -> None:
        await send(b"{}\n")
        await trio.sleep_forever()

    async def make() -> HttpResponse:
        return HttpResponse(201, "application/jsonl", write=write, endless=True)

    late = Late(make)
    async with serving(late) as client:
        received = b""
        while b"{}" not in received:
            received += await client.receive_some()
        assert late.left == []
        await client.aclose()
        await late.ended.wait()
        assert late.left == [True]


# --- guests -----------------------------------------------------------------------------------------------------------


def _places(limit: int) -> AllPlaces:
    return AllPlaces(lambda _: limit)


def _connection(standing: Standing, *, reserved: bool = False) -> Connection:
    ours, theirs = socket.socketpair()
    theirs.close()
    stream = AcceptedStream(trio.socket.from_stdlib_socket(ours))
    return Connection(stream, Credentials(1, 1, 1), standing, reserved)


@asynccontextmanager
async def connections(*standings: Standing) -> AsyncIterator[list[Connection]]:
    made = [_connection(standing) for standing in standings]
    try:
        yield made
    finally:
        for connection in made:
            await connection.stream.aclose()


async def test_other_users_have_half_of_the_places() -> None:
    """Fault 93: they cannot keep the user of the daemon out."""
    places = _places(4)
    guest, stranger, own = Standing.GUEST, Standing.STRANGER, Standing.ALLOWED
    async with connections(guest, stranger, guest, own, own, own) as made:
        places.take(made[0], Place.LEASE)
        places.take(made[1], Place.LEASE)
        why = "2 leases of other users are open, which is the limit for them"
        assert places.why_none(made[2], Place.LEASE) == why
        assert places.why_none(made[3], Place.LEASE) is None
        places.take(made[3], Place.LEASE)
        places.take(made[4], Place.LEASE)
        assert places.why_none(made[5], Place.LEASE) == "4 leases are open, which is the limit"
        places.leave(made[0])
        assert places.why_none(made[2], Place.LEASE) is None


async def test_unread_requests_of_other_users_push_out_their_own_alone() -> None:
    places = _places(4)
    guest, own = Standing.GUEST, Standing.ALLOWED
    async with connections(own, guest, guest, guest) as made:
        for connection in made:
            places.take(connection, Place.UNREAD)
        assert [each.scope.cancel_called for each in made] == [False, True, False, False]


async def test_the_answer_to_a_request_without_a_place_is_made_by_whoever_serves(tmp_path: Path) -> None:
    """Callers of leases are told in another way than readers of streams. The one that waits goes on."""
    late, path = Late(), str(tmp_path / "s")
    listener = listen(path)
    limits = attrs.evolve(LIMITS, leases=1)

    async def status_of() -> int:
        async with ask(path, "POST", "/wait") as reply:
            return reply.status

    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            own = frozenset({os.geteuid()})
            await http.serve(
                listener,
                late,
                limits,
                allowed=own,
                place=lambda _: Place.LEASE,
                full=lambda _, why: http.problem(429, why),
            )

        nursery.start_soon(serve)
        with trio.fail_after(60):
            async with trio.open_nursery() as asking:
                statuses: list[int] = []

                async def note() -> None:
                    statuses.append(await status_of())
                    late.may_go_on.set()

                asking.start_soon(note)
                asking.start_soon(note)
        listener.close()
    assert sorted(statuses) == [201, 429]


def _only_wait(request: HttpRequest) -> bool:
    return request.path == "/wait"


@pytest.mark.parametrize(
    ("guests", "path", "status"),
    [
        (Guests(), "/wait", 403),
        (Guests(frozenset({65534}), may=_only_wait), "/wait", 200),
        (Guests(frozenset({65534}), may=_only_wait, refusal="wait only"), "/plugins", 403),
        (Guests(group=65534, may=_only_wait), "/wait", 200),
        (Guests(group=4711, may=_only_wait), "/wait", 200),
        (Guests(group=4712, may=_only_wait), "/wait", 403),
    ],
)
@root_only
async def test_guests_may_ask_for_some_things(guests: Guests, path: str, status: int) -> None:
    """They are known by user, by group, and by further groups (SO_PEERGROUPS)."""
    # The directories of pytest are for one user.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        answer = await _answer_to_nobody(os.path.join(directory, "s"), (guests,), path)
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    if status == 403 and path == "/plugins":
        assert "wait only" in answer


def _only_plugins(request: HttpRequest) -> bool:
    return request.path == "/plugins"


@pytest.mark.parametrize(
    ("path", "status", "said"), [("/wait", 200, "answered"), ("/plugins", 200, "answered"), ("/x", 403, "wait only")]
)
@root_only
async def test_who_is_of_two_kinds_may_ask_what_either_may(path: str, status: int, said: str) -> None:
    kinds = (
        Guests(group=4711, may=_only_wait, refusal="wait only"),
        Guests(group=4712, may=lambda _: True, refusal="everything"),
        Guests(frozenset({65534}), may=_only_plugins, refusal="plugins only"),
    )
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        answer = await _answer_to_nobody(os.path.join(directory, "s"), kinds, path)
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert said in answer


async def _answer_to_nobody(socket_path: str, guests: Sequence[Guests], path: str) -> str:
    listener = listen(socket_path, mode=0o666)

    async def handler(_: HttpRequest) -> HttpResponse:
        return json_response(200, "answered")

    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await http.serve(listener, handler, LIMITS, allowed=frozenset({0}), guests=guests)

        nursery.start_soon(serve)
        with trio.fail_after(60):
            answer = await trio.to_thread.run_sync(_ask_as_nobody, socket_path, path)
        listener.close()
    return answer


def _ask_as_nobody(socket_path: str, path: str) -> str:
    code = (
        "import os, socket, sys; os.setgroups([4711]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'.encode());"
        "print(b''.join(iter(lambda: s.recv(4096), b'')).decode())"
    )
    command = [sys.executable, "-S", "-c", code, socket_path, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
