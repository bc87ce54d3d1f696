"""Connections to unix sockets, and every way in which connecting fails."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from plugind.actors.grpc.client import dial as dial_module
from plugind.actors.grpc.client.dial import dial
from plugind.actors.io.file_identity import identity_at
from plugind.actors.io.unix_socket import Credentials
from plugind.protocol.wire.errors import DialError, DialFailure


def listener(path: str, backlog: int = 16) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(backlog)
    return server


async def failure(path: str, *, timeout: float = 60.0, refused_grace: float = 0.0) -> DialError:
    with trio.fail_after(60), pytest.raises(DialError) as caught:
        await dial(path, timeout=timeout, refused_grace=refused_grace)
    assert caught.value.path == path
    return caught.value


@contextmanager
def powerless() -> Iterator[None]:
    """Run the block without root's capability to open any file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_listener_that_is_not_trusted_gets_no_byte(tmp_path: Path) -> None:
    """Fault 40: it is judged by its credentials after the connect, and before anything is sent."""
    path = str(tmp_path / "a.sock")
    judged: list[Credentials] = []

    def judge(peer: Credentials) -> str:
        judged.append(peer)
        return "no friend"

    with listener(path) as server:
        with pytest.raises(DialError) as caught:
            await dial(path, timeout=60, judge=judge)
        with server.accept()[0] as connection:
            assert connection.recv(1) == b""
    assert judged == [Credentials(os.getpid(), os.getuid(), os.getgid())]
    assert (caught.value.kind, caught.value.cause) == (DialFailure.UNTRUSTED, "no friend")
    assert caught.value.message == f"cannot trust {path!r}: no friend"


async def test_a_socket_that_begins_to_listen_within_the_grace_is_reached(tmp_path: Path) -> None:
    """Behaviour 12: bind comes before listen, and connect is refused between them."""
    path = str(tmp_path / "a.sock")
    with trio.fail_after(60), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)

        async def listen_later() -> None:
            await trio.sleep(0.05)
            server.listen()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen_later)
            channel = await dial(path, timeout=9, refused_grace=9)
            channel.close()


async def test_a_stale_socket_is_refused_after_the_grace(tmp_path: Path) -> None:
    """Fault 28: there is no listener, and the file stays."""
    path = str(tmp_path / "a.sock")
    listener(path).close()
    error = await failure(path, refused_grace=0.01)
    assert (error.kind, str(error)) == (DialFailure.REFUSED, f"nobody listens on {path!r}")
    assert os.listdir(tmp_path) == ["a.sock"]


async def test_a_forbidden_socket_is_denied(tmp_path: Path) -> None:
    """Fault 29."""
    path = str(tmp_path / "a.sock")
    with listener(path):
        os.chmod(path, 0)
        with powerless():
            error = await failure(path)
    assert (error.kind, str(error)) == (DialFailure.DENIED, f"cannot connect to {path!r}: Permission denied")


async def test_a_full_backlog_is_tried_until_the_deadline(tmp_path: Path) -> None:
    """Fault 30: EAGAIN means that the backlog is full."""
    path = str(tmp_path / "a.sock")
    with listener(path, backlog=0), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.connect(path)
        error = await failure(path, timeout=0.0499999)
    assert (error.kind, str(error)) == (DialFailure.TIMED_OUT, f"the backlog of {path!r} was full for 0.05 s")


async def test_a_dial_succeeds_once_the_backlog_has_room(tmp_path: Path) -> None:
    """Fault 30: a dial that waits for room is accepted."""
    path = str(tmp_path / "a.sock")
    with trio.fail_after(60), listener(path, backlog=0) as server, socket.socket(socket.AF_UNIX) as first:
        first.connect(path)

        async def accept_later() -> None:
            await trio.sleep(0.02)
            server.accept()[0].close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_later)
            channel = await dial(path, timeout=9)
        server.setblocking(False)
        accepted, _ = server.accept()
        accepted.close()
        channel.close()


