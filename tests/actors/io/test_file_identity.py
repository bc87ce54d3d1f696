"""File identities on real file systems: what stays the same for one file, and what tells two files apart."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from plugind.actors.io import file_identity
from plugind.actors.io.file_identity import identity_at, identity_of
from plugind.protocol.identity import Identity


def bind(path: Path) -> Identity:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return identity(path)


def identity(path: Path) -> Identity:
    return identity_at(os.lstat(path), str(path))


def opened(path: Path) -> Identity:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        return identity_of(descriptor)
    finally:
        os.close(descriptor)


def without(call: str, monkeypatch: pytest.MonkeyPatch, error: int = errno.EOPNOTSUPP) -> None:
    """Let one system call fail, as on a file system that lacks it."""

    def fail(*_arguments: object) -> int:
        ctypes.set_errno(error)
        return -1

    monkeypatch.setattr(file_identity, call, fail)


def test_a_file_has_one_identity_by_path_by_directory_and_by_descriptor(directory: Path) -> None:
    """Behaviour 9: the look at a name and the dial of an open file agree."""
    found = bind(directory / "a.sock")
    descriptor = os.open(directory, os.O_PATH)
    try:
        status = os.stat("a.sock", dir_fd=descriptor, follow_symlinks=False)
        assert identity_at(status, "a.sock", descriptor) == found
    finally:
        os.close(descriptor)
    assert opened(directory / "a.sock") == found
    assert found.is_exact


def test_what_touches_a_file_does_not_make_it_another_one(directory: Path) -> None:
    """Behaviour 13: chmod, hard links and renames change the change time, and neither handle nor birth time."""
    path = directory / "a.sock"
    found = bind(path)
    path.chmod(0o700)
    os.link(path, directory / "b.sock")
    path.rename(directory / "c.sock")
    for name in ("b.sock", "c.sock"):
        assert identity(directory / name).is_same(found)
        assert identity(directory / name).is_same_unwatched(found)


def test_a_hundred_files_that_follow_each_other_at_one_path_are_all_distinct(directory: Path) -> None:
    """Fault 10, behaviour 13: ext4 uses an inode number again at once, and files share one tick of the clock."""
    path = directory / "a.sock"
    keys = set()
    for _ in range(100):
        keys.add(bind(path).key)
        path.unlink()
    assert len(keys) == 100


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM])
def test_a_file_without_a_handle_has_its_birth_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Behaviour 13: a file system may have no handles, an old kernel no call, and a seccomp filter may forbid it."""
    without("_name_to_handle_at", monkeypatch, error)
    found = bind(directory / "a.sock")
    assert (found.handle, found.is_exact) == (None, False)
    if found.born_ns is None:
        pytest.skip("needs a file system with birth times")
    assert abs(found.born_ns - found.changed_ns) < 10**9
    assert opened(directory / "a.sock") == found
    (directory / "a.sock").chmod(0o700)
    assert identity(directory / "a.sock").is_same_unwatched(found)
    assert not identity(directory / "a.sock").is_same_unwatched(attrs.evolve(found, born_ns=found.born_ns - 1))


def test_a_file_with_neither_has_its_change_time_while_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 13: device and inode alone are not enough."""
    without("_name_to_handle_at", monkeypatch)
    without("_statx", monkeypatch)
    found = bind(tmp_path / "a.sock")
    assert (found.handle, found.born_ns) == (None, None)
    touched = attrs.evolve(found, changed_ns=found.changed_ns + 1)
    assert touched.is_same(found)
    assert not touched.is_same_unwatched(found)


def test_a_file_that_is_gone_has_no_identity(tmp_path: Path) -> None:
    """Fault 25: it may be removed between its lstat and its handle."""
    path = tmp_path / "a.sock"
    bind(path)
    status = os.lstat(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        identity_at(status, str(path))


def test_an_error_of_the_file_system_is_no_lack_of_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 26: taken for another file, the plugin would be registered again because of one failed call."""
    path = tmp_path / "a.sock"
    bind(path)
    without("_name_to_handle_at", monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        identity(path)


OVERLAY = """
import os, socket, sys
from plugind.actors.io.file_identity import identity_at, identity_of

path, found = sys.argv[1] + "/a.sock", []
for _ in range(20):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    identity = identity_at(os.lstat(path), path)
    os.chmod(path, 0o700)
    descriptor = os.open(path, os.O_PATH)
    assert identity_of(descriptor).is_same(identity)
    os.close(descriptor)
    os.unlink(path)
    found.append(identity)
print(all(identity.is_exact for identity in found), len({identity.key for identity in found}))
"""


def test_overlayfs_has_handles_too(tmp_path: Path) -> None:
    """Behaviour 13: the root of a container lies on it, and it has no handles that can be opened."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or tuple(map(int, release()[:2])) < (6, 6):
        pytest.skip("needs root, unshare (util-linux) and Linux 6.6 to mount overlayfs")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = f'mount -t overlay overlay -o {options} {tmp_path}/merged || exit 77; exec "$0" -c "$1" {tmp_path}/merged'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, OVERLAY],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"needs overlayfs: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("True 20\n", "")


def release() -> list[str]:
    return os.uname().release.replace("-", ".").split(".")


@pytest.mark.parametrize(("kind", "exact"), [(0xF8, True), (0x81, False)])
def test_what_identifies_a_file_counts_only_if_the_file_system_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, exact: bool
) -> None:
    """Behaviour 13: for a file system without handles the kernel makes one of the inode number, which is used again."""
    call = file_identity._name_to_handle_at

    def identifies(directory: int, name: bytes, handle: int, mount: int, flags: int) -> int:
        if not flags & 0x200:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1
        result = call(directory, name, handle, mount, flags & ~0x200)
        ctypes.c_int.from_address(handle + 4).value = kind
        return result

    monkeypatch.setattr(file_identity, "_name_to_handle_at", identifies)
    assert bind(tmp_path / "a.sock").is_exact is exact
