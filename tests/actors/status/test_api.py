from __future__ import annotations

import json

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.status.api import StatusConfig
from plugind.actors.status.streams import PIECE
from plugind.protocol.messages.reconciler import (
    RetryAnswer,
    RetryAnswered,
    RetryAsked,
)
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.bench import bench, changed, info


async def test_ten_thousand_plugins_are_listed_in_pieces(autojump_clock: MockClock) -> None:
    """A listing blocks the event loop for one piece at a time."""
    async with bench() as node:
        for number in range(10_000):
            node.memory.view.apply(changed(f"p{number:05}", StateName.WAITING))
        response = await node.get("/plugins")
        pieces: list[bytes] = []

        async def send(piece: bytes) -> None:
            pieces.append(piece)
            # Changes in the meantime do not affect this listing.
            node.memory.view.apply(changed(f"p{9999 - len(pieces):05}", StateName.GONE))

        assert response.write is not None
        await response.write(send)
    assert len(pieces) == 10_000 // PIECE + 1
    listed = json.loads(b"".join(pieces))
    assert [plugin["socket"] for plugin in listed] == [f"/r/p{number:05}.sock" for number in range(10_000)]


async def test_a_listing_can_be_narrowed_and_an_empty_one_is_a_list(autojump_clock: MockClock) -> None:
    async with bench() as node:
        assert await node.json("/plugins") == []
        for name in ("a", "b"):
            node.memory.view.apply(attrs.evolve(changed(name, StateName.REGISTERED), info=info(name)))
        node.memory.view.apply(changed("nameless", StateName.WAITING))
        for query, count in (({}, 3), ({"name": "a"}, 1), ({"type": "CSIPlugin"}, 2), ({"type": "Odd"}, 0)):
            listed = await node.json("/plugins", **query)
            assert isinstance(listed, list)
            assert len(listed) == count


@pytest.mark.parametrize("target", ["a", "%2Fr%2Fa.sock", "/r/a.sock"])
async def test_one_plugin_is_described_by_name_and_by_path(target: str, autojump_clock: MockClock) -> None:
    async with bench() as node:
        node.memory.view.apply(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        described = await node.json(f"/plugins/{target}")
    assert isinstance(described, list)
    (plugin,) = described
    assert plugin["name"] == "a"
    assert plugin["history"] == [
        {
            "ago": 0.0,
            "at": "1970-01-01T00:16:40.000Z",
            "state": "registered",
            "reason": None,
            "cause": None,
            "attempt": 0,
        }
    ]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/plugins/none", 404),
        ("GET", "/plugins/", 404),
        ("GET", "/metrics/x", 404),
        ("DELETE", "/plugins", 405),
        ("POST", "/watch", 405),
        ("GET", "/retry", 405),
        ("POST", "/retry", 400),
    ],
)
async def test_invalid_requests_get_an_error_in_json(
    method: str, path: str, code: int, autojump_clock: MockClock
) -> None:
    async with bench() as node:
        response = await node.api(HttpRequest(method, path, {}, b""))
    assert response.status == code
    assert isinstance(json.loads(response.body)["error"], str)


