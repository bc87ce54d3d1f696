"""What is cancelled or closed while a client waits: ``Client`` on Trio and on asyncio, ``SyncClient`` in a thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from plugind.client import Client, HeldLease, LeaseLostError, PluginStatus, StateName, SyncClient, Watch
from plugind.tests.actors.client.test_client_holds import GONE, OWNED, stream
from plugind.tests.actors.client.test_client_leases import HELD, RELEASED, lines
from plugind.tests.actors.client.test_clients import chunked, line
from plugind.tests.actors.console.lease_server import lease_server
from plugind.tests.actors.console.test_allocate import GPU

#: Seconds in which any step must end, even on a busy machine.
DEADLINE = 60.0
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs a program on Trio or on asyncio."""

    async def in_time(program: Callable[[], Awaitable[None]]) -> None:
        with anyio.fail_after(DEADLINE):
            await program()

    return lambda program: anyio.run(in_time, program, backend=request.param)


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["allocate", "hold"])
def test_a_cancelled_block_releases_its_lease(way: str, run: Run, tmp_path: Path) -> None:
    with lease_server(tmp_path, HELD if way == "allocate" else stream(OWNED), RELEASED, hold=True) as server:
        client = Client(str(server.path))

        async def program() -> None:
            with anyio.CancelScope() as scope:
                async with getattr(client, way)({GPU: 1}):
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught

        run(program)
        assert lines(server) == ["POST /v1/leases", "DELETE /v1/leases/a1b2"]


@pytest.mark.parametrize("way", ["allocate", "hold"])
def test_a_block_that_asyncio_cancels_releases_its_lease(way: str, tmp_path: Path) -> None:
    """``asyncio.timeout`` and ``Task.cancel`` cancel once, and not until the end of a scope."""
    with lease_server(tmp_path, HELD if way == "allocate" else stream(OWNED), RELEASED, hold=True) as server:
        client = Client(str(server.path))

        async def program() -> None:
            async with asyncio.timeout(None) as scope, getattr(client, way)({GPU: 1}):
                scope.reschedule(0.0)
                await asyncio.sleep(DEADLINE)

        with pytest.raises(TimeoutError):
            asyncio.run(program())
        assert lines(server) == ["POST /v1/leases", "DELETE /v1/leases/a1b2"]


def test_the_block_of_a_lost_lease_is_cancelled(run: Run, tmp_path: Path) -> None:
    with lease_server(tmp_path, stream(OWNED, GONE, end=True)) as server:

        async def program() -> None:
            with pytest.raises(LeaseLostError, match="it was released"):
                async with Client(str(server.path)).hold({GPU: 1}):
                    await anyio.sleep_forever()
            await anyio.lowlevel.checkpoint()  # Nothing is left to be cancelled.

        run(program)


def test_the_loss_of_a_lease_hides_no_cancellation_by_asyncio(tmp_path: Path) -> None:
    """asyncio would not cancel the task again."""
    with lease_server(tmp_path, stream(OWNED, GONE, end=True)) as server:

        async def program() -> None:
            async with Client(str(server.path)).hold({GPU: 1}) as held:
                with anyio.CancelScope(shield=True):
                    await until_lost(held)
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await asyncio.sleep(DEADLINE)

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(program())


async def until_lost(held: HeldLease) -> None:
    with anyio.fail_after(DEADLINE):
        while held.lost is None:  # noqa: ASYNC110 - a task of the client tells
            await anyio.sleep(0.01)


def test_a_wait_that_is_cancelled_is_withdrawn(run: Run, tmp_path: Path) -> None:
    """What may be under way is released by its name."""
    with lease_server(tmp_path, b"HTTP/1.1 201 Created\r\n", RELEASED, hold=True) as server:
        client = Client(str(server.path), timeout=0.2)

        async def program() -> None:
            with anyio.move_on_after(0.2) as scope:
                async with client.allocate({GPU: 1}, wait=60):
                    pass
            assert scope.cancelled_caught

        run(program)
        assert lines(server)[1].startswith("DELETE /v1/leases/")


ASKS: list[Callable[[Client], Coroutine[Any, Any, Any]]] = [
    lambda client: client.list(),
    lambda client: client.take({GPU: 1}, until_release=True),
    lambda client: client.wait_for("red.example.com"),
    lambda client: watched(client),
]


async def watched(client: Client) -> None:
    async with client.watch():
        pass


@pytest.mark.parametrize("ask", ASKS, ids=["list", "take", "wait", "watch"])
def test_a_call_that_is_cancelled_closes_its_connection(
    ask: Callable[[Client], Coroutine[Any, Any, Any]], run: Run, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "status.sock"))
        listener.listen()

        async def program() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(ask, Client(str(tmp_path / "status.sock")))
                connection, _ = await anyio.to_thread.run_sync(listener.accept)
                connection.settimeout(DEADLINE)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            # The program goes on: its end would close all connections.
            with connection, connection.makefile("rb") as sent:
                assert (await anyio.to_thread.run_sync(sent.read)).startswith((b"GET /", b"POST /"))

        run(program)


# --- closing ----------------------------------------------------------------------------------------------------------


@attrs.define
class Reader:
    """A task that reads a watch until its end."""

    states: list[str] = attrs.field(factory=list)
    has_begun: anyio.Event = attrs.field(factory=anyio.Event)

    async def run(self, changes: Watch[PluginStatus]) -> None:
        async for plugin in changes:
            self.states.append(plugin.state)
            self.has_begun.set()

    async def waits(self) -> None:
        """Wait until it waits for the second change."""
        await self.has_begun.wait()
        await anyio.wait_all_tasks_blocked()


async def close(changes: Watch[PluginStatus]) -> None:
    changes.close()


async def close_in_thread(changes: Watch[PluginStatus]) -> None:
    await anyio.to_thread.run_sync(changes.close)


async def leave_the_block(_: Watch[PluginStatus]) -> None:
    pass


@pytest.mark.parametrize("end", [close, close_in_thread, leave_the_block])
def test_a_watch_that_another_task_or_thread_closes_is_over(
    end: Callable[[Watch[PluginStatus]], Awaitable[None]], run: Run, tmp_path: Path
) -> None:
    """Whoever waits for the next change gets the end of the iteration, and no error."""
    with lease_server(tmp_path, chunked(line(), end=False), hold=True) as server:

        async def program() -> None:
            reader = Reader()
            async with (
                anyio.create_task_group() as group,
                Client(str(server.path), timeout=2 * DEADLINE).watch() as changes,
            ):
                group.start_soon(reader.run, changes)
                await reader.waits()
                await end(changes)
            assert reader.states == [StateName.REGISTERED]
            assert [plugin async for plugin in changes] == []

        run(program)


@pytest.mark.parametrize("ends_block", [False, True])
def test_a_watch_of_the_synchronous_client_that_another_thread_closes_is_over(ends_block: bool, tmp_path: Path) -> None:
    with lease_server(tmp_path, chunked(line(), end=False), hold=True) as server, ThreadPoolExecutor() as threads:
        with SyncClient(str(server.path), timeout=2 * DEADLINE).watch() as changes:
            assert next(changes).state is StateName.REGISTERED
            rest = threads.submit(list, changes)
            with pytest.raises(TimeoutError):
                rest.result(timeout=0.2)
            if not ends_block:
                changes.close()
                assert rest.result(timeout=DEADLINE) == []
        assert rest.result(timeout=DEADLINE) == []
        assert [*changes] == []
