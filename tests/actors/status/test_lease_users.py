"""The status socket of a node whose devices other users may lease: its mode, its directory, and what they may ask."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from plugind.actors.http.server import HttpRequest
from plugind.actors.status.api import REQUESTS, changes_nothing, is_for_lease_users
from plugind.actors.status.listener import listen
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.config import LeaseUsers
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.settings.socket_users import SocketUsers

OWN_GROUP = LeaseUsers(group=os.getegid())
ALICE = LeaseUsers(frozenset({1000}))


@pytest.mark.parametrize(
    ("users", "mode", "directory"),
    [
        (LeaseUsers(), 0o600, 0o700),
        (OWN_GROUP, 0o660, 0o711),
        (ALICE, 0o666, 0o711),
        (LeaseUsers(frozenset({1000}), os.getegid()), 0o666, 0o711),
    ],
)
async def test_the_socket_is_as_wide_as_its_users_need(
    users: LeaseUsers, mode: int, directory: int, tmp_path: Path
) -> None:
    """A group can be let in alone. Users who have no group in common cannot, and are asked who they are."""
    path = tmp_path / "made" / "status.sock"
    with listen(str(path), SILENT, users):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert stat.S_IMODE(path.parent.stat().st_mode) == directory
        assert path.stat().st_gid == os.getegid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to any group")
async def test_the_socket_belongs_to_the_group(tmp_path: Path) -> None:
    path = tmp_path / "made" / "status.sock"
    with listen(str(path), SILENT, LeaseUsers(group=4711)):
        assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (4711, 0o660)


async def test_a_group_that_the_daemon_may_not_give_it_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket is left, and none was open to others meanwhile."""

    def chown(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    path = tmp_path / "made" / "status.sock"
    with pytest.raises(ConfigError, match=r"to the group 4711: Operation not permitted; .* name another --lease-group"):
        listen(str(path), SILENT, LeaseUsers(group=4711))
    assert os.listdir(path.parent) == []


async def test_a_directory_that_the_users_cannot_pass_is_an_error(tmp_path: Path) -> None:
    """The socket would be there, and nobody could lease anything."""
    os.chmod(tmp_path, 0o700)
    with pytest.raises(ConfigError, match=f"in {tmp_path}: run 'chmod o[+]x {tmp_path}'"):
        listen(str(tmp_path / "s"), SILENT, OWN_GROUP)
    os.chmod(tmp_path, 0o710)
    listen(str(tmp_path / "s"), SILENT, OWN_GROUP).close()
    with pytest.raises(ConfigError, match="cannot reach"):
        listen(str(tmp_path / "s"), SILENT, ALICE)
    os.chmod(tmp_path, 0o701)
    listen(str(tmp_path / "s"), SILENT, ALICE).close()


@pytest.mark.parametrize(
    ("mode", "users", "replaced"),
    [
        (0o600, OWN_GROUP, True),
        (0o660, OWN_GROUP, True),
        (0o660, LeaseUsers(), False),
        (0o666, ALICE, True),
        (0o666, OWN_GROUP, False),
        (0o755, ALICE, False),
    ],
)
async def test_a_stale_socket_is_known_by_the_mode_that_a_daemon_gives_it(
    mode: int, users: LeaseUsers, replaced: bool, tmp_path: Path
) -> None:
    """With these users or without any: a daemon that was killed may have been started before they were named."""
    path = tmp_path / "status.sock"
    os.chmod(tmp_path, 0o711)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(mode)
    if replaced:
        listen(str(path), SILENT, users).close()
        return
    with pytest.raises(ConfigError, match="nobody listens, and which no daemon of this user has left: run 'rm"):
        listen(str(path), SILENT, users)


READERS = SocketUsers(readers=4711)
LEASING = LeaseUsers(group=4712)


@pytest.mark.parametrize(
    ("users", "mode", "group"),
    [
        (SocketUsers(), 0o600, None),
        (READERS, 0o660, 4711),
        (SocketUsers(LEASING), 0o660, 4712),
        (SocketUsers(LEASING, readers=4712), 0o660, 4712),
        (SocketUsers(LEASING, readers=4711), 0o666, None),
        (SocketUsers(ALICE, readers=4711), 0o666, 4711),
    ],
)
def test_the_mode_lets_in_those_who_read_and_those_who_lease(users: SocketUsers, mode: int, group: int | None) -> None:
    """A file has one group. With two of them anybody may connect, and is asked who they are."""
    assert (users.socket_mode, users.group) == (mode, group)


def test_readers_may_ask_whatever_changes_nothing() -> None:
    allowed, refused = set[str](), set[str]()
    for line in REQUESTS:
        method, path = line.split()
        (allowed if changes_nothing(HttpRequest(method, path, {}, b"")) else refused).add(line)
    assert {line.split()[0] for line in allowed} == {"GET"}
    assert {line.split()[0] for line in refused} == {"POST", "DELETE"}
    for method in ("PUT", "PATCH", "OPTIONS", "get", "", "BREW"):
        assert not changes_nothing(HttpRequest(method, "/plugins", {}, b""))


def test_other_users_see_devices_leases_and_their_history_and_nothing_else() -> None:
    parts = "/v1/devices", "/v1/leases", "/v1/history"
    asked = set()
    for line in REQUESTS:
        method, path = line.split()
        if is_for_lease_users(HttpRequest(method, path, {}, b"")):
            asked.add(line)
    assert asked == {line for line in REQUESTS if any(part in line for part in parts)}
    assert not is_for_lease_users(HttpRequest("GET", "/v1/devicesx", {}, b""))
