"""Roots are created, checked and locked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plugind.actors.io.roots import RootBusyError, lock_roots
from plugind.protocol.errors import ConfigError


def test_a_missing_root_is_made_with_its_parents(tmp_path: Path) -> None:
    """Behaviour 1, fault 1."""
    root = tmp_path / "a" / "b"
    with lock_roots([str(root)]):
        assert root.is_dir()
        assert root.stat().st_mode & 0o022 == 0
        assert list(root.iterdir()) == []


def test_only_the_owner_can_write_to_a_new_root_whatever_the_umask(tmp_path: Path) -> None:
    """Fault 3."""
    before = os.umask(0)
    try:
        with lock_roots([str(tmp_path / "root")]):
            assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)


def test_a_root_that_cannot_be_made_is_a_configuration_error_with_a_reason(tmp_path: Path) -> None:
    """Fault 2."""
    root = tmp_path / ("x" * 256)
    with pytest.raises(ConfigError, match="cannot be used: File name too long; name another"), lock_roots([str(root)]):
        pass


def test_a_second_daemon_cannot_lock_the_same_root(tmp_path: Path) -> None:
    """Fault 96."""
    busy = pytest.raises(RootBusyError, match=f"another plugind runs on {tmp_path}")
    with lock_roots([str(tmp_path)]), busy, lock_roots([str(tmp_path)]):
        pass
    with lock_roots([str(tmp_path)]):
        pass


def test_if_one_root_is_busy_the_others_are_unlocked_again(tmp_path: Path) -> None:
    free, taken = tmp_path / "free", tmp_path / "taken"
    with lock_roots([str(taken)]):
        with pytest.raises(RootBusyError), lock_roots([str(free), str(taken)]):
            pass
        with lock_roots([str(free)]):
            pass


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
    with pytest.raises(ConfigError, match="is not a directory"), lock_roots([str(root)]):
        pass


def test_a_world_writable_root_is_refused_unless_allowed(tmp_path: Path) -> None:
    """Fault 3."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ConfigError, match=f"run 'chmod o-w {root}'"), lock_roots([str(root)]):
        pass
    with lock_roots([str(root)], allow_insecure=True):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_a_root_of_another_user_is_refused(tmp_path: Path) -> None:
    """Fault 3."""
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"), lock_roots([str(root)]):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory that the superuser owns")
def test_a_root_of_the_superuser_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 3."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with lock_roots([str(tmp_path)]):
        pass


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for _ in range(3):
        with lock_roots([str(tmp_path)]):
            pass
        with pytest.raises(ConfigError), lock_roots([str(tmp_path), str(tmp_path / "open")]):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
