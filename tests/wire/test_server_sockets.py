"""The server's socket: how it is bound, what it replaces, what it leaves behind."""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from plugind.actors.io.grpc_server.serve import ServerLimits, bind_unix, serve_unix
from plugind.tests.wire.server_helpers import ByteClient, Echo, message, served

OK = {"grpc-status": "0"}


def names(directory: Path) -> list[str]:
    return os.listdir(directory)


def stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


async def test_the_socket_has_its_mode_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with served(path):
        found = path.lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
    assert names(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o777])
async def test_the_mode_is_what_was_asked_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    listener = bind_unix(str(tmp_path / "s"), mode=mode)
    listener.close()
    assert stat.S_IMODE((tmp_path / "s").lstat().st_mode) == mode


async def test_a_socket_that_replaced_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with served(path):
        path.unlink()
        stale_socket(path)
        theirs = path.lstat().st_ino
    assert path.lstat().st_ino == theirs


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale_socket(path)
    bind_unix(str(path), remove_stale=True).close()


async def test_a_living_socket_is_never_replaced(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as server:
        with pytest.raises(OSError, match="another process listens there") as caught:
            bind_unix(server.path, remove_stale=True)
        assert caught.value.errno == errno.EADDRINUSE
        client = ByteClient(await trio.open_unix_socket(server.path))
        await client.hello()
        assert await client.call("unary", message(b"x")) == OK
        await trio.aclose_forcefully(client.stream)


async def test_what_is_no_socket_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(OSError, match="something that is no socket is in the way"):
        bind_unix(str(tmp_path / "s"), remove_stale=True)
    assert (tmp_path / "s").read_text() == "precious"


def test_a_path_over_107_bytes_is_refused_with_its_reason(tmp_path: Path) -> None:
    """fault 23."""
    with pytest.raises(OSError, match="at most 107 bytes") as caught:
        bind_unix(str(tmp_path / ("x" * 108)))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_missing_directory_is_an_oserror_that_names_the_path(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "s")
    with pytest.raises(FileNotFoundError) as caught:
        bind_unix(path)
    assert caught.value.filename == path


async def test_stopping_refuses_new_connections_and_removes_the_path_while_calls_end(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    echo, stopping = Echo(), trio.Event()
    with trio.fail_after(20):
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
            # The nursery ends by itself, since the last call is gone.
    assert echo.cancelled.is_set()
    await trio.aclose_forcefully(client.stream)


async def test_connections_above_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    async with served(tmp_path / "s", ServerLimits(max_connections=2)) as server:
        kept = [ByteClient(await trio.open_unix_socket(server.path)) for _ in range(2)]
        for client in kept:
            await client.hello()
            assert await client.call("unary", message(b"x")) == OK
        above = await trio.open_unix_socket(server.path)
        assert await above.receive_some(100) == b""
        for client in kept:
            client.events.clear()
            assert await client.call("unary", message(b"x")) == OK
            await trio.aclose_forcefully(client.stream)
        await trio.aclose_forcefully(above)


async def test_the_peer_of_a_call_is_the_process_that_dialed(tmp_path: Path) -> None:
    """The server knows the credentials of its client."""
    async with served(tmp_path / "s") as server:
        client = ByteClient(await trio.open_unix_socket(server.path))
        await client.hello()
        await client.call("unary", message(b"x"))
        (peer,) = server.echo.peers
        assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
        await trio.aclose_forcefully(client.stream)