async def test_watching_streams_the_present_view_and_then_every_change_with_its_time(autojump_clock: MockClock) -> None:
    async with bench() as node:
        await node.take(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        response = await node.get("/watch")
        assert response.endless
        assert response.write is not None
        lines: list[dict[str, object]] = []

        async def send(piece: bytes) -> None:
            lines.extend(json.loads(line) for line in piece.splitlines())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await trio.sleep(5)
            await node.take(changed("a", StateName.LEAVING, 4.0), changed("a", StateName.GONE, 5.0))
            node.api.end_watches()
        assert node.memory.audience.subscribers == []
    assert [(line["time"], line["name"], line["state"], line["age"]) for line in lines] == [
        ("1970-01-01T00:16:40.000Z", "a", "registered", 0.0),
        ("1970-01-01T00:16:44.000Z", "a", "leaving", 0.0),
        ("1970-01-01T00:16:45.000Z", "a", "gone", 0.0),
    ]


async def test_a_watch_with_heartbeats_shows_when_the_list_is_complete_and_that_the_daemon_runs(
    autojump_clock: MockClock,
) -> None:
    async with bench() as node:
        await node.take(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        response = await node.api(HttpRequest("GET", "/watch", {"heartbeat": "2"}, b""))
        assert response.headers == (("Heartbeat", "2"),)
        assert response.write is not None
        came: list[tuple[float, str]] = []

        async def send(piece: bytes) -> None:
            states = [json.loads(line)["state"] if line else "" for line in piece.splitlines()]
            came.extend((trio.current_time(), state) for state in states)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await trio.sleep(3)
            await node.take(changed("a", StateName.GONE, 3.0))
            await trio.sleep(3)
            node.api.end_watches()
    assert came == [(0.0, "registered"), (0.0, ""), (2.0, ""), (3.0, "gone"), (5.0, "")]


@pytest.mark.parametrize("pause", ["", "soon", "nan", "inf", "-1", "0", "1e9"])
async def test_a_heartbeat_out_of_range_is_refused_with_what_is_allowed(pause: str, autojump_clock: MockClock) -> None:
    """It was ignored, so a client waited for heartbeats that never came."""
    async with bench() as node:
        refused = await node.get("/watch", heartbeat=pause)
    assert refused.status == 400
    assert json.loads(refused.body) == {"error": f"heartbeat is {pause!r}: it must be seconds from 0.02 to 3600"}


async def test_a_filter_that_a_newer_client_knows_is_refused_and_not_ignored(autojump_clock: MockClock) -> None:
    async with bench() as node:
        refused = await node.get("/plugins", name="a", state="stale")
    assert refused.status == 400
    assert json.loads(refused.body) == {"error": "there is no parameter state; /plugins takes name and type"}


async def test_a_watch_that_reads_too_slowly_ends_with_an_error(autojump_clock: MockClock) -> None:
    async with bench() as node:
        response = await node.get("/watch")
        assert response.write is not None
        pieces: list[bytes] = []
        release = trio.Event()

        async def send(piece: bytes) -> None:
            await release.wait()
            pieces.append(piece)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(response.write, send)
            await wait_all_tasks_blocked()
            for number in range(6000):
                await node.inbox.send(changed(f"p{number}", StateName.DIALING))
            await wait_all_tasks_blocked()
            release.set()
            await wait_all_tasks_blocked()
            await node.take(changed("one more", StateName.DIALING))
    assert json.loads(pieces[-1].splitlines()[-1]) == {"error": "too slow: changes were lost; watch again"}


async def test_a_retry_request_is_sent_to_the_reconciler_by_path(autojump_clock: MockClock) -> None:
    async with bench() as node:
        node.memory.view.apply(attrs.evolve(changed("a", StateName.WAITING), info=info("a")))
        answers: list[HttpResponse] = []

        async def ask(target: str) -> None:
            answers.append(await node.api(HttpRequest("POST", "/retry", {}, json.dumps({"target": target}).encode())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "a")
            message = await node.reconciler.receive()
            assert isinstance(message, RetryAsked)
            assert message.path == "/r/a.sock"
            message.reply.send_nowait(RetryAnswered((RetryAnswer(message.path, tried=True, why="tried now"),)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "unknown")
            message = await node.reconciler.receive()
            assert isinstance(message, RetryAsked)
            message.reply.send_nowait(RetryAnswered(()))
    assert [(answer.status, json.loads(answer.body)) for answer in answers] == [
        (
            200,
            {
                "sockets": ["/r/a.sock"],
                "answers": [{"socket": "/r/a.sock", "tried": True, "why": "tried now"}],
            },
        ),
        (404, {"error": "no plugin has the name, and no socket the path, unknown"}),
    ]


async def test_a_retry_does_not_wait_for_a_reconciler_that_is_busy(autojump_clock: MockClock) -> None:
    """Fault 86."""
    async with bench() as node:
        asked = HttpRequest("POST", "/retry", {}, b'{"target": "a"}')
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await node.api(asked)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        # Two requests wait in the inbox until their deadline; the third one finds the inbox full.
        assert answers == [503, 503, 503]
        assert trio.current_time() == StatusConfig().retry
