"""The clients and leases: what they ask for, what they return, and that a lease of a block ends with the block."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from plugind.actors.client.lease_calls import quoted
from plugind.actors.http import client as http_client
from plugind.client import Drain, DrainTarget, LeaseFailedError, LeaseState, NoDaemonError, Problem
from plugind.protocol.leases.leases_json import (
    drain_to_json,
    failure_to_json,
    lease_to_json,
    released_to_json,
    snapshot_to_json,
)
from plugind.protocol.leases.replies import Failure, LeasesSnapshot, LimitMet, Released
from plugind.protocol.leases.values import Answer, Lease, Mount, TimeOwner
from plugind.tests.actors.client.test_clients import Make, OfTrio, asking, chunked, make
from plugind.tests.actors.console.lease_server import LeaseServer, answer
from plugind.tests.actors.console.test_allocate import GPU, LEASE

#: The fixture of the other module.
__all__ = ["make"]

HELD = answer(201, lease_to_json(LEASE))
RELEASED = answer(200, released_to_json(Released(("a1b2",))))
GONE = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "there is no lease a1b2")))
REFUSED = answer(409, failure_to_json(Failure(Problem.UNAVAILABLE, "too few", (LEASE,))))


class BlockError(Exception):
    """Raised by the block that has a lease."""


@asynccontextmanager
async def allocated(client: Any, resources: dict[str, int], **more: Any) -> AsyncIterator[Lease]:
    """Use either client in a block of Trio."""
    if isinstance(client, OfTrio):
        async with client.allocate(resources, **more) as lease:
            yield lease
        return
    block: AbstractContextManager[Lease] = await client.allocate(resources, **more)
    lease = await trio.to_thread.run_sync(block.__enter__)
    try:
        yield lease
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    block.__exit__(None, None, None)


def lines(server: LeaseServer) -> list[str]:
    return [request.line.removesuffix(" HTTP/1.1") for request in server.requests]


# --- a block ----------------------------------------------------------------------------------------------------------


async def test_a_lease_of_a_block_belongs_to_this_process_and_ends_with_the_block(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, HELD, RELEASED) as (client, server):
        more = {"ids": ["GPU-0"], "labels": {"job": "7"}, "pool": "p", "wait": 2.0, "ignore_missing": True}
        async with allocated(client, {GPU: 1}, **more) as lease:
            assert lease == LEASE
            assert lines(server) == ["POST /v1/leases"]
        assert lines(server) == ["POST /v1/leases", "DELETE /v1/leases/a1b2"]
        body = server.requests[0].body
    assert body["owner"] == {"kind": "process", "pid": os.getpid()}
    assert (body["client_pid"], body["wait"], body["ids"], body["labels"]) == (
        os.getpid(),
        2.0,
        ["GPU-0"],
        {"job": "7"},
    )
    assert len(body["id"]) == 12


async def test_a_block_that_raises_releases_too_and_its_error_is_the_one_that_counts(
    make: Make, tmp_path: Path
) -> None:
    async with asking(make, tmp_path, HELD, b"") as (client, server):
        with pytest.raises(BlockError):
            async with allocated(client, {GPU: 1}):
                raise BlockError
        assert lines(server)[-1] == "DELETE /v1/leases/a1b2"


async def test_a_lease_that_has_ended_within_the_block_is_no_error(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, HELD, GONE) as (client, _), allocated(client, {GPU: 1}):
        pass


async def test_a_refusal_says_why_and_who_has_the_others(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, REFUSED) as (client, server):
        with pytest.raises(LeaseFailedError, match=r"^too few$") as caught:
            async with allocated(client, {GPU: 2}):
                pass
        assert lines(server) == ["POST /v1/leases"]
    assert caught.value.problem is Problem.UNAVAILABLE
    assert [lease.id for lease in caught.value.holders] == ["a1b2"]


async def test_a_refusal_by_a_limit_has_the_limit(make: Make, tmp_path: Path) -> None:
    limit = LimitMet("devices_per_user", 2, GPU, None, "/etc/plugind/plugind.toml:3")
    refused = answer(409, failure_to_json(Failure(Problem.LIMIT, "too many", limit=limit)))
    async with asking(make, tmp_path, refused) as (client, _):
        with pytest.raises(LeaseFailedError, match="too many") as caught:
            async with allocated(client, {GPU: 3}):
                pass
    assert (caught.value.problem, caught.value.limit) == (Problem.LIMIT, limit)


MOUNTS = attrs.evolve(LEASE, answer=Answer(mounts=(Mount("/", "/"),)))


@pytest.fixture
def of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the daemon be of another user than this one and root, as far as the kernel says."""
    monkeypatch.setattr(http_client, "user_of", lambda _: 4242)


async def take(client: Any, **more: Any) -> None:
    await client.take({GPU: 1}, seconds=5.0, **more)


async def take_for_a_block(client: Any, **more: Any) -> None:
    async with allocated(client, {GPU: 1}, **more):
        pass


@pytest.mark.usefixtures("of_another_user")
@pytest.mark.parametrize("ask", [take, take_for_a_block])
@pytest.mark.parametrize("named", [True, False])
async def test_a_lease_that_is_not_taken_from_the_daemon_of_another_user_is_released(
    make: Make, ask: Callable[..., Awaitable[None]], named: bool, tmp_path: Path
) -> None:
    """Whatever becomes of the release, the reason is that of the refusal."""
    for number, released in enumerate((RELEASED, b"", GONE)):
        directory = tmp_path / str(number)
        directory.mkdir()
        async with asking(make, directory, answer(201, lease_to_json(MOUNTS)), released) as (client, server):
            more: Any = {"id": "a1b2"} if named else {}
            with pytest.raises(LeaseFailedError, match="the daemon runs as user 4242") as caught:
                await ask(client, **more)
            assert caught.value.problem is Problem.FORBIDDEN
            assert lines(server) == ["POST /v1/leases", "DELETE /v1/leases/a1b2"]


