"""Roots are created, checked and locked."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugind.actors.discovery.roots import RootBusyError, RootLock, make
from plugind.protocol.errors import ConfigError
from plugind.tests.actors.io.exhaustion import descriptors


@contextmanager
def locked(path: Path, *, insecure: bool = False) -> Iterator[RootLock]:
    lock = RootLock(insecure=insecure)
    try:
        lock.take(str(path))
        yield lock
    finally:
        lock.release()


def test_a_missing_root_is_made_and_the_directories_above_it_are_not(tmp_path: Path) -> None:
    """Behaviour 1, fault 1."""
    root = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError):
        make(str(root))
    assert list(tmp_path.iterdir()) == []
    root.parent.mkdir()
    for _ in range(2):
        make(str(root))
        assert root.is_dir()
        assert root.stat().st_mode & 0o027 == 0
        assert list(root.iterdir()) == []


def test_only_the_owner_can_write_to_a_new_root_whatever_the_umask_and_strangers_cannot_enter(tmp_path: Path) -> None:
    """Fault 3, behaviour 1."""
    before = os.umask(0)
    try:
        make(str(tmp_path / "root"))
        assert (tmp_path / "root").stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(before)


def test_a_root_that_can_never_be_made_is_a_configuration_error_with_a_reason(tmp_path: Path) -> None:
    """Fault 2."""
    with (
        pytest.raises(ConfigError, match="cannot be used: File name too long; name another"),
        locked(tmp_path / ("x" * 256)),
    ):
        pass


def test_a_root_that_is_missing_is_no_configuration_error(tmp_path: Path) -> None:
    """Faults 1 and 4: it may appear."""
    lock = RootLock()
    with pytest.raises(FileNotFoundError):
        lock.take(str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    lock.take(str(tmp_path / "root"))
    lock.release()


def test_a_lock_may_be_taken_again_and_holds_the_directory_that_is_at_the_path_now(tmp_path: Path) -> None:
    """Faults 15 and 96."""
    root, old = tmp_path / "root", tmp_path / "old"
    root.mkdir()
    with locked(root) as lock:
        before = descriptors()
        lock.take(str(root))
        root.rename(old)
        root.mkdir()
        with locked(root), pytest.raises(RootBusyError):
            lock.take(str(root))
        lock.take(str(root))
        assert descriptors() == before
        with locked(old):
            pass
        with pytest.raises(RootBusyError), locked(root):
            pass


def sleep_until_set(started: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    started.set()
    end.wait(60)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Fault 96: a program that embeds a node may fork."""
    fork = multiprocessing.get_context("fork")
    started, end = fork.Event(), fork.Event()
    with locked(tmp_path):
        child = fork.Process(target=sleep_until_set, args=(started, end))
        child.start()
        assert started.wait(60)
    try:
        with locked(tmp_path):
            pass
    finally:
        end.set()
        child.join()


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "below a file"])
def test_a_root_that_is_not_a_directory_is_a_configuration_error(tmp_path: Path, kind: str) -> None:
    """Fault 2."""
    root = tmp_path / "root"
    match kind:
        case "file":
            root.touch()
        case "link":
            (tmp_path / "real").mkdir()
            root.symlink_to(tmp_path / "real")
        case "dangling link":
            root.symlink_to(tmp_path / "nowhere")
        case _:
            root.touch()
            root = root / "below"
    with pytest.raises(ConfigError, match="is not a directory"), locked(root):
        pass


def test_a_world_writable_root_is_refused_unless_allowed(tmp_path: Path) -> None:
    """Fault 3."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ConfigError, match=f"run 'chmod o-w {root}', or allow it with --insecure-root"):
        RootLock().take(str(root))
    with locked(root, insecure=True):
        pass


def test_the_advice_for_a_directory_of_another_user_is_not_to_change_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 3."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="make a directory of your own") as error, locked(root):
        pass
    assert "chmod" not in str(error.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_a_root_of_another_user_is_refused(tmp_path: Path) -> None:
    """Fault 3."""
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"), locked(root):
        pass
    with locked(root, insecure=True):
        pass
