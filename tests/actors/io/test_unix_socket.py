"""Unix sockets: binding, replacing and removing, paths of any length, credentials, and accept() without descriptors."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from plugind.actors.io import unix_socket
from plugind.actors.io.connecting import MAX_PATH, connect, stream_socket
from plugind.actors.io.descriptors import DescriptorReserve
from plugind.actors.io.unix_socket import Credentials, UnixListener, listen
from plugind.tests.actors.io.exhaustion import no_descriptor_left


def stale_socket(path: Path, kind: int = socket.SOCK_STREAM) -> None:
    """Create a socket without a listener, as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))


def connected(path: Path) -> socket.socket:
    """Return a connection to ``path`` that the listener has not accepted yet."""
    connection = stream_socket()
    try:
        connect(connection, str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def path_of_length(directory: Path, length: int) -> Path:
    return directory / ("x" * (length - len(os.fsencode(directory)) - 1))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# --- bind -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o777])
async def test_the_mode_is_the_requested_one_whatever_the_umask(tmp_path: Path, mode: int, mask: int) -> None:
    with umask(mask), listen(str(tmp_path / "s"), mode=mode):
        found = (tmp_path / "s").lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == mode


async def test_the_mode_is_never_wider_than_requested_not_even_before_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the mode were only changed after bind(), others could connect in between."""
    seen = []
    real = socket.socket.bind

    def bind(self: socket.socket, address: str) -> None:
        real(self, address)
        seen.append(stat.S_IMODE(os.lstat(address).st_mode))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with umask(0), listen(str(tmp_path / "s"), mode=0o600):
        assert seen == [0o600]


async def test_a_stale_socket_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale_socket(path)
    with pytest.raises(OSError, match="Address already in use") as caught:
        listen(str(path))
    assert (caught.value.errno, caught.value.filename) == (errno.EADDRINUSE, str(path))
    with listen(str(path), remove_stale=True), connected(path):
        pass


async def test_a_socket_that_listens_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen(str(path)):
        with pytest.raises(OSError, match="another process listens there") as caught:
            listen(str(path), remove_stale=True)
        assert caught.value.errno == errno.EADDRINUSE
        connected(path).close()


async def test_a_datagram_socket_is_never_replaced(tmp_path: Path) -> None:
    """connect() fails with EPROTOTYPE, whether or not the process of the socket runs."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(OSError, match="another process listens there"):
            listen(str(path), remove_stale=True)
    assert path.is_socket()


async def test_a_file_that_is_no_socket_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(OSError, match="something that is no socket is in the way") as caught:
        listen(str(tmp_path / "s"), remove_stale=True)
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "s").read_text() == "precious"


def test_a_socket_that_is_bound_and_cannot_listen_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, backlog: int) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(socket.socket, "listen", refuse)
    with pytest.raises(OSError, match="No buffer space"):
        listen(str(tmp_path / "s"))
    assert os.listdir(tmp_path) == []


