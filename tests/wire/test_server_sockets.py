"""The server on a real socket: removal of the path, limits of connections, credentials of clients."""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from plugind.actors.grpc.server import serve
from plugind.actors.grpc.server.serve import ConnectionEnding, EndReason, ServerLimits, serve_unix
from plugind.actors.io.unix_socket import Credentials, peer_credentials
from plugind.tests.wire.server_helpers import ByteClient, Echo, message, served

OK = {"grpc-status": "0"}


def names(directory: Path) -> list[str]:
    return os.listdir(directory)


async def test_stopping_refuses_new_connections_and_removes_the_path_while_calls_end(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    echo, stopping = Echo(), trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(functools.partial(serve_unix, [echo], path, stopping=stopping))
            client = ByteClient(await trio.open_unix_socket(path))
            await client.hello()
            stream_id = client.open_call("hang", end=False)
            await client.flush()
            await echo.hanging.wait()
            stopping.set()
            await trio.testing.wait_all_tasks_blocked()
            assert names(tmp_path) == []
            client.h2.reset_stream(stream_id)
            await client.flush()
            # The nursery ends by itself, since the last call has ended.
    assert echo.cancelled.is_set()
    await trio.aclose_forcefully(client.stream)


async def test_connections_over_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    async with served(tmp_path / "s", ServerLimits(max_connections=2)) as server:
        kept = [ByteClient(await trio.open_unix_socket(server.path)) for _ in range(2)]
        for client in kept:
            await client.hello()
            assert await client.call("unary", message(b"x")) == OK
        above = await trio.open_unix_socket(server.path)
        assert await above.receive_some(100) == b""
        assert server.reports.endings == [ConnectionEnding(EndReason.TOO_MANY, "2 are open")]
        for client in kept:
            client.events.clear()
            assert await client.call("unary", message(b"x")) == OK
            await trio.aclose_forcefully(client.stream)
        await trio.aclose_forcefully(above)


async def test_a_handler_sees_the_credentials_of_the_process_that_calls(tmp_path: Path) -> None:
    """A handler can check the uid and the process of the client."""
    async with served(tmp_path / "s") as server:
        client = ByteClient(await trio.open_unix_socket(server.path))
        await client.hello()
        await client.call("unary", message(b"x"))
        (peer,) = server.echo.peers
        assert peer.credentials == Credentials(os.getpid(), os.getuid(), os.getgid())
        await trio.aclose_forcefully(client.stream)


async def test_a_connection_whose_credentials_the_kernel_does_not_tell_is_closed_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: an error of SO_PEERCRED is one connection's."""
    failures = [OSError(errno.ENOTCONN, "not connected")]

    def credentials(accepted: trio.socket.SocketType) -> Credentials:
        if failures:
            raise failures.pop()
        return peer_credentials(accepted)

    monkeypatch.setattr(serve, "peer_credentials", credentials)
    async with served(tmp_path / "s") as server:
        refused = await trio.open_unix_socket(server.path)
        assert await refused.receive_some() == b""
        await refused.aclose()
        client = ByteClient(await trio.open_unix_socket(server.path))
        await client.hello()
        await client.call("unary", message(b"x"))
        await trio.aclose_forcefully(client.stream)
