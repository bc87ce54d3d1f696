"""Leases on the status socket: each route, who may use it, and callers who leave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    MockClock,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from plugind.actors.http.server import HttpLimits, HttpRequest, HttpResponse, LateResponse, serve_connection
from plugind.actors.io.unix_socket import Credentials
from plugind.actors.status.api import REQUESTS, Api, Memory, StatusConfig
from plugind.actors.status.devices_api import DevicesApi
from plugind.actors.status.leases_api import DEADLINE, WRITING, LeasesApi
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import BIND
from plugind.protocol.leases.drains import DrainTarget
from plugind.protocol.leases.leases_json import drain_from_json, failure_from_json, lease_from_json
from plugind.protocol.leases.replies import Problem
from plugind.protocol.leases.values import LeaseState, ProcessIdentity, ProcessOwner, TimeOwner
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.tests.actors.status.bench import body_of
from plugind.tests.actors.status.lease_book import ANSWER, BookActor
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import GPU

ALICE, BOB = 1000, 1001
NONE: dict[str, object] = {"kind": "none"}


def wall() -> float:
    return trio.current_time() + 1000.0


def identity(pid: int) -> ProcessIdentity | None:
    if pid == 13:
        raise OSError(24, "Too many open files")
    return None if pid == 12 else ProcessIdentity(pid, 5, "boot")


def peer(uid: int = ALICE, pid: int = 991) -> Credentials:
    return Credentials(pid, uid, uid)


@attrs.define
class Client:
    """A connection on which a request was sent."""

    stream: trio.StapledStream[MemorySendStream, MemoryReceiveStream]
    received: bytes = b""
    #: The other end of the connection.
    served: trio.StapledStream[MemorySendStream, MemoryReceiveStream] | None = None

    async def answer(self) -> tuple[int, Any]:
        """Return status and body of an answer that is whole."""
        with trio.fail_after(60):
            self.received += b"".join([piece async for piece in self.stream])
        status, body = self._parsed()
        return status, json.loads(body)

    async def text(self) -> tuple[int, str]:
        """Return status and body of an answer that is text."""
        with trio.fail_after(60):
            self.received += b"".join([piece async for piece in self.stream])
        assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in self.received
        status, body = self._parsed()
        return status, body.decode()

    async def lines(self) -> list[Any]:
        """Return the lines of a stream that have come."""
        with trio.move_on_after(1.0):
            while piece := await self.stream.receive_some():
                self.received += piece
        status, body = self._parsed()
        assert status in (200, 201, 202)
        return [json.loads(line) for line in body.splitlines() if line]

    def _parsed(self) -> tuple[int, bytes]:
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(self.received)
        head = connection.next_event()
        assert isinstance(head, h11.Response), self.received
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
        return head.status_code, body


@attrs.define
class Daemon:
    """The routes, with a lease actor."""

    api: Api
    leases: BookActor
    nursery: trio.Nursery

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        by: Credentials | None = None,
        accept: str = "*/*",
        **query: str,
    ) -> Client:
        """Send a request on a connection of its own."""
        raw = b"" if body is None else json.dumps(body).encode()
        target = path + ("?" + "&".join(f"{key}={text}" for key, text in query.items()) if query else "")
        headers = f"Host: x\r\nAccept: {accept}\r\nContent-Length: {len(raw)}"
        head = f"{method} {target} HTTP/1.1\r\n{headers}\r\n\r\n".encode()
        ours, theirs = memory_stream_pair()

        async def serve() -> None:
            await serve_connection(theirs, self.api, HttpLimits(), peer=by or peer())

        self.nursery.start_soon(serve)
        await ours.send_all(head + raw)
        return Client(ours, served=theirs)

    async def ask(
        self, method: str, path: str, body: object = None, *, by: Credentials | None = None, **query: str
    ) -> tuple[int, Any]:
        return await (await self.send(method, path, body, by=by, **query)).answer()

    async def text(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Send a request that accepts text alone; return status and text."""
        return await (await self.send(method, path, body, accept="text/plain")).text()

    async def post(self, *, by: Credentials | None = None, **changes: object) -> tuple[int, Any]:
        return await self.ask("POST", "/v1/leases", {"resources": {GPU: 1}, "owner": NONE} | changes, by=by)

    async def wait(self, query: str = "", *, by: Credentials | None = None, **changes: object) -> Client:
        """Ask for a lease, and return while that is under way."""
        body = {"resources": {GPU: 1}, "owner": NONE, "wait": 3600} | changes
        client = await self.send("POST", f"/v1/leases{query}", body, by=by)
        await wait_all_tasks_blocked()
        return client


