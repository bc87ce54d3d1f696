"""The status socket: its permissions, the files that it replaces, and its errors."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import attrs
import pytest

from plugind.actors.status.listener import listen
from plugind.protocol.errors import ConfigError, SocketBusyError
from plugind.protocol.logs import Field, Level


@attrs.define
class Lines:
    """A logger that keeps its lines."""

    lines: list[tuple[Level, str, dict[str, Field]]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return True

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        self.lines.append((level, message, fields))


async def test_the_socket_is_for_its_owner_alone_and_is_removed(tmp_path: Path) -> None:
    """Fault 93: mode 0600, in a directory of mode 0700."""
    path = tmp_path / "made" / "status.sock"
    listener = listen(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["status.sock"], "no temporary file is left"
    listener.close()
    assert os.listdir(path.parent) == []


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "status.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = listen(str(path))
    with pytest.raises(
        SocketBusyError, match=r"another process answers at .*status\.sock; stop it, or give this one another"
    ):
        listen(str(path))
    assert path.is_socket()
    first.close()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="exists and is no socket; remove it or give another path with --status"):
        listen(str(path))
    assert path.read_text() == "data"
    with pytest.raises(ConfigError, match="cannot make the status socket"):
        listen(str(path / "below"))


async def test_the_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "status.sock"
    first = listen(str(path))
    path.unlink()
    second = listen(str(path))
    first.close()
    assert path.is_socket()
    second.close()
    assert not path.exists()


async def test_a_directory_too_deep_for_a_socket_address_holds_a_status_socket(tmp_path: Path) -> None:
    """Fault 23."""
    path = tmp_path / ("d" * 100) / ("e" * 100) / "status.sock"
    path.parent.parent.mkdir()
    with listen(str(path)):
        assert path.is_socket()
    assert not path.exists()


async def test_only_the_last_directory_of_the_path_is_made_and_that_is_logged(tmp_path: Path) -> None:
    """A misspelt path must not become a tree of new directories."""
    log = Lines()
    path = tmp_path / "missing" / "run" / "status.sock"
    reason = f"cannot make the status socket {path}: {tmp_path}/missing is missing, and plugind does not make it; give"
    with pytest.raises(ConfigError, match=reason):
        listen(str(path), log)
    assert (os.listdir(tmp_path), log.lines) == ([], [])
    (tmp_path / "missing").mkdir()
    for _ in range(2):
        listen(str(path), log).close()
    said = "directory of the status socket was missing and was made"
    assert log.lines == [(Level.INFO, said, {"directory": str(path.parent)})]


@pytest.mark.parametrize("path", ["", "status/", "a\0b"])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is not the path of a file; give one with --status"):
        listen(path)