@pytest.mark.usefixtures("of_another_user")
async def test_a_lease_that_was_there_before_is_not_released_if_it_is_not_taken(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, answer(200, lease_to_json(MOUNTS)), RELEASED) as (client, server):
        with pytest.raises(LeaseFailedError, match="the daemon runs as user 4242"):
            await client.take({GPU: 1}, seconds=5.0, id="a1b2")
        assert lines(server) == ["POST /v1/leases"]


async def test_a_lease_whose_answer_was_lost_is_released_by_its_name(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, b"", RELEASED) as (client, server):
        with pytest.raises(NoDaemonError):
            async with allocated(client, {GPU: 1}):
                pass
        name = server.requests[0].body["id"]
        assert lines(server) == ["POST /v1/leases", f"DELETE /v1/leases/{name}"]


async def test_a_lease_that_the_caller_named_is_left_to_the_caller(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, b"", RELEASED) as (client, server):
        with pytest.raises(NoDaemonError):
            async with allocated(client, {GPU: 1}, id="mine"):
                pass
        assert (lines(server), server.requests[0].body["id"]) == (["POST /v1/leases"], "mine")


# --- leases of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "owner"),
    [
        ({"pid": 991}, {"kind": "process", "pid": 991}),
        ({"seconds": 60.0}, {"kind": "time", "seconds": 60.0}),
        ({"until_release": True}, {"kind": "none"}),
        ({"container": True}, {"kind": "container"}),
        ({"container": True, "start_within": 600.0}, {"kind": "container", "start_within": 600.0}),
        ({"container": True, "until_release": True}, {"kind": "container", "start_within": None}),
    ],
)
async def test_a_lease_is_taken_for_somebody(
    make: Make, tmp_path: Path, way: dict[str, Any], owner: dict[str, Any]
) -> None:
    async with asking(make, tmp_path, HELD) as (client, server):
        assert await client.take({GPU: 1}, **way) == LEASE
    (asked,) = server.requests
    assert (asked.body["owner"], asked.body["container"], asked.body["id"]) == (owner, "container" in way, None)


@pytest.mark.parametrize("ways", [{}, {"pid": 1, "seconds": 2.0}, {"seconds": 2.0, "container": True}])
async def test_exactly_one_way_says_until_when(make: Make, ways: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give exactly one of pid, seconds, until_release and container"):
        await make("/nowhere").take({GPU: 1}, **ways)


async def test_a_lease_is_renewed_and_released(make: Make, tmp_path: Path) -> None:
    timed = attrs.evolve(LEASE, owner=TimeOwner(60.0, 1))
    async with asking(make, tmp_path, answer(200, lease_to_json(timed)), RELEASED, GONE) as (client, server):
        assert await client.renew("a/1") == timed
        await client.release("a/1")
        with pytest.raises(LeaseFailedError, match="there is no lease a1b2"):
            await client.release("a/1")
    assert lines(server)[:2] == ["POST /v1/leases/a%2F1/renew", "DELETE /v1/leases/a%2F1"]


async def test_what_is_drained_is_what_the_commands_drain(make: Make, tmp_path: Path) -> None:
    drain = Drain(DrainTarget(GPU, "gpu-0"), 0, 5.0, "broken", 9.0)
    said = answer(200, drain_to_json(drain))
    refused = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "the node is not drained")))
    async with asking(make, tmp_path, said, said, refused) as (client, server):
        assert await client.drain(GPU, "gpu-0", reason="broken", until=9.0) == drain
        assert await client.undrain(GPU, "gpu-0") == drain
        with pytest.raises(LeaseFailedError, match="the node is not drained"):
            await client.undrain(None)
    assert lines(server) == ["POST /v1/drains", "POST /v1/drains/end", "POST /v1/drains/end"]
    target = {"resource": GPU, "device": "gpu-0"}
    assert [asked.body for asked in server.requests] == [
        {**target, "reason": "broken", "until_unix": 9.0},
        target,
        {"resource": None, "device": None},
    ]


async def test_the_leases_are_listed(make: Make, tmp_path: Path) -> None:
    said = answer(200, snapshot_to_json(LeasesSnapshot(0.0, (LEASE,)), 0.0))
    async with asking(make, tmp_path, said) as (client, server):
        assert await client.leases("slurm-") == (LEASE,)
    assert lines(server) == ["GET /v1/leases?prefix=slurm-"]


async def test_leases_are_followed(make: Make, tmp_path: Path) -> None:
    gone = attrs.evolve(LEASE, state=LeaseState.GONE)
    said = b"".join(json.dumps({"time": "t", **lease_to_json(lease)}).encode() + b"\n" for lease in (LEASE, gone))
    async with asking(make, tmp_path, chunked(said + b"\n")) as (client, server):
        assert await client.leases_watched() == [LEASE, gone]
    assert lines(server) == ["GET /v1/leases/watch?heartbeat=1.25"]


@pytest.mark.parametrize("text", ["bench-3", "a/b c%?&#", "grün~\udcff", "".join(map(chr, range(1, 256)))])
def test_an_id_in_a_path_is_quoted_as_urllib_quotes_it(text: str) -> None:
    assert quoted(text) == quote(os.fsencode(text), safe="")