@asynccontextmanager
async def running(*gpus: str, leases: bool = True) -> AsyncIterator[Daemon]:
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](2)
    with to_reconciler, asked:
        async with trio.open_nursery() as nursery:
            actor = BookActor(*gpus)
            about = LeasesApi(wall, actor if leases else None, identity, lambda process: process.pid != 12, lambda: 0)
            config = StatusConfig(wall=wall)
            api = Api(config, Memory(), to_reconciler, tuple, DevicesApi(wall), about)
            yield Daemon(api, actor, nursery)
            nursery.cancel_scope.cancel()


#: When the tests begin, and another moment.
STARTED, UNTIL = "1970-01-01T00:16:40.000Z", "1970-01-01T00:33:20.000Z"
RELEASED = {"released": ["train"], "unknown": [], "unwritten": None}


async def test_a_lease_is_given_shown_and_released(autojump_clock: MockClock) -> None:
    async with running("GPU-0", "GPU-1") as daemon:
        status, given = await daemon.post(id="train", labels={"job": "7"})
        assert (status, given["state"], given["devices"]) == (201, "held", {GPU: ["GPU-0"]})
        assert lease_from_json(given).answer == ANSWER
        assert (given["uid"], given["created"]) == (ALICE, "1970-01-01T00:16:40.000Z")
        assert await daemon.ask("GET", "/v1/leases/train") == (200, given)
        assert not any(isinstance(message, m.LeasesAsked) for message in daemon.leases.messages), (
            "it alone was asked for"
        )
        _, all_leases = await daemon.ask("GET", "/v1/leases")
        assert (all_leases["withheld"], all_leases["problem"], all_leases["leases"]) == (None, None, [given])
        assert await daemon.ask("DELETE", "/v1/leases/train") == (200, RELEASED)
        assert (await daemon.ask("GET", "/v1/leases"))[1]["leases"] == []
        status, gone = await daemon.ask("GET", "/v1/leases/train")
        assert (status, gone["problem"], gone["error"]) == (404, "unknown", "there is no lease train")
        assert (await daemon.ask("DELETE", "/v1/leases/train"))[0] == 404


async def test_a_client_that_accepts_text_alone_gets_variables_lines_and_reasons(autojump_clock: MockClock) -> None:
    async with running("GPU-0", "GPU 1") as daemon:
        body = {"resources": {GPU: 1}, "owner": NONE, "id": "train", "ids": ["GPU-0"]}
        given = await daemon.text("POST", "/v1/leases", body)
        assert given == (
            201,
            'VISIBLE="all"\nPLUGIND_LEASE="train"\nPLUGIND_DEVICES="vendor.com/gpu=GPU-0"\nPLUGIND_NODES=""\n',
        )
        assert await daemon.text("POST", "/v1/leases", body) == given
        odd = {**body, "id": "a b none 0", "ids": ["GPU 1"], "owner": {"kind": "time", "seconds": 60}}
        assert (await daemon.text("POST", "/v1/leases", odd))[0] == 201
        assert await daemon.text("GET", "/v1/leases") == (
            200,
            "a\\x20b\\x20none\\x200 held time 1000\ntrain held none 1000\n",
        )
        assert await daemon.text("GET", "/v1/leases?prefix=t") == (200, "train held none 1000\n")
        why = "requested number of devices unavailable for vendor.com/gpu. Requested: 1, Available: 0"
        text = f"{why} (GPU-0 is leased by train)\n"
        assert await daemon.text("POST", "/v1/leases", {**body, "id": "b"}) == (409, text)
        waiting = await daemon.send("POST", "/v1/leases?progress", {**body, "id": "b", "wait": 60}, accept="text/plain")
        await wait_all_tasks_blocked()
        assert await daemon.text("DELETE", "/v1/leases/train") == (200, "")
        assert await waiting.text() == (201, given[1].replace("train", "b"))
        assert await daemon.text("DELETE", "/v1/leases/train") == (404, "there is no lease train\n")
        assert await daemon.text("GET", "/none%0a") == (404, "there is no /none%0a\n")
        assert await daemon.text("PUT", "/v1/leases") == (405, "only GET, POST is answered here\n")


