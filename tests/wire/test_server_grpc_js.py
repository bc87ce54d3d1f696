"""Our server and the client of @grpc/grpc-js, an implementation that is not ours, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.server.serve import ConnectionEnding, EndReason, ServerLimits
from plugind.tests.wire.node import Node, node
from plugind.tests.wire.server_helpers import Served, served

pytestmark = pytest.mark.extended

SIZES = [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 4 * 1024 * 1024 - 16]


@pytest.fixture(scope="module")
def client() -> Iterator[Node]:
    """Share one process between all tests, since node takes longer to start than most calls take to end."""
    with node("client.js") as started:
        yield started


async def test_messages_of_awkward_sizes_arrive_whole_in_both_directions(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        assert await client.result("sizes", server.path, SIZES) == [SIZES, SIZES]
        assert server.reports.failures == []


async def test_a_server_stream_arrives_in_order_and_ends_ok(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        seen = await client.result("count", server.path, 500)
    assert seen == {"values": list(range(500)), "code": 0, "details": ""}


async def test_client_streams_and_bidirectional_streams_arrive_whole(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        assert await client.result("streams", server.path, [0, 1, 70000, 5]) == [70006, [0, 1, 70000, 5]]


async def test_many_calls_at_once_share_one_connection(client: Node, tmp_path: Path) -> None:
    """There are more calls than the limit of streams; the client queues what SETTINGS do not allow."""
    async with served(tmp_path / "s") as server:
        assert await client.result("many", server.path, 300) == list(range(300))
        # All calls came from one process, and no second connection has ended.
        assert len(server.reports.endings) <= 1


async def test_every_status_code_reaches_the_client_with_its_message(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        assert await client.result("statuses", server.path) == [[n, f"100 % ✓ of {n}\n"] for n in range(1, 17)]


async def test_a_status_after_a_message_follows_it(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        seen = await client.result("late", server.path)
    assert seen == {"values": [1], "code": 10, "details": "after a message"}


async def test_metadata_is_carried_in_both_directions_binary_values_included(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        seen = await client.result("metadata", server.path)
    assert seen == {
        "code": 0,
        "heard": repr([("a", "b"), ("a", "c"), ("accept-encoding", "identity"), ("z-bin", b"\x00\x01\xff")]),
        "first": [["first", "1"], ["first-bin", {"hex": "00ff"}]],
        "last": [["last", "2"], ["last-bin", {"hex": "ff0001"}]],
    }


async def test_a_deadline_ends_the_call_on_both_sides(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        assert await client.result("deadline", server.path) == [4, "uuuu"]
        await server.echo.cancelled.wait()


async def test_a_cancelled_call_cancels_its_handler_and_no_other(client: Node, tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        assert await client.result("cancel", server.path) == [0, 1, "uuuu"]
        await server.echo.cancelled.wait()


async def test_an_unknown_method_is_unimplemented(client: Node, tmp_path: Path) -> None:
    """Fault 71, from the server's side."""
    async with served(tmp_path / "s") as server:
        assert await client.result("unknown", server.path) == [12, "unknown method /test.Echo/nothing"]


async def test_a_message_over_the_limit_is_refused_and_the_connection_goes_on(client: Node, tmp_path: Path) -> None:
    """Fault 50: the prefix is enough to refuse the message."""
    async with served(tmp_path / "s", ServerLimits(max_message=1000)) as server:
        refused = "a message of 200004 bytes is over the limit of 1000"
        assert await client.result("large", server.path, 200000) == [8, refused, 900]


async def test_a_server_that_stops_lets_calls_in_progress_end_and_refuses_new_ones(
    client: Node, tmp_path: Path
) -> None:
    """GOAWAY arrives between the messages of a stream."""
    async with served(tmp_path / "s") as server:
        client.order(["stopping", server.path])
        assert await client.answer() == {"begun": True}
        server.stopping.set()
        client.order("go on")
        unavailable = 14
        assert await client.answer() == {"result": [0, [1, 70000], unavailable]}
        await ended(server)
    assert server.reports.endings == [ConnectionEnding(EndReason.STOPPED)]


async def ended(server: Served) -> None:
    with trio.fail_after(60):
        while not server.reports.endings:
            await trio.lowlevel.checkpoint()


async def test_requests_that_are_not_grpc_get_the_answers_of_http(client: Node, tmp_path: Path) -> None:
    """Node's own HTTP/2 client: 405, 415, an unknown method, and the connection goes on to an empty call and a PING."""
    post = {":method": "POST", ":path": "/test.Echo/unary", "te": "trailers"}
    grpc = {**post, "content-type": "application/grpc"}
    requests = [
        {":method": "GET", ":path": "/"},
        post,
        {**post, "content-type": "text/html"},
        {**grpc, ":path": "/"},
        {**grpc, "grpc-timeout": "soon"},
        {**grpc, "content-type": "application/grpc+proto;charset=utf-8"},
    ]
    answers = [[405, None], [415, None], [415, None], [200, "12"], [200, "13"], [200, "0"]]
    async with served(tmp_path / "s") as server:
        assert await client.result("http", server.path, requests) == [answers, True]
