"""A daemon that is silent: one that answers nothing is told from one whose answer takes its time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from plugind.actors.client.calls import ClientRequest
from plugind.actors.client.errors import NoDaemonError
from plugind.actors.client.transport import answer as asked_by
from plugind.actors.client.transport import asked
from plugind.actors.http import client as http_client
from plugind.actors.http.on_trio import TRIO
from plugind.tests.actors.console.lease_server import answer, lease_server

CALL: ClientRequest[object] = ClientRequest("POST", "/v1/leases", lambda content: content)
Ask = Callable[[Path, float], Awaitable[object]]


async def in_thread(path: Path, seconds: float) -> object:
    return await trio.to_thread.run_sync(lambda: asked(str(path), CALL, timeout=seconds, patience=0.05))


async def by_trio(path: Path, seconds: float) -> object:
    return await asked_by(TRIO, str(path), CALL, timeout=seconds, patience=0.05)


@pytest.fixture(params=[in_thread, by_trio])
def ask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setattr(http_client, "CHECK", 0.125)
    asked: Ask = request.param
    return asked


async def test_who_waits_long_gives_up_on_a_daemon_that_answers_nothing(ask: Ask, tmp_path: Path) -> None:
    """A daemon that is stopped accepts connections, since the kernel does that."""
    with lease_server(tmp_path, b"", hold=True) as server:
        with pytest.raises(NoDaemonError, match=r"process \d+ sent nothing within 0\.125 s"):
            await ask(server.path, 600.0)
        with trio.fail_after(60):
            while len(server.requests) < 2:  # noqa: ASYNC110 - a thread reads them
                await trio.sleep(0.01)
        assert [request.line for request in server.requests] == ["POST /v1/leases HTTP/1.1", "HEAD /healthz HTTP/1.1"]


async def test_who_waits_long_waits_on_while_the_daemon_answers_others(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any answer will do, also that this user may not ask. It comes in time, even on a busy machine."""
    monkeypatch.setattr(http_client, "CHECK", 60.0)
    with lease_server(tmp_path, b"", answer(403), hold=True) as server:
        with pytest.raises(NoDaemonError, match="sent nothing within 3 s"):
            await ask(server.path, 3.0)
        assert len(server.requests) > 3