@pytest.mark.parametrize("accept", ["*/*", "application/json, text/plain, */*", "text/html"])
async def test_a_client_that_accepts_more_than_text_gets_json(accept: str, autojump_clock: MockClock) -> None:
    async with running() as daemon:
        assert (await (await daemon.send("GET", "/v1/leases", accept=accept)).answer())[1]["leases"] == []


@pytest.mark.parametrize("named", [True, False])
async def test_a_lease_whose_answer_is_no_text_ends_unless_it_has_a_name(
    named: bool, autojump_clock: MockClock
) -> None:
    async with running("GPU\n0") as daemon:
        body = {"resources": {GPU: 1}, "owner": NONE, **({"id": "train"} if named else {})}
        status, why = await daemon.text("POST", "/v1/leases", body)
        has = "PLUGIND_DEVICES has a line end or another control character, which systemd refuses: use -o json"
        assert (status, why[: len(has)]) == (502, has)
        assert why.endswith("the lease train was kept\n" if named else " was released\n")
        assert [lease.id for lease in daemon.leases.leases] == (["train"] if named else [])


async def test_a_failure_says_why_and_who_holds_the_devices(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        await daemon.post(id="train")
        status, failed = await daemon.post()
        failure = failure_from_json(failed)
        text = "requested number of devices unavailable for vendor.com/gpu. Requested: 1, Available: 0"
        assert (status, failure.problem, failure.text) == (409, Problem.UNAVAILABLE, text)
        assert [(holder.id, holder.answer) for holder in failure.holders] == [("train", None)]


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"resources": {}}, 400, "resources is an empty object: give an object of 1 to 64"),
        ({"ids": ["GPU-0", "GPU-1"]}, 400, f"--ids names 2 devices, and 1 of {GPU} are wanted"),
        ({"owner": {"kind": "container"}}, 400, "a lease of a container is bound to it by the hook"),
        ({"owner": {"kind": "container", "start_within": 0}}, 400, "owner.start_within is 0: give within how many"),
        ({"pool": "lab"}, 400, "there is no pool lab of vendor.com/gpu"),
        ({"owner": {"kind": "process", "pid": 991}, "client_pid": 1}, 400, "cannot be used in another pid namespace"),
        ({"owner": {"kind": "process", "pid": 12}, "client_pid": 991}, 400, "there is no process 12: name one that"),
        ({"owner": {"kind": "process", "pid": 13}, "client_pid": 991}, 409, "Too many open files; ask again, or use"),
        ({"id": "taken"}, 403, "lease taken belongs to another user"),
    ],
)
async def test_each_failure_has_its_status(
    changes: dict[str, Any], status: int, why: str, autojump_clock: MockClock
) -> None:
    async with running("GPU-0", "GPU-1") as daemon:
        await daemon.post(id="taken", by=peer(BOB))
        got, failed = await daemon.post(**changes)
        assert got == status
        assert why in failed["error"]
        assert failed["problem"] in list(Problem)


async def test_a_process_that_owns_a_lease_is_known_by_more_than_its_pid(autojump_clock: MockClock) -> None:
    """Behaviour of leases: pid, start time and boot."""
    async with running("GPU-0") as daemon:
        status, _ = await daemon.post(owner={"kind": "process", "pid": 992}, client_pid=991)
        assert status == 201
        assert daemon.leases.leases[0].owner == ProcessOwner(ProcessIdentity(992, 5, "boot"))
        assert daemon.leases.leases[0].uid == ALICE


async def test_only_the_user_of_a_lease_and_root_release_it(autojump_clock: MockClock) -> None:
    async with running("GPU-0", "GPU-1") as daemon:
        await daemon.post(id="a")
        await daemon.post(id="b")
        status, failed = await daemon.ask("DELETE", "/v1/leases/a", by=peer(BOB))
        assert (status, failed["error"]) == (403, "lease a belongs to another user")
        assert (await daemon.ask("DELETE", "/v1/leases/a"))[0] == 200
        assert (await daemon.ask("DELETE", "/v1/leases/b", by=peer(0)))[0] == 200


