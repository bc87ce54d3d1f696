"""The status socket: its permissions, the files that it replaces, and its errors."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from inotify_simple import INotify
from trio.testing import MockClock

from plugind.actors.io import file_watch
from plugind.actors.io.unix_socket import UnixListener
from plugind.actors.status import listener as status_listener
from plugind.actors.status.listener import StatusSocket, listen
from plugind.protocol.errors import ConfigError, SocketBusyError
from plugind.protocol.leases.config import LeaseUsers
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.settings.socket_users import SocketUsers


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


async def test_other_users_are_let_through_the_directory_that_an_earlier_daemon_made_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--lease-uids`` was refused once a daemon without it had run. Of any other directory its owner decides."""
    path, users = tmp_path / "made" / "status.sock", SocketUsers(LeaseUsers(frozenset({1000})))
    listen(str(path)).close()
    with pytest.raises(ConfigError, match="cannot reach the status socket"):
        listen(str(path), users=users)
    monkeypatch.setattr(status_listener, "_OWN_DIRECTORY", str(path.parent))
    listen(str(path)).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    lines = Lines()
    listen(str(path), lines, users).close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
    assert [line[1] for line in lines.lines] == ["directory of the status socket lets other users through now"]


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "status.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(0o600)
    first = listen(str(path))
    with pytest.raises(
        SocketBusyError, match=r"another process answers at .*status\.sock; stop it, or give this one another"
    ):
        listen(str(path))
    assert path.is_socket()
    first.close()


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


async def test_a_stale_socket_of_another_user_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory such as /tmp any user could have made it."""
    path = tmp_path / "status.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    said = f"is a socket of user {path.stat().st_uid} on which nobody listens, .* run 'rm {path}' if no program needs"
    with pytest.raises(ConfigError, match=said):
        listen(str(path))
    assert path.is_socket()


async def test_a_directory_in_which_others_could_replace_the_socket_is_refused(tmp_path: Path) -> None:
    """Fault 93: they could answer in the daemon's name."""
    os.chmod(tmp_path, 0o777)
    with pytest.raises(
        ConfigError, match=r"everybody may write to the directory .* and so replace the socket: run 'chmod"
    ):
        listen(str(tmp_path / "status.sock"))
    assert os.listdir(tmp_path) == []
    os.chmod(tmp_path, 0o1777)
    listen(str(tmp_path / "status.sock")).close()


async def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 93."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    if os.geteuid() == 0:
        os.chown(directory, 65534, 65534)
        owner = 65534
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}, who could replace the socket: give another path"):
        listen(str(directory / "status.sock"))


async def test_a_directory_above_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Fault 93: they could put a directory of their own into the place of that of the socket."""
    above, directory = tmp_path / "above", tmp_path / "above" / "run"
    above.mkdir()
    above.chmod(0o777)
    said = f"everybody may write to {above}, and so others may replace the directory {directory} .*: take {above} from"
    with pytest.raises(ConfigError, match=said):
        listen(str(directory / "status.sock"))
    assert os.listdir(above) == []
    above.chmod(0o1777)
    listen(str(directory / "status.sock")).close()


async def test_a_directory_that_a_group_may_write_to_is_a_warning(tmp_path: Path) -> None:
    """Fault 93."""
    log = Lines()
    os.chmod(tmp_path, 0o770)
    listen(str(tmp_path / "status.sock"), log).close()
    (warning,) = log.lines
    assert warning[:2] == (Level.WARNING, "a group may replace the status socket")


@attrs.define
class Served:
    """Counts the listeners that are served."""

    count: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, listener: UnixListener) -> None:
        self.count += 1
        self.changed.set()
        with suppress(trio.ClosedResourceError):
            await listener.accept()

    async def next(self) -> None:
        with trio.fail_after(60):
            await self.changed.wait()
        self.changed = trio.Event()


@asynccontextmanager
async def kept(path: Path, log: Lines) -> AsyncIterator[Served]:
    served, status_socket = Served(), StatusSocket(str(path), log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(status_socket.serve, nursery, served.serve)
        await served.next()
        yield served
        status_socket.close()
    assert path.name not in os.listdir(path.parent)


@pytest.mark.parametrize("how", ["unlink", "rename", "with the directory"])
async def test_a_socket_that_is_removed_is_made_again(tmp_path: Path, how: str) -> None:
    """The daemon ran on, and no command reached it any more."""
    path, log = tmp_path / "run" / "status.sock", Lines()
    path.parent.mkdir()
    async with kept(path, log) as served:
        for count in (2, 3):
            match how:
                case "unlink":
                    path.unlink()
                case "rename":
                    path.rename(path.parent / "old.sock")
                case _:
                    shutil.rmtree(path.parent)
            await served.next()
            assert served.count == count
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = [line for line in log.lines if line[1] == "status socket was removed and was made again"]
    assert said == [(Level.WARNING, "status socket was removed and was made again", {"socket": str(path)})] * 2


async def test_a_socket_that_cannot_be_made_again_is_tried_again_and_said_once(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without events of the file, in virtual time; what has taken its place stays."""
    path, log = tmp_path / "status.sock", Lines()
    monkeypatch.setattr(file_watch, "INotify", no_inotify)
    async with kept(path, log) as served:
        path.unlink()
        path.write_text("another")
        for _ in range(3):
            mock_clock.jump(11)
            await trio.testing.wait_all_tasks_blocked()
        (line,) = log.lines
        assert line[:2] == (Level.ERROR, "status socket was removed and cannot be made again")
        assert path.read_text() == "another"
        path.unlink()
        mock_clock.jump(11)
        await served.next()


async def test_a_socket_that_a_restarted_actor_cannot_make_is_tried_again_while_the_actor_goes_on(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: also an error that is no ConfigError, like a bug, costs the socket alone."""
    path, log, reasons = tmp_path / "status.sock", Lines(), list[str]()
    path.write_text("another")
    status_socket = StatusSocket(str(path), log, again=True, failed=reasons.append)
    served = Served()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(status_socket.serve, nursery, served.serve)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(11)
        await trio.testing.wait_all_tasks_blocked()
        with monkeypatch.context() as patched:
            patched.setattr(status_listener, "_judge_above", bug)
            mock_clock.jump(11)
            await trio.testing.wait_all_tasks_blocked()
        path.unlink()
        mock_clock.jump(11)
        await served.next()
        status_socket.close()
    taken = f"{path} exists and is no socket; remove it or give another path with --status"
    broken = "ZeroDivisionError: planted; give another path with --status"
    assert reasons == [taken, taken, broken]
    failed = "status socket was closed by a restart of its actor and cannot be made again"
    assert log.lines == [
        (Level.ERROR, failed, {"reason": taken, "next_try_in": 10.0}),
        (Level.ERROR, failed, {"reason": broken, "next_try_in": 10.0}),
        (Level.WARNING, "status socket was closed by a restart of its actor and was made again", {"socket": str(path)}),
    ]


def bug(_: object) -> None:
    raise ZeroDivisionError("planted")


def no_inotify(*, nonblocking: bool) -> INotify:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
