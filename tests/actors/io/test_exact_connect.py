"""Connections to one certain socket file, while another takes its place."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from plugind.actors.io import exact_connect
from plugind.actors.io.connecting import stream_socket
from plugind.actors.io.exact_connect import connect_to
from plugind.actors.io.file_identity import identity_at, identity_of
from plugind.actors.io.processes import Processes
from plugind.protocol.health.liveness import ConnectAnswer
from plugind.protocol.identity import Identity
from plugind.tests.actors.io.exhaustion import descriptors


@pytest.fixture(params=["/proc", "no /proc"])
def proc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With ``/proc``, and as if it could not be had."""
    there = bool(request.param == "/proc")
    if not there:
        monkeypatch.setattr(exact_connect, "can_connect_to_descriptors", lambda: False)
    return there


def listener(path: Path, backlog: int = 16) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(backlog)
    server.setblocking(False)
    return server


def identity(path: Path) -> Identity:
    return identity_at(os.lstat(path), str(path))


def connect(path: Path, to: Identity, *, follow_symlinks: bool = False) -> None:
    with stream_socket() as connection:
        connect_to(connection, str(path), to, follow_symlinks=follow_symlinks)


def test_the_file_that_the_look_found_is_reached(tmp_path: Path, proc: bool) -> None:
    """Fault 41, and no descriptor stays open."""
    with listener(tmp_path / "a.sock") as server:
        before = descriptors()
        connect(tmp_path / "a.sock", identity(tmp_path / "a.sock"))
        assert descriptors() == before
        server.accept()[0].close()


def ask_listener(path: str, identity: Identity, *, follow_symlinks: bool = False) -> ConnectAnswer:
    """What the liveness actor learns of a file."""
    with closing(Processes(1, follow_symlinks=follow_symlinks)) as processes:
        return processes.look(path, identity, take_process=False)[0]


def test_a_socket_that_took_its_place_is_not_reached(tmp_path: Path, proc: bool) -> None:
    """Fault 41: it has the inode number of the old one, where the file system reuses them."""
    path = tmp_path / "a.sock"
    with listener(path):
        old = identity(path)
    path.unlink()
    with listener(path) as server:
        before = descriptors()
        with pytest.raises(OSError, match="another file is in its place") as caught:
            connect(path, old)
        assert (caught.value.errno, descriptors()) == (errno.ESTALE, before)
        assert ask_listener(str(path), old) is ConnectAnswer.REPLACED
        if proc:
            # Without /proc it is reached, but recognized afterwards: the client closes the connection at once.
            with pytest.raises(BlockingIOError):
                server.accept()


def test_a_socket_that_is_replaced_after_the_comparison_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 41: the last moment before connect(). The old inode refuses; the new listener is left alone."""
    path = tmp_path / "a.sock"
    old = listener(path)
    found = identity(path)
    new: list[socket.socket] = []

    def replace(descriptor: int) -> Identity:
        seen = identity_of(descriptor)
        if not new:
            old.close()
            path.unlink()
            new.append(listener(path))
        return seen

    monkeypatch.setattr(exact_connect, "identity_of", replace)
    with pytest.raises(ConnectionRefusedError):
        connect(path, found)
    with new[0] as server, pytest.raises(BlockingIOError):
        server.accept()


def test_a_socket_that_was_unlinked_and_is_still_listened_on_is_reached_no_more(tmp_path: Path, proc: bool) -> None:
    """Fault 38: nothing is at the path."""
    path = tmp_path / "a.sock"
    with listener(path):
        found = identity(path)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            connect(path, found)
        assert ask_listener(str(path), found) is ConnectAnswer.MISSING


@pytest.mark.parametrize("follow", [False, True])
def test_a_link_is_followed_only_if_that_is_asked_for(tmp_path: Path, proc: bool, follow: bool) -> None:
    """Behaviour 7: a link to the very socket of the look is still a link."""
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a.sock", tmp_path / "link.sock"
    link.symlink_to(target)
    with listener(target):
        found = identity(target)
        if follow:
            connect(link, found, follow_symlinks=True)
            assert ask_listener(str(link), found, follow_symlinks=True) is ConnectAnswer.ACCEPTED
        elif proc:
            assert ask_listener(str(link), found) is ConnectAnswer.REPLACED
    target.unlink()
    with listener(target):
        assert ask_listener(str(link), found, follow_symlinks=follow) is ConnectAnswer.REPLACED


def test_a_path_over_107_bytes_is_refused_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 23: there is no way to name it."""
    monkeypatch.setattr(exact_connect, "can_connect_to_descriptors", lambda: False)
    path = tmp_path / ("n" * 200)
    with listener(tmp_path / "a.sock"):
        (tmp_path / "a.sock").rename(path)
        with pytest.raises(OSError, match="107 bytes") as caught:
            connect(path, identity(path))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_the_answers_distinguish_a_listener_from_a_socket_that_nobody_listens_on(tmp_path: Path, proc: bool) -> None:
    """Faults 28 and 30."""
    path = tmp_path / "a.sock"
    with listener(path, backlog=0):
        found = identity(path)
        assert ask_listener(str(path), found) is ConnectAnswer.ACCEPTED
        assert ask_listener(str(path), found) is ConnectAnswer.ACCEPTED
    assert ask_listener(str(path), found) is ConnectAnswer.REFUSED
    assert ask_listener(str(tmp_path / "a.sock" / "b.sock"), found) is ConnectAnswer.MISSING


def test_an_error_without_evidence_of_a_listener_says_nothing(tmp_path: Path) -> None:
    """Fault 31: a datagram socket."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        assert ask_listener(str(path), identity(path)) is ConnectAnswer.UNKNOWN
