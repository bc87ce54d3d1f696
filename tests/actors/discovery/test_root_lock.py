"""The lock file of a root: nobody but a daemon's user can keep a daemon from starting (fault 96)."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugind.actors.discovery.roots import RootBusyError, RootLock
from plugind.protocol.discovery.watches import LOCK_FILE
from plugind.protocol.errors import ConfigError
from plugind.tests.actors.io.exhaustion import descriptors


@contextmanager
def locked(path: Path) -> Iterator[RootLock]:
    lock = RootLock(insecure=True)
    try:
        lock.take(str(path))
        yield lock
    finally:
        lock.release()


@contextmanager
def flocked(path: Path) -> Iterator[None]:
    """Lock a file or directory as another program does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_a_program_that_locks_the_root_itself_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    """Fault 96: ``flock ROOT`` by any user who may read the root prevented the start."""
    with flocked(tmp_path), locked(tmp_path):
        pass


def test_the_lock_file_is_for_its_owner_alone_and_is_never_removed(tmp_path: Path) -> None:
    """Fault 96."""
    before = os.umask(0)
    try:
        with locked(tmp_path):
            found = (tmp_path / LOCK_FILE).stat()
    finally:
        os.umask(before)
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, 0)
    with locked(tmp_path):
        assert (tmp_path / LOCK_FILE).stat().st_ino == found.st_ino


def test_a_lock_file_with_a_wider_mode_is_closed_to_others(tmp_path: Path) -> None:
    """Fault 96: who can open a file can lock it."""
    (tmp_path / LOCK_FILE).touch()
    (tmp_path / LOCK_FILE).chmod(0o666)
    with locked(tmp_path):
        assert stat.S_IMODE((tmp_path / LOCK_FILE).stat().st_mode) == 0o600


def test_a_lock_that_others_could_take_is_not_said_to_be_that_of_a_plugind(tmp_path: Path) -> None:
    """Fault 96: any user could open a lock file with a wider mode, and keep it locked."""
    path = tmp_path / LOCK_FILE
    path.touch()
    path.chmod(0o666)
    said = f"another process has locked {path}, .* is 0600 now; end that process"
    with flocked(path), pytest.raises(RootBusyError, match=said), locked(tmp_path):
        pass
    with locked(tmp_path), pytest.raises(RootBusyError, match="another plugind runs on"), locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("fifo", "is no regular file"),
        ("link", "is no regular file"),
        ("dangling link", "is no regular file"),
        ("directory", "is no regular file"),
        ("socket", "is no regular file"),
        ("hard link", "is a hard link of another file"),
    ],
)
def test_what_another_user_put_in_the_place_of_the_lock_file_is_refused_and_left_alone(
    tmp_path: Path, kind: str, problem: str
) -> None:
    """Fault 96: nothing is followed, nothing is waited for, and no lock of another program is taken."""
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    path = root / LOCK_FILE
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            other.touch()
            path.symlink_to(other)
        case "dangling link":
            path.symlink_to(other)
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case _:
            other.touch()
            path.hardlink_to(other)
    before = path.lstat()
    with pytest.raises(ConfigError, match=f"the lock file {path} {problem}: remove it"), locked(root):
        pass
    assert os.path.samestat(path.lstat(), before)
    assert other.exists() is (kind in ("link", "hard link")), "no link was followed"


def test_the_lock_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 96: a user who may write to the root could make the file first, and hold its lock for ever."""
    path = tmp_path / LOCK_FILE
    path.touch(mode=0o600)
    owner = os.geteuid()
    if owner:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        owner = 65534
        os.chown(path, owner, owner)
    with flocked(path), pytest.raises(ConfigError, match=f"belongs to user {owner}: remove it"), locked(tmp_path):
        pass


def refuse_opening(monkeypatch: pytest.MonkeyPatch, number: int, flags: int) -> None:
    """Let each open() of a lock file with one of the ``flags`` fail."""
    real = os.open

    def fail(path: str, how: int, *arguments: int, dir_fd: int | None = None) -> int:
        if path == LOCK_FILE and (how & flags or not flags):
            raise OSError(number, os.strerror(number), path)
        return real(path, how, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", fail)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_root_that_is_not_writable_is_locked_itself_until_there_is_a_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Fault 96: a node that can write to the root may start later, in another container or as another user."""
    with monkeypatch.context() as patched:
        refuse_opening(patched, error, os.O_CREAT)
        with locked(tmp_path), pytest.raises(RootBusyError), locked(tmp_path):
            pass
        unable = RootLock(insecure=True)
        unable.take(str(tmp_path))
        unable.take(str(tmp_path))
    assert not (tmp_path / LOCK_FILE).exists()
    with locked(tmp_path), pytest.raises(RootBusyError, match="another plugind runs on"):
        unable.take(str(tmp_path))
    unable.take(str(tmp_path))
    with pytest.raises(RootBusyError), locked(tmp_path):
        pass
    unable.release()


def test_a_lock_file_that_can_only_be_read_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 96: one of two containers may have the root without the right to write."""
    with locked(tmp_path):
        refuse_opening(monkeypatch, errno.EROFS, os.O_RDWR)
        with pytest.raises(RootBusyError), locked(tmp_path):
            pass


def test_a_lock_file_of_the_superuser_that_cannot_be_opened_counts_as_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 96: its daemon may run, and cannot be asked."""
    (tmp_path / LOCK_FILE).touch()
    refuse_opening(monkeypatch, errno.EACCES, 0)
    said = f"another plugind may run on {tmp_path}: its lock file {tmp_path}/{LOCK_FILE} belongs to user"
    with pytest.raises(RootBusyError, match=said), locked(tmp_path):
        pass


def test_the_lock_is_taken_anew_when_its_file_is_removed(tmp_path: Path) -> None:
    """Fault 96: ``rm -rf`` of what is in the root removes the file too."""
    path = tmp_path / LOCK_FILE
    with locked(tmp_path) as first:
        path.unlink()
        first.take(str(tmp_path))
        with pytest.raises(RootBusyError), locked(tmp_path):
            pass
        path.unlink()
        with locked(tmp_path), pytest.raises(RootBusyError):
            first.take(str(tmp_path))
        first.take(str(tmp_path))


def test_a_lock_file_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 96: otherwise a second node could make and lock another one."""
    path, real = tmp_path / LOCK_FILE, fcntl.flock
    removed: list[Path] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if len(removed) < 3:
            path.unlink()
            removed.append(path)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    before = descriptors()
    with locked(tmp_path):
        with pytest.raises(RootBusyError), locked(tmp_path):
            pass
        assert len(removed) == 3
    assert descriptors() == before


def test_no_descriptor_of_the_root_stays_open(tmp_path: Path) -> None:
    """Fault 14: the kernel withholds the events of a removed directory from who has it open."""
    with locked(tmp_path):
        targets = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
        assert str(tmp_path) not in targets
        assert str(tmp_path / LOCK_FILE) in targets
