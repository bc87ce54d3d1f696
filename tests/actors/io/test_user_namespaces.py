"""Who may replace a root in a user namespace, where the users of the host have no user of their own (fault 3)."""

from __future__ import annotations

import ctypes
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugind.actors.discovery.roots import RootLock
from plugind.actors.trust.directories import access_of, check_above_root
from plugind.actors.trust.users import unmapped_uid
from plugind.protocol.errors import ConfigError

_CLONE_NEWUSER = 0x10000000
_PR_SET_DUMPABLE = 4
_SKIPPED = 77
#: Root of the host would be mapped to root, so another user makes the namespace.
OUTSIDE = 65534 if os.geteuid() == 0 else os.geteuid()


def inside(check: Callable[[], None], *, mapped: bool = True) -> None:
    """Run ``check`` in a child that is root of a user namespace of its own, or has no user there."""
    child = os.fork()
    if not child:
        ended = 1
        try:
            ended = _run_inside(check, mapped=mapped)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(ended)  # The child of a fork must not go on as pytest.
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _SKIPPED:
        pytest.skip("the system lets nobody make a user namespace")
    assert code == 0


def _run_inside(check: Callable[[], None], *, mapped: bool) -> int:
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(OUTSIDE, OUTSIDE, OUTSIDE)
        os.setresuid(OUTSIDE, OUTSIDE, OUTSIDE)
        # Otherwise its files in /proc, and so its map, belong to root.
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.unshare(_CLONE_NEWUSER):
        return _SKIPPED
    if mapped:
        Path("/proc/self/uid_map").write_text(f"0 {OUTSIDE} 1")
    unmapped_uid.cache_clear()
    check()
    return 0


@pytest.fixture
def root() -> Iterator[Path]:
    """A root of the user, in a directory such as /tmp of the host: that of pytest is closed to other users."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "root").mkdir()
        for directory in (made, f"{made}/root"):
            os.chown(directory, OUTSIDE, -1)
        yield Path(made) / "root"


def test_directories_of_the_root_of_the_host_may_be_above_a_root(root: Path) -> None:
    """Fault 3: ``/`` belongs to the overflow uid there, and every root needed --insecure-root."""

    def check() -> None:
        assert access_of(os.lstat("/")).unmapped
        assert access_of(os.lstat(root)).ours
        check_above_root(str(root))
        lock = RootLock()
        lock.take(str(root))
        lock.release()

    inside(check)


def test_a_directory_outside_of_the_namespace_is_no_root(root: Path) -> None:
    """Fault 3: it may be that of any user of the host."""

    def check() -> None:
        with pytest.raises(ConfigError, match="belongs to user 65534, which stands for all users whom this user"):
            RootLock().take("/usr")

    inside(check)


def test_a_process_without_a_user_there_has_no_directories_of_its_own(root: Path) -> None:
    """Fault 3: its uid is the overflow uid, as that of every directory is."""

    def check() -> None:
        assert not access_of(os.lstat(root)).ours
        with pytest.raises(ConfigError, match="which stands for all users"):
            RootLock().take(str(root))

    inside(check, mapped=False)


@pytest.mark.parametrize(
    ("uid_map", "unmapped"),
    [
        ("0 0 4294967295\n", None),
        ("0 1000 1\n", 65534),
        ("", 65534),
        ("0 100000 65536\n", None),
        ("0 1000 1\n1 100000 65533\n", 65534),
        ("0 1000 1\n65534 100000 1\n", None),
    ],
)
def test_the_overflow_uid_stands_for_users_outside_unless_a_user_inside_has_it(
    tmp_path: Path, uid_map: str, unmapped: int | None
) -> None:
    """Fault 3: in a container with a nobody of its own, a directory may be that of this nobody."""
    (tmp_path / "map").write_text(uid_map)
    (tmp_path / "number").write_text("65534\n")
    assert unmapped_uid(str(tmp_path / "number"), str(tmp_path / "map")) == unmapped
    assert unmapped_uid(str(tmp_path / "none"), str(tmp_path / "map")) is None