async def test_a_datagram_socket_is_not_a_stream(tmp_path: Path) -> None:
    """Fault 31: the failure is terminal for this generation, so it has a kind of its own."""
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        error = await failure(path)
    assert error.kind is DialFailure.NOT_A_STREAM


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *(("a.sock", DialFailure.GONE), ("d" * 120 + "/a.sock", DialFailure.GONE), ("n" * 200, DialFailure.GONE)),
        *(("", DialFailure.BAD_PATH), ("\0abstract", DialFailure.BAD_PATH), ("a\0b", DialFailure.BAD_PATH)),
        *(("@abstract", DialFailure.BAD_PATH), ("x" * 5000, DialFailure.BAD_PATH)),
    ],
)
async def test_a_path_to_no_socket_is_gone_or_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: DialFailure
) -> None:
    """Faults 23 and 42: an abstract name, an empty path, a NUL, and names that no file can have are rejected."""
    monkeypatch.chdir(tmp_path)
    assert (await failure(path)).kind is kind


@pytest.mark.parametrize("kind", [DialFailure.GONE, DialFailure.REPLACED])
async def test_a_socket_that_is_removed_or_replaced_while_it_refuses_is_not_reached(
    tmp_path: Path, kind: DialFailure
) -> None:
    """Fault 41, behaviour 12: the dial waits for the old socket to be listened on, and the new one is."""
    path = str(tmp_path / "a.sock")
    listener(path).close()
    identity = identity_at(os.lstat(path), path)
    errors: list[DialError] = []

    async def dial_it() -> None:
        with pytest.raises(DialError) as caught:
            await dial(path, identity=identity, timeout=9, refused_grace=9)
        errors.append(caught.value)

    with trio.fail_after(60), ExitStack() as listening:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial_it)
            await trio.testing.wait_all_tasks_blocked()
            os.unlink(path)
            if kind is DialFailure.REPLACED:
                listening.enter_context(listener(path))
    assert [error.kind for error in errors] == [kind]


@pytest.mark.parametrize("name", ["n" * 60 + ".sock", "n" * 250 + ".sock"])
async def test_a_path_over_107_bytes_is_dialed(tmp_path: Path, name: str) -> None:
    """Fault 23: through a descriptor of its directory, or of the socket if its name is too long by itself."""
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    path = str(directory / name)
    descriptor = os.open(directory, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(f"/proc/self/fd/{descriptor}/s")
        os.rename("s", name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        os.close(descriptor)
        server.listen()
        before = os.listdir("/proc/self/fd")
        channel = await dial(path, timeout=60)
        channel.close()
        assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_a_lack_of_descriptors_is_reported(tmp_path: Path) -> None:
    """Fault 46."""
    path = str(tmp_path / "a.sock")
    with listener(path):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(DialError) as caught:
                await dial(path, timeout=60)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.kind is DialFailure.EXHAUSTED


async def test_a_connection_whose_credentials_the_kernel_does_not_tell_is_a_failed_dial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: an error of SO_PEERCRED is one connection's, and leaves no descriptor."""
    path = str(tmp_path / "a.sock")

    def fail(_: socket.socket) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(dial_module, "peer_credentials", fail)
    with listener(path):
        before = os.listdir("/proc/self/fd")
        error = await failure(path)
        assert len(os.listdir("/proc/self/fd")) == len(before)
    assert (error.kind, error.cause) == (DialFailure.FAILED, "cannot connect: Transport endpoint is not connected")


async def test_a_dial_that_fails_or_is_cancelled_leaves_no_descriptor(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    listener(path).close()
    before = os.listdir("/proc/self/fd")
    await failure(path)
    with trio.move_on_after(0.01) as scope:
        await dial(path, timeout=9, refused_grace=9)
    assert scope.cancelled_caught
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_a_socket_that_took_the_place_of_another_is_not_reached(tmp_path: Path) -> None:
    """Fault 41: the kind of the error shows that; no connection reaches the listener there."""
    path = str(tmp_path / "a.sock")
    with listener(path):
        identity = identity_at(os.lstat(path), path)
        with trio.fail_after(60):
            (await dial(path, identity=identity, timeout=60)).close()
    os.unlink(path)
    with listener(path) as server, trio.fail_after(60):
        with pytest.raises(DialError, match="another file is in its place") as caught:
            await dial(path, identity=identity, timeout=60)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert caught.value.kind is DialFailure.REPLACED
