"""Two nodes whose roots lie in each other (fault 96)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.actors.discovery.roots import RootBusyError, RootLock
from plugind.protocol.discovery.watches import LOCK_FILE


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[RootLock]:
    (tmp_path / "outer" / "between" / "inner").mkdir(parents=True)
    lock = RootLock()
    yield lock
    lock.release()


@pytest.fixture
def outer(inner: RootLock) -> Iterator[RootLock]:
    lock = RootLock()
    yield lock
    lock.release()


def test_a_node_does_not_start_in_the_root_of_another_one(tmp_path: Path, inner: RootLock, outer: RootLock) -> None:
    """Fault 96: both registered the same plugins."""
    above, root = str(tmp_path / "outer"), str(tmp_path / "outer" / "between" / "inner")
    outer.take(above)
    with pytest.raises(RootBusyError, match=f"another plugind runs on {above}, in which the root {root} lies: stop it"):
        inner.take(root)
    assert os.listdir(root) == [], "it makes no lock file there"
    outer.release()
    inner.take(root)


def test_a_node_lets_go_of_its_root_once_another_one_runs_above(
    tmp_path: Path, inner: RootLock, outer: RootLock
) -> None:
    """Fault 96: the outer one cannot know of the other, and registers everything; the inner one looks at each scan."""
    above, root = str(tmp_path / "outer"), str(tmp_path / "outer" / "between" / "inner")
    inner.take(root)
    outer.take(above)
    for _ in range(2):
        with pytest.raises(RootBusyError, match=f"another plugind runs on {above}"):
            inner.take(root)
    outer.take(above)
    outer.release()
    inner.take(root)


def test_a_link_on_the_way_to_the_root_does_not_hide_the_node_above(
    tmp_path: Path, inner: RootLock, outer: RootLock
) -> None:
    """Fault 96."""
    (tmp_path / "link").symlink_to(tmp_path / "outer" / "between")
    outer.take(str(tmp_path / "outer"))
    with pytest.raises(RootBusyError, match=f"another plugind runs on {tmp_path}/outer, in which"):
        inner.take(str(tmp_path / "link" / "inner"))


@pytest.mark.parametrize("kind", ["left behind", "wider mode", "another user", "fifo"])
def test_what_is_no_lock_of_a_node_above_a_root_keeps_no_node_from_starting(
    tmp_path: Path, inner: RootLock, kind: str
) -> None:
    """Fault 96: in a directory such as /tmp anybody may make such a file, and lock it."""
    path = tmp_path / "outer" / LOCK_FILE
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.touch(0o600)
    if kind == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 65534, 65534)
    if kind == "wider mode":
        path.chmod(0o644)
    with os.fdopen(os.open(path, os.O_RDWR), "rb", buffering=0) as file:
        if kind != "left behind":
            fcntl.flock(file, fcntl.LOCK_EX)
        inner.take(str(tmp_path / "outer" / "between" / "inner"))