async def test_a_socket_whose_file_is_removed_at_once_listens_out_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that starts removes the sockets in its directory of device plugins."""
    path = tmp_path / "s"
    begin = socket.socket.listen

    def removed(self: socket.socket, backlog: int) -> None:
        begin(self, backlog)
        path.unlink()

    monkeypatch.setattr(socket.socket, "listen", removed)
    with listen(str(path)) as listener:
        assert not listener.is_in_place()
        path.touch()
    assert path.exists(), "it is another file"


# --- paths of 107 bytes and more (fault 23) ---------------------------------------------------------------------------


def test_a_path_over_107_bytes_is_refused_with_its_reason(tmp_path: Path) -> None:
    """Fault 23."""
    with pytest.raises(OSError, match="at most 107 bytes") as caught:
        listen(str(path_of_length(tmp_path, MAX_PATH + 1)))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.listdir(tmp_path) == []


async def test_a_longer_path_is_bound_and_reached_if_any_length_is_allowed(tmp_path: Path) -> None:
    """Fault 23."""
    path = tmp_path / ("d" * 100) / "s"
    path.parent.mkdir()
    stale_through_its_directory(path)
    with listen(str(path), any_length=True, remove_stale=True), connected(path):
        assert path.is_socket()
        with pytest.raises(OSError, match="another process listens there"):
            listen(str(path), any_length=True, remove_stale=True)
    assert not path.exists()


def stale_through_its_directory(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_PATH)
    stale_socket(Path(f"/proc/self/fd/{descriptor}/{path.name}"))
    os.close(descriptor)


async def test_a_name_too_long_even_within_its_directory_is_reached_and_cannot_be_bound(tmp_path: Path) -> None:
    """Fault 23."""
    path = tmp_path / ("n" * 200)
    with listen(str(tmp_path / "s")):
        os.rename(tmp_path / "s", path)
        connected(path).close()
    with pytest.raises(OSError, match="at most 107 bytes"):
        listen(str(tmp_path / ("m" * 200)), any_length=True)


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_removes_the_file_and_may_be_repeated(tmp_path: Path) -> None:
    listener = listen(str(tmp_path / "s"))
    listener.close()
    assert os.listdir(tmp_path) == []
    with listen(str(tmp_path / "s")):
        listener.close()
        assert os.listdir(tmp_path) == ["s"]


async def test_the_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen(str(path))
    path.unlink()
    with listen(str(path)):
        first.close()
        connected(path).close()


# --- accept -----------------------------------------------------------------------------------------------------------


async def test_credentials_are_those_of_the_other_process_on_both_sides(tmp_path: Path) -> None:
    """They are available before a byte is sent."""
    us = Credentials(os.getpid(), os.getuid(), os.getgid())
    with listen(str(tmp_path / "s")) as listener, connected(tmp_path / "s") as client:
        assert unix_socket.peer_credentials(client) == us
        with await listener.accept() as accepted:
            assert unix_socket.peer_credentials(accepted) == us


def test_the_numbers_of_users_have_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a directory service may have one above 2,147,483,647, and was taken for another one."""
    peer = struct.pack("iII", 7, 3_000_000_000, 4_000_000_000)
    with socket.socket(socket.AF_UNIX) as connection:
        monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: peer)
        assert unix_socket.peer_credentials(connection) == Credentials(7, 3_000_000_000, 4_000_000_000)


async def test_a_connection_that_arrives_when_no_descriptor_is_left_is_accepted_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Fault 46: the connection stays pending, accept() is retried after a pause, and each failure is reported."""
    errors: list[int | None] = []
    with listen(str(tmp_path / "s")) as listener, connected(tmp_path / "s"):
        async with trio.open_nursery() as nursery:
            with no_descriptor_left():
                nursery.start_soon(accept_one, listener, errors)
                await trio.sleep(0.25)
                assert errors == [errno.EMFILE] * 3
    assert errors == [errno.EMFILE] * 3


async def test_a_connection_is_accepted_without_a_pause_on_a_descriptor_that_was_kept_for_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Fault 46: nothing else can take the descriptor in between."""
    with DescriptorReserve(1) as reserve, listen(str(tmp_path / "s")) as listener, connected(tmp_path / "s"):
        with no_descriptor_left():
            accepted = await listener.accept(lambda _: reserve.close_one())
            assert trio.current_time() == 0.0
            assert not reserve.close_one()
            assert not reserve.refill()
            accepted.close()
            assert reserve.refill()
            assert reserve.count_left(5) == 0
        assert reserve.count_left(5) == 5


async def accept_one(listener: UnixListener, errors: list[int | None]) -> None:
    with await listener.accept(lambda error: errors.append(error.errno)):
        pass


@pytest.mark.parametrize("number", [errno.EIO, errno.EPROTO, errno.ENOSPC, errno.ENETDOWN])
async def test_any_other_error_of_accept_is_that_of_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, number: int
) -> None:
    """Fault 85: the listener goes on after a pause, so that an error which stays takes no processor time."""
    failures = [OSError(number, os.strerror(number)) for _ in range(3)]
    with listen(str(tmp_path / "s")) as listener, connected(tmp_path / "s"):
        fail_first(listener, failures, monkeypatch)
        with await listener.accept():
            assert (failures, round(trio.current_time(), 6)) == ([], 0.3)


def fail_first(listener: UnixListener, failures: list[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make accept() raise each of ``failures`` before it succeeds."""
    real = listener.socket.accept

    async def accept() -> tuple[trio.socket.SocketType, object]:
        if failures:
            raise failures.pop(0)
        return await real()

    monkeypatch.setattr(listener.socket, "accept", accept)


async def test_closing_ends_an_accept_that_waits(tmp_path: Path, nursery: trio.Nursery) -> None:
    listener = listen(str(tmp_path / "s"))

    async def close() -> None:
        await trio.testing.wait_all_tasks_blocked()
        listener.close()

    nursery.start_soon(close)
    with trio.fail_after(10), pytest.raises(trio.ClosedResourceError):
        await listener.accept()
