"""The directories above a root, and the symbolic links on the way to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plugind.actors.trust.directories import InsecureRootError, check_above_root, who_may_replace

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b" / "root"
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize("missing", [False, True])
def test_others_may_write_to_no_directory_above_a_root(root: Path, above: int, missing: bool) -> None:
    """Fault 3: whoever may, can remove the root or put another directory into its place."""
    check_above_root(str(root))
    directory = root.parents[above]
    directory.chmod(0o777)
    if missing:
        root.rmdir()
    with pytest.raises(InsecureRootError, match=f"everybody may write to {directory}, .* run 'chmod o-w {directory}'"):
        check_above_root(str(root))
    assert who_may_replace(str(root)) == (str(directory), f"everybody may write to {directory}")
    directory.chmod(0o1777)
    check_above_root(str(root))
    assert who_may_replace(str(root)) is None


@needs_root
def test_no_directory_above_a_root_belongs_to_another_user(root: Path) -> None:
    """Fault 3."""
    os.chown(root.parent, 12345, 12345)
    with pytest.raises(InsecureRootError, match=f"{root.parent} belongs to user 12345, .* name a directory with"):
        check_above_root(str(root))


def test_a_symbolic_link_on_the_way_is_resolved(root: Path, tmp_path: Path) -> None:
    """Fault 3: as in ``/var/run``, and the directory in which the link lies is judged too."""
    places = tmp_path / "places"
    places.mkdir()
    for name, target in ("absolute", str(root.parent)), ("relative", "../a/b"):
        link = places / name
        link.symlink_to(target)
        check_above_root(str(link / "root"))
        for directory in root.parent, places:
            directory.chmod(0o777)
            with pytest.raises(InsecureRootError, match=f"everybody may write to {directory},"):
                check_above_root(str(link / "root"))
            directory.chmod(0o755)


@needs_root
def test_a_symbolic_link_of_another_user_is_refused(root: Path, tmp_path: Path) -> None:
    """Fault 3: with the sticky bit, its owner may replace it."""
    (tmp_path / "link").symlink_to(root.parent)
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(InsecureRootError, match=f"{tmp_path}/link belongs to user 12345"):
        check_above_root(str(tmp_path / "link" / "root"))


def test_links_without_end_and_missing_directories_are_left_to_the_look_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        check_above_root(str(tmp_path / "circle" / "root"))
    check_above_root(str(tmp_path / "missing" / "root"))
    (tmp_path / "file").touch()
    check_above_root(str(tmp_path / "file" / "below" / "root"))
