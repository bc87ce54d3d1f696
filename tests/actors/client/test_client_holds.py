"""The clients and leases that a connection owns: a block holds one, over interruptions too, or hears it is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.actors.http import client as http_client
from plugind.client import DaemonError, HeldLease, LeaseFailedError, LeaseLostError, LeaseState, SyncClient
from plugind.protocol.leases.leases_json import failure_to_json, lease_to_json, released_to_json
from plugind.protocol.leases.replies import Failure, Problem, Released
from plugind.protocol.leases.values import Answer, ConnectionOwner, Lease, Mount
from plugind.tests.actors.client.test_client_leases import BlockError, lines
from plugind.tests.actors.client.test_clients import Make, OfTrio, asking, make
from plugind.tests.actors.console.lease_server import LeaseServer, answer, lease_server
from plugind.tests.actors.console.test_allocate import GPU, LEASE

#: The fixture of the other module.
__all__ = ["make"]

OWNED = attrs.evolve(LEASE, owner=ConnectionOwner())
GONE = attrs.evolve(OWNED, state=LeaseState.GONE, reason="it was released")
RELEASED = answer(200, released_to_json(Released(("a1b2",))))
UNKNOWN = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "there is no lease a1b2")))
BUSY = answer(503, {"error": "plugind is about to stop: ask again"})


def stream(*leases: Lease, end: bool = False) -> bytes:
    """Return the answer to a connection; the first lease has the token. It stays open without an ``end``."""
    said = b"".join(
        json.dumps(lease_to_json(lease) | ({} if number else {"token": "secret"})).encode() + b"\n"
        for number, lease in enumerate(leases)
    )
    head = b"HTTP/1.1 201 Created\r\nPlugind-Status-Version: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n" % (len(said), said) + (b"0\r\n\r\n" if end else b"")


@asynccontextmanager
async def holding(client: Any, **more: Any) -> AsyncIterator[HeldLease]:
    """Use either client in a block of Trio; the one without Trio does not cancel it."""
    if isinstance(client, OfTrio):
        async with client.hold({GPU: 1}, **more) as held:
            yield held
        return
    block: AbstractContextManager[HeldLease] = await client.hold({GPU: 1}, **more)
    held = await trio.to_thread.run_sync(block.__enter__)
    try:
        yield held
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    await trio.to_thread.run_sync(block.__exit__, None, None, None)


async def until_lost(held: HeldLease) -> None:
    with trio.fail_after(60):
        while held.lost is None:  # noqa: ASYNC110 - a thread tells, or the block is cancelled
            await trio.sleep(0.01)


async def until_asked_again(server: LeaseServer) -> None:
    with trio.fail_after(60):
        while len(server.requests) < 2:  # noqa: ASYNC110 - a thread serves
            await trio.sleep(0.01)


async def test_a_connection_owns_the_lease_of_a_block(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, stream(OWNED), RELEASED, hold=True) as (client, server):
        async with holding(client, wait=2.0) as held:
            assert (held.lease, held.lost) == (OWNED, None)
            assert lines(server) == ["POST /v1/leases"]
        assert lines(server) == ["POST /v1/leases", "DELETE /v1/leases/a1b2"]
        assert held.lost is None
    body = server.requests[0].body
    assert (body["owner"], body["wait"], body["id"]) == ({"kind": "connection"}, 2.0, None)


async def test_what_is_not_taken_from_the_daemon_of_another_user_is_not_held(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection ends, and the lease with it; of another lease the variables are left out, also in its news."""
    monkeypatch.setattr(http_client, "user_of", lambda _: 4242)
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
    mounts = attrs.evolve(LEASE, answer=Answer(mounts=(Mount("/", "/"),)))
    async with asking(make, tmp_path / "a", stream(mounts)) as (client, _):
        with pytest.raises(LeaseFailedError, match="the daemon runs as user 4242"):
            async with holding(client):
                pass
    variables = attrs.evolve(LEASE, answer=Answer({"PATH": "/evil"}))
    async with asking(make, tmp_path / "b", stream(variables), RELEASED) as (client, _), holding(client) as held:
        assert held.lease.answer == Answer()
        assert "the variables of its plugins are left out" in held.lease.warnings[-1]


async def test_the_error_of_the_block_is_raised_as_it_is(make: Make, tmp_path: Path) -> None:
    async with asking(make, tmp_path, stream(OWNED), RELEASED, hold=True) as (client, server):
        with pytest.raises(BlockError):
            async with holding(client):
                raise BlockError
        assert lines(server)[-1] == "DELETE /v1/leases/a1b2"


async def test_a_lease_that_was_released_by_others_is_lost(make: Make, tmp_path: Path) -> None:
    """It is not released once more: somebody else may have given its name to another one."""
    async with asking(make, tmp_path, stream(OWNED, GONE, end=True), RELEASED) as (client, server):
        with pytest.raises(LeaseLostError, match=r"^the lease a1b2 has ended: it was released$"):
            async with holding(client) as held:
                await until_lost(held)
        assert held.lease == GONE
        assert lines(server) == ["POST /v1/leases"]


async def test_a_connection_that_was_interrupted_comes_back_with_its_token(make: Make, tmp_path: Path) -> None:
    """A daemon that is busy, or about to stop, is asked again."""
    again = stream(attrs.evolve(OWNED, warnings=("again",)))
    with lease_server(tmp_path, stream(OWNED), BUSY, again, UNKNOWN) as server:
        client = make(server.path)
        with pytest.raises(LeaseLostError, match=r"its connection came back too late \(there is no lease a1b2\)$"):
            async with holding(client) as held:
                await until_lost(held)
    assert held.lease.warnings == ("again",)
    assert lines(server) == ["POST /v1/leases", *3 * ["POST /v1/leases/a1b2/resume"]]
    assert [request.body for request in server.requests[1:]] == 3 * [{"token": "secret"}]


async def test_a_block_ends_while_its_connection_is_interrupted(make: Make, tmp_path: Path) -> None:
    """The block has succeeded, so nothing is raised: the lease ends with its connection."""
    with lease_server(tmp_path, stream(OWNED), BUSY) as server:
        async with holding(make(server.path)):
            await until_asked_again(server)
    assert lines(server)[-1] == "DELETE /v1/leases/a1b2"


def test_the_error_of_a_block_without_trio_is_not_hidden_by_the_loss(tmp_path: Path) -> None:
    with (
        lease_server(tmp_path, stream(OWNED, GONE, end=True)) as server,
        pytest.raises(BlockError),
        SyncClient(str(server.path)).hold({GPU: 1}),
    ):
        raise BlockError


@pytest.mark.parametrize("said", [b"{}\n", b"\n", json.dumps(lease_to_json(OWNED)).encode() + b"\n", b""])
async def test_an_answer_without_a_lease_or_a_token_is_an_error(make: Make, tmp_path: Path, said: bytes) -> None:
    head = b"HTTP/1.1 201 Created\r\nPlugind-Status-Version: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said) if said else b"0\r\n\r\n"
    async with asking(make, tmp_path, head + body) as (client, _):
        with pytest.raises(DaemonError, match="the daemon's answer cannot be understood"):
            async with holding(client):
                pass
