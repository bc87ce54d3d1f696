"""Endpoints: real files and real connections are judged."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugind.actors.grpc import endpoints as endpoints_module
from plugind.actors.grpc.endpoints import EndpointRefusedError, Endpoints, RealEndpointFiles
from plugind.actors.io.file_identity import identity_at
from plugind.actors.io.unix_socket import Credentials
from plugind.protocol.discovery.sockets import EntryKind
from plugind.protocol.errors import ValidationError
from plugind.protocol.identity import Identity
from plugind.tests.actors.io.exhaustion import descriptors


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def identity(path: Path) -> Identity:
    return identity_at(os.lstat(path), str(path))


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "own").mkdir()
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "own" / "own.sock"))
    return tmp_path / "allowed"


def endpoints(allowed: Path, *, status_socket: Path | None = None) -> Endpoints:
    return Endpoints(RealEndpointFiles(), (str(allowed),), None if status_socket is None else str(status_socket))


def judged(judge: Endpoints, endpoint: Path) -> EntryKind | None:
    """Judge an endpoint for a plugin in a directory where endpoints may not be."""
    own = endpoint.parents[0] if endpoint.name == "own.sock" else Path(judge.directories[0]).parent / "own"
    found = judge.judge(str(endpoint), str(own / "own.sock"), identity(own / "own.sock"))
    return None if found is None else found.kind


def test_a_socket_in_an_allowed_directory_is_accepted(allowed: Path) -> None:
    """Fault 43."""
    with listening(allowed / "e.sock"):
        assert judged(endpoints(allowed), allowed / "e.sock") is EntryKind.SOCKET
        assert judged(endpoints(allowed), allowed / ".." / "allowed" / "e.sock") is EntryKind.SOCKET
    assert judged(endpoints(allowed), allowed / "later" / "e.sock") is None, "it does not exist yet"


def test_the_real_path_counts_on_both_sides(allowed: Path, tmp_path: Path) -> None:
    """Fault 43."""
    (tmp_path / "link").symlink_to(allowed)
    with listening(allowed / "e.sock"):
        assert judged(endpoints(allowed), tmp_path / "link" / "e.sock") is EntryKind.SOCKET
        assert judged(endpoints(tmp_path / "link"), allowed / "e.sock") is EntryKind.SOCKET
    (allowed / "out").symlink_to(tmp_path / "own")
    with pytest.raises(ValidationError, match="is in none of the directories for endpoints"):
        judged(endpoints(allowed), allowed / "out" / "other.sock")


@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "link", "dangling link"])
def test_what_is_no_socket_is_refused(allowed: Path, kind: str) -> None:
    """Fault 43: nothing is opened, so that a FIFO does not hang the daemon."""
    path = allowed / "e.sock"
    match kind:
        case "file":
            path.touch()
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(allowed.parent / "own" / "own.sock")
        case _:
            path.symlink_to("nowhere")
    with pytest.raises(ValidationError, match=r"is no socket|is a directory|is a symbolic link"):
        judged(endpoints(allowed), path)
    with pytest.raises(EndpointRefusedError, match=r"is no socket|is a directory|is a symbolic link"):
        endpoints(allowed).connect(str(path))


def test_passwd_is_no_endpoint_and_an_error_of_a_look_is_a_reason(allowed: Path) -> None:
    """Fault 43."""
    with pytest.raises(ValidationError, match="'/etc/passwd' is no socket"):
        judged(endpoints(allowed), Path("/etc/passwd"))
    with pytest.raises(ValidationError, match=r"cannot look at the endpoint .*: File name too long"):
        judged(endpoints(allowed), allowed / ("x" * 300))


def test_the_own_socket_of_a_plugin_is_accepted_under_any_name(allowed: Path) -> None:
    """Fault 43: other spellings and hard links are the same socket."""
    own = allowed.parent / "own"
    os.link(own / "own.sock", own / "linked.sock")
    for endpoint in (f"{own}/own.sock", f"{own}//own.sock", f"{own}/./own.sock", f"{own}/linked.sock"):
        endpoints(allowed).judge(endpoint, str(own / "own.sock"), identity(own / "own.sock"))


def test_the_status_socket_is_no_endpoint_under_any_name(allowed: Path) -> None:
    """Fault 45: plugind would call itself."""
    status = allowed / "status.sock"
    judge = endpoints(allowed, status_socket=status)
    assert not judge.is_status_socket(identity(allowed.parent / "own" / "own.sock"))
    with listening(status):
        os.link(status, allowed / "linked.sock")
        assert judge.is_status_socket(identity(allowed / "linked.sock"))
        for path in (status, allowed / "linked.sock"):
            with pytest.raises(ValidationError, match="is plugind's own status socket"):
                judged(judge, path)
            with pytest.raises(EndpointRefusedError, match="is plugind's own status socket"):
                judge.connect(str(path))


@pytest.mark.parametrize("proc", [True, False])
def test_a_connection_reaches_the_socket_and_says_who_listens(
    allowed: Path, proc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 43."""
    monkeypatch.setattr(endpoints_module, "can_connect_to_descriptors", lambda: proc)
    before = descriptors()
    with listening(allowed / "e.sock"):
        connection = endpoints(allowed).connect(str(allowed / "e.sock"))
        assert (connection.peer.pid, connection.peer.uid) == (os.getpid(), os.getuid())
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        endpoints(allowed).connect(str(allowed / "e.sock"))
    with pytest.raises(FileNotFoundError):
        endpoints(allowed).connect(str(allowed / "missing.sock"))
    assert descriptors() == before


def test_each_connection_judges_the_process_that_listens(allowed: Path) -> None:
    """Fault 40: the endpoint did not exist when its plugin was registered, and another user may have made it."""
    refused: list[Credentials] = []

    def distrust(peer: Credentials) -> str | None:
        refused.append(peer)
        return f"user {peer.uid} is not trusted"

    before = descriptors()
    with listening(allowed / "e.sock"):
        judge = Endpoints(RealEndpointFiles(), (str(allowed),), None, distrust)
        with pytest.raises(EndpointRefusedError, match=f"is not used: user {os.getuid()} is not trusted"):
            judge.connect(str(allowed / "e.sock"))
    assert [peer.pid for peer in refused] == [os.getpid()]
    assert descriptors() == before


def test_a_connection_reaches_the_file_that_was_judged(allowed: Path) -> None:
    """Fault 43: a directory that is swapped with a link after the look leads nowhere else."""
    real = RealEndpointFiles()
    (allowed / "d").mkdir()

    def swap(_: object) -> None:
        (allowed / "d").rename(allowed / "old")
        (allowed / "d").symlink_to(allowed.parent / "secret")

    (allowed.parent / "secret").mkdir()
    with listening(allowed / "d" / "e.sock") as wanted, listening(allowed.parent / "secret" / "e.sock") as secret:
        real.connect(str(allowed / "d" / "e.sock"), swap).close()
        wanted.settimeout(5)
        wanted.accept()[0].close()
        secret.setblocking(False)
        with pytest.raises(BlockingIOError):
            secret.accept()