async def test_the_time_of_a_lease_begins_again(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        _, given = await daemon.post(id="a", owner={"kind": "time", "seconds": 60})
        assert given["owner"] == {"kind": "time", "seconds": 60.0, "expires_boottime_ns": 60 * 10**9, "ends_in": 60.0}
        status, renewed = await daemon.ask("POST", "/v1/leases/a/renew")
        assert (status, lease_from_json(renewed).owner) == (200, TimeOwner(60.0, 60 * 10**9))
        assert (await daemon.ask("POST", "/v1/leases/b/renew"))[0] == 404
        assert (await daemon.ask("POST", "/v1/leases/a/renew", by=peer(BOB)))[0] == 403


async def test_a_lease_is_bound_to_its_container(autojump_clock: MockClock) -> None:
    """The name is no secret: the hook runs as the user of the container, and that user has to have the lease."""
    init = {"pid": 77, "start_ticks": 8, "boot_id": "boot"}
    async with running("GPU-0") as daemon:
        await daemon.post(id="a", owner={"kind": "container"}, container=True)
        assert (await daemon.ask("POST", "/v1/leases/a/bind", init, by=peer(BOB)))[0] == 403
        status, bound = await daemon.ask("POST", "/v1/leases/a/bind", init)
        assert (status, bound["owner"]) == (200, {"kind": "container", "init": init, "start_within": 60.0})
        other = {**init, "pid": 78}
        status, failed = await daemon.ask("POST", "/v1/leases/a/bind", other)
        assert (status, failed["error"]) == (403, "lease a is bound to another container, whose init is 77")
        assert (await daemon.ask("POST", "/v1/leases/a/bind", {"pid": 78}))[0] == 400


async def test_a_container_of_another_pid_namespace_does_not_start(autojump_clock: MockClock) -> None:
    """plugind would find its process ended, and give the devices to others while the container runs."""
    async with running("GPU-0") as daemon:
        await daemon.post(id="a", owner={"kind": "container"}, container=True)
        status, failed = await daemon.ask("POST", "/v1/leases/a/bind", {"pid": 12, "start_ticks": 8, "boot_id": "boot"})
        assert (status, failed["problem"]) == (400, "usage")
        assert "plugind sees no process 12 of this start time" in failed["error"]


async def test_what_a_lost_state_withholds_is_shown_and_given_free(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        daemon.leases.send_nowait(m.LeasesRead(m.Kept((), "leases were lost")))
        status, failed = await daemon.post()
        assert (status, failed["problem"]) == (507, "storage")
        assert failed["error"] == "all devices are withheld: leases were lost"
        assert (await daemon.ask("GET", "/v1/leases"))[1]["withheld"] == "leases were lost"
        assert (await daemon.ask("POST", "/v1/leases/recover", {}, by=peer(0)))[0] == 400
        assert (await daemon.ask("POST", "/v1/leases/recover", {"none_held": True}))[0] == 403
        recovered = await daemon.ask("POST", "/v1/leases/recover", {"none_held": True}, by=peer(0))
        assert recovered == (200, {"recovered": True})
        assert (await daemon.post())[0] == 201


# --- callers who wait -------------------------------------------------------------------------------------------------


async def test_a_caller_waits_for_devices_as_long_as_it_says(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        await daemon.post(id="first")
        client = await daemon.wait(id="second", wait=3600)
        late = await daemon.wait(id="third", wait=100)
        await trio.sleep(1000)
        daemon.leases.pass_time()
        status, failed = await late.answer()
        assert (status, failed["problem"], failed["error"][:9]) == (504, "timeout", "requested")
        await daemon.ask("DELETE", "/v1/leases/first")
        status, given = await client.answer()
        assert (status, given["id"], given["state"]) == (201, "second", "held")


def shown(lines: list[Any]) -> list[tuple[int, list[str]] | str]:
    """Return each place with the ids of those who are before it or have the devices, and the state of a lease."""
    return [
        (line["place"], [holder["id"] for holder in line["holders"]]) if "place" in line else line["state"]
        for line in lines
    ]


async def test_a_caller_who_asks_for_it_hears_of_each_place_in_line(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        assert (await (await daemon.wait("?progress", id="held")).answer())[0] == 201, "it has not waited"
        first, second = await daemon.wait(id="first"), await daemon.wait("?progress", id="second")
        silent = await daemon.wait("?progress", id="third")
        assert shown(await second.lines()) == [(2, ["first", "held"])]
        await daemon.ask("DELETE", "/v1/leases/first")
        await daemon.ask("DELETE", "/v1/leases/held")
        assert shown(await second.lines()) == [(2, ["first", "held"]), (1, ["held"]), "held"]
        await first.stream.aclose()
        # A caller who does not read gets the newest place alone, and is not dropped.
        await daemon.ask("DELETE", "/v1/leases/second")
        assert shown(await silent.lines())[-1] == "held"


@pytest.mark.parametrize("named", [True, False])
async def test_a_caller_in_line_who_leaves_or_waits_too_long(named: bool, autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        await daemon.post(id="held")
        leaving = await daemon.wait("?progress", id="named" if named else None)
        late = await daemon.wait("?progress", id="late", wait=60)
        await leaving.lines()
        await leaving.stream.aclose()
        await wait_all_tasks_blocked()
        assert [lease.id for lease in daemon.leases.leases] == ["held", "late"]
        await trio.sleep(60)
        daemon.leases.pass_time()
        places, failure = await late.lines(), (await late.lines())[-1]
        assert shown(places[:-1])[-1] == (1, ["held"])
        assert failure_from_json(failure).problem is Problem.TIMEOUT


async def test_a_caller_in_line_who_closes_as_soon_as_it_has_the_lease_keeps_it(autojump_clock: MockClock) -> None:
    """As ``plugind allocate`` does, which becomes the command: its lease ended, and others got the device."""
    async with running("GPU-0") as daemon:
        await daemon.post(id="held")
        client = await daemon.wait("?progress")

        assert client.served is not None
        sends = client.served.send_stream
        assert sends.send_all_hook is not None
        pass_on: Callable[[], Awaitable[object]] = sends.send_all_hook

        async def pass_on_and_close() -> None:
            await pass_on()
            client.stream.send_stream.close()
            client.stream.receive_stream.close()

        sends.send_all_hook = pass_on_and_close  # After the next piece, which is the lease.
        await daemon.ask("DELETE", "/v1/leases/held")
        await wait_all_tasks_blocked()
        (lease,) = daemon.leases.leases
        assert lease.state is LeaseState.HELD


async def test_a_caller_in_line_is_told_that_plugind_stops(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        await daemon.post(id="held")
        client = await daemon.wait("?progress", id="late")
        daemon.api.end_watches()
        assert (await client.lines())[-1] == {"error": "plugind is about to stop: ask again"}
        assert [lease.id for lease in daemon.leases.leases] == ["held"]


async def test_a_caller_who_leaves_waits_no_more(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        await daemon.post(id="first")
        client = await daemon.wait()
        assert len(daemon.leases.leases) == 2
        await client.stream.aclose()
        await wait_all_tasks_blocked()
        assert [lease.id for lease in daemon.leases.leases] == ["first"]


@pytest.mark.parametrize("name", [None, "mine"])
async def test_an_answer_that_cannot_be_written_releases_unless_the_caller_gave_a_name(
    name: str | None, autojump_clock: MockClock
) -> None:
    """With a name it can ask again, and gets the same answer."""
    async with running("GPU-0") as daemon:
        body = {"resources": {GPU: 1}, "owner": NONE, "id": name}
        response = await daemon.api(HttpRequest("POST", "/v1/leases", {}, json.dumps(body).encode(), peer()))
        assert isinstance(response, LateResponse)
        assert (await response.make()).status == 201
        response.undelivered(True)
        assert [lease.id for lease in daemon.leases.leases] == ([name] if name else [])


async def test_waiting_ends_when_plugind_stops(autojump_clock: MockClock) -> None:
    """A stop does not wait for those who wait, and nobody is left in line."""
    async with running("GPU-0") as daemon:
        await daemon.post(id="first")
        client = await daemon.wait()
        daemon.api.end_watches()
        assert await client.answer() == (503, {"error": "plugind is about to stop: ask again"})
        assert len(daemon.leases.leases) == 1
        assert (await daemon.post())[0] == 503


async def test_a_node_that_begins_to_stop_gives_out_nothing_and_is_to_be_asked_again(autojump_clock: MockClock) -> None:
    """Plugins are not asked from then on, which is no refusal of theirs."""
    stopping = {"error": "plugind is about to stop: ask again"}
    async with running("GPU-0") as daemon:
        await daemon.post(id="first")
        waiting = [await daemon.wait(query) for query in ("", "?progress")]
        daemon.leases.refuses = True
        daemon.api.leases.stopping.set()
        await daemon.ask("DELETE", "/v1/leases/first")
        assert await waiting[0].answer() == (503, stopping)
        assert (await waiting[1].lines())[-1] == stopping
        assert await daemon.post() == (503, stopping)


async def test_a_plugin_that_is_not_followed_is_no_reason_to_ask_again_before_a_stop(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        daemon.leases.refuses = True
        assert (await daemon.post())[0] == 502


# --- connections that own a lease -------------------------------------------------------------------------------------

CONNECTION: dict[str, object] = {"kind": "connection"}


async def test_a_lease_lasts_as_long_as_its_connection(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        client = await daemon.wait(owner=CONNECTION)
        (given,) = await client.lines()
        assert (given["state"], given["owner"]) == ("held", {"kind": "connection"})
        assert len(given["token"]) == 32
        await trio.sleep(1000)
        daemon.leases.pass_time()
        assert len(daemon.leases.leases) == 1
        await client.stream.aclose()
        await wait_all_tasks_blocked()
        assert not daemon.leases.leases


@pytest.mark.parametrize("target", ["/v1/leases", "/v1/leases?heartbeat=5"])
async def test_a_connection_hears_of_the_end_of_its_lease_and_why(target: str, autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        body = {"resources": {GPU: 1}, "owner": CONNECTION, "id": "mine"}
        client = await daemon.send("POST", target, body)
        (given,) = await client.lines()
        await daemon.ask("DELETE", "/v1/leases/mine")
        first, last = await client.lines()
        assert client.received.endswith(b"0\r\n\r\n")
        assert first == given
        assert (last["state"], last["reason"]) == ("gone", "it was released")
        assert "token" not in last


async def test_after_a_restart_a_connection_comes_back_with_its_token(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        client = await daemon.wait(owner=CONNECTION, id="mine")
        (given,) = await client.lines()
        kept = daemon.leases.leases
    async with running("GPU-0") as daemon:
        daemon.leases.send_nowait(m.LeasesRead(m.Kept(kept)))
        status, failed = await daemon.ask("POST", "/v1/leases/mine/resume", {"token": "wrong"})
        assert (status, failed["error"]) == (403, "lease mine has another token")
        client = await daemon.send("POST", "/v1/leases/mine/resume", {"token": given["token"]})
        assert await client.lines() == [given]
        await trio.sleep(100)
        daemon.leases.pass_time()
        assert [lease.id for lease in daemon.leases.leases] == ["mine"]
        await client.stream.aclose()
        await wait_all_tasks_blocked()
        assert not daemon.leases.leases


async def test_the_end_of_plugind_does_not_end_the_leases_of_connections(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        client = await daemon.wait(owner=CONNECTION)
        await client.lines()
        daemon.api.end_watches()
        await client.lines()
        assert client.received.endswith(b"0\r\n\r\n")
        assert len(daemon.leases.leases) == 1


async def test_a_connection_that_plugind_has_cut_may_come_back_for_a_minute(autojump_clock: MockClock) -> None:
    """So it is when the server of the status socket has crashed: the lease actor is still there."""
    async with running("GPU-0") as daemon:
        async with trio.open_nursery() as crashing:
            before, daemon.nursery = daemon.nursery, crashing
            client = await daemon.wait(owner=CONNECTION, id="mine")
            (given,) = await client.lines()
            crashing.cancel_scope.cancel()
        daemon.nursery = before
        await trio.sleep(BIND - 1)
        daemon.leases.pass_time()
        again = await daemon.send("POST", "/v1/leases/mine/resume", {"token": given["token"]})
        assert await again.lines() == [given]
        await trio.sleep(BIND)
        daemon.leases.pass_time()
        assert [lease.id for lease in daemon.leases.leases] == ["mine"]
        async with trio.open_nursery() as crashing:
            daemon.nursery, before = crashing, daemon.nursery
            await daemon.ask("DELETE", "/v1/leases/mine")
            await daemon.wait(owner=CONNECTION)
            crashing.cancel_scope.cancel()
        await trio.sleep(BIND)
        daemon.leases.pass_time()
        assert not daemon.leases.leases


# --- the stream of changes --------------------------------------------------------------------------------------------


async def test_the_watch_has_all_leases_and_then_each_change(autojump_clock: MockClock) -> None:
    async with running("GPU-0", "GPU-1") as daemon:
        await daemon.post(id="a")
        client = await daemon.send("GET", "/v1/leases/watch", heartbeat="100")
        assert [(lease["id"], lease["state"]) for lease in await client.lines()] == [("a", "held")]
        await daemon.post(id="b")
        await daemon.ask("DELETE", "/v1/leases/a")
        lines = await client.lines()
        assert [(lease["id"], lease["state"]) for lease in lines][-2:] == [("b", "held"), ("a", "gone")]
        assert lines[-1]["time"].startswith("1970-01-01T00:16:4")
        daemon.api.end_watches()
        await client.lines()
        assert client.received.endswith(b"0\r\n\r\n")


async def test_a_watch_says_when_nobody_answers(autojump_clock: MockClock) -> None:
    async with running() as daemon:
        daemon.leases.hangs = True
        client = await daemon.send("GET", "/v1/leases/watch")
        await trio.sleep(DEADLINE)
        assert await client.lines() == [{"error": f"the lease actor has not answered within {DEADLINE:g} s"}]


async def test_leases_are_counted_for_metrics(autojump_clock: MockClock) -> None:
    """Consumers B.6: the kubelet's histogram, with its buckets. Only offered resources have labels."""
    async with running("GPU-0") as daemon:
        lines = await metrics(daemon)
        assert 'plugind_leases{resource_name="vendor.com/gpu"} 0.0' in lines
        assert 'plugind_free_devices{resource_name="vendor.com/gpu"} 1.0' in lines
        await daemon.post()
        await daemon.post()
        await daemon.post(resources={"vendor.com/made-up": 1})
        lines = await metrics(daemon)
    bucket = 'device_plugin_alloc_duration_seconds_bucket{le="%s",resource_name="vendor.com/gpu"} %s'
    assert bucket % ("0.1", "0.0") in lines
    assert bucket % ("0.25", "1.0") in lines
    assert 'device_plugin_alloc_duration_seconds_sum{resource_name="vendor.com/gpu"} 0.25' in lines
    assert 'plugind_leases{resource_name="vendor.com/gpu"} 1.0' in lines
    assert 'plugind_free_devices{resource_name="vendor.com/gpu"} 0.0' in lines
    assert 'plugind_lease_failures_total{reason="unavailable",resource_name="vendor.com/gpu"} 1.0' in lines
    assert 'plugind_lease_failures_total{reason="unavailable",resource_name="other"} 1.0' in lines
    assert "made-up" not in "".join(lines)


async def metrics(daemon: Daemon) -> list[str]:
    response = await daemon.api(HttpRequest("GET", "/metrics", {}, b""))
    return (await body_of(response)).decode().splitlines()


# --- what is out of service -------------------------------------------------------------------------------------------


async def test_a_drain_is_shown_counted_and_ended(autojump_clock: MockClock) -> None:
    root = peer(0)
    async with running("GPU-0", "GPU-1") as daemon:
        body = {"resource": GPU, "device": "GPU-0", "reason": "broken", "until_unix": 2000.0}
        status, drain = await daemon.ask("POST", "/v1/drains", body, by=root)
        assert (status, drain) == (200, {**body, "since": STARTED, "since_unix": 1000.0, "until": UNTIL, "by": 0})
        snapshot = await daemon.api.leases.snapshot()
        assert snapshot is not None
        assert snapshot.drains == {DrainTarget(GPU, "GPU-0"): drain_from_json(drain)}
        assert (await daemon.post(resources={GPU: 2}))[1]["error"].endswith(
            f"Requested: 2, Available: 1; drained: {GPU}:GPU-0 until {UNTIL}: broken"
        )
        assert (await daemon.ask("POST", "/v1/drains", {"resource": None}, by=root))[0] == 200
        lines = await metrics(daemon)
        assert f'plugind_drained_devices{{resource_name="{GPU}"}} 2.0' in lines
        assert f'plugind_drains{{resource_name="{GPU}"}} 1.0' in lines
        assert 'plugind_drains{resource_name=""} 1.0' in lines
        status, failed = await daemon.ask("POST", "/v1/drains/end", {"resource": "v.com/a"}, by=root)
        assert (status, failed["problem"]) == (404, "unknown")
        assert failed["error"] == f"v.com/a is not drained; drained: the node, {GPU}:GPU-0"
        asked = {"resource": GPU, "device": "GPU-0"}
        assert await daemon.ask("POST", "/v1/drains/end", asked, by=root) == (200, drain)
        assert (await daemon.ask("POST", "/v1/drains/end", {"resource": None}))[0] == 403
        assert (await daemon.ask("POST", "/v1/drains/end", {"resource": None}, by=root))[0] == 200
        assert (await daemon.post(resources={GPU: 2}))[0] == 201


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "there is no resource: give the name of a resource, or null for the node"),
        ({"resource": None, "device": "GPU-0"}, "device has no resource: name the resource of the device"),
        ({"resource": GPU, "reason": "a\nb"}, 'reason is "a\\nb": give a printable text of at most 1024 characters'),
        ({"resource": GPU, "until_unix": 1e12}, "until_unix is 1000000000000.0: give Unix seconds before the year"),
        ({"resource": GPU, "until_unix": 5}, "1970-01-01T00:00:05.000Z is over: name a later time"),
        ({"resource": GPU, "why": ""}, "why is not known here: there is resource, device, reason, until_unix"),
    ],
)
async def test_a_wrong_drain_is_refused(body: dict[str, object], why: str, autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        status, failed = await daemon.ask("POST", "/v1/drains", body, by=peer(0))
        assert (status, failed["problem"]) == (400, "usage")
        assert failed["error"].startswith(why)
        assert (await daemon.ask("GET", "/v1/drains", by=peer(0)))[0] == 405


# --- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/leases", 405),
        ("POST", "/v1/leases/watch", 405),
        ("GET", "/v1/leases/recover", 405),
        ("POST", "/v1/leases/a", 405),
        ("GET", "/v1/leases/a/renew", 405),
        ("DELETE", "/v1/leases/a/resume", 405),
        ("GET", "/v1/leases/", 404),
        ("POST", "/v1/leases//renew", 404),
        ("GET", "/v1/leases/a/b", 404),
        ("GET", "/v1/leases/a/b/c", 404),
        ("GET", "/v1/leasesx", 404),
        ("GET", "/v1/leases/%FF", 404),
        ("HEAD", "/v1/leases", 200),
    ],
)
async def test_other_requests_are_refused(method: str, path: str, status: int, autojump_clock: MockClock) -> None:
    async with running() as daemon:
        response = await daemon.api(HttpRequest(method, path, {}, b"", peer()))
        assert response.status == status
        if status == 405:
            assert dict(response.headers)["Allow"]


@pytest.mark.parametrize(
    ("method", "path", "seconds"),
    [("GET", "", DEADLINE), ("GET", "/a", DEADLINE), ("DELETE", "/a", WRITING), ("POST", "/a/renew", WRITING)],
)
async def test_a_lease_actor_that_hangs_costs_an_answer(
    method: str, path: str, seconds: float, autojump_clock: MockClock
) -> None:
    async with running() as daemon:
        daemon.leases.hangs = True
        began = trio.current_time()
        status, failed = await daemon.ask(method, f"/v1/leases{path}")
        assert (status, failed) == (503, {"error": f"the lease actor has not answered within {seconds:g} s"})
        assert trio.current_time() == began + seconds


async def test_the_list_of_requests_has_each_route(autojump_clock: MockClock) -> None:
    async with running("GPU-0") as daemon:
        for line in REQUESTS:
            method, path = line.split()
            if path.startswith("/v1/leases"):
                response: HttpResponse = await daemon.api(HttpRequest(method, path, {}, b"{}", peer()))
                assert response.status != 405
                assert b"there is no /v1" not in response.body


_names = st.sampled_from(["", "a", "watch", "recover", "%FF", "a%00", "%ED%A0%80", "renew", "bind", "resume"])
_pieces = st.lists(_names, max_size=3).map(lambda names: "/".join(["/v1/leases", *names]))
_bodies = st.sampled_from(
    [
        b"",
        b"{}",
        b'{"token": "\\ud800"}',
        b'{"none_held": true}',
        b'{"pid": 1, "start_ticks": 1, "boot_id": "x"}',
        b'{"resources": {"vendor.com/gpu": 1}, "owner": {"kind": "connection"}, "id": "a"}',
        b'{"resources": {"\\u0000": 1}, "owner": {"kind": "none"}, "labels": {"\\u001b": ""}, "wait": 0}',
        b'{"resources": {"vendor.com/gpu": 1}, "owner": {"kind": "container"}, "container": true, "id": "a"}',
    ]
)


@examples(50)
@given(st.lists(st.tuples(st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT"]), _pieces, _bodies), max_size=6))
def test_no_request_raises_an_error(requests: list[tuple[str, str, bytes]]) -> None:
    """Fault 93: an error of one request would crash the status actor for all."""

    async def main() -> None:
        async with running("GPU-0") as daemon:
            for method, path, body in requests:
                response = await daemon.api(HttpRequest(method, path, {}, body, peer()))
                if isinstance(response, LateResponse):
                    with trio.move_on_after(1.0):
                        response = await response.make()
                assert isinstance(response, LateResponse) or 200 <= response.status < 600

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
