"""Configuration files on a disk: which ones are read, in which order, and which ones are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plugind.actors.io.config_files import MAX_BYTES, MAX_DROP_INS, ConfigFile, read_file, read_files
from plugind.protocol.settings.given import SettingsError


def written(path: Path, content: bytes = b"rescan = 1\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)
    return path


def refused(path: Path, *, required: bool = True) -> str:
    with pytest.raises(SettingsError) as error:
        read_files(str(path), required=required)
    return str(error.value)


def test_the_file_comes_first_and_then_those_beside_it_by_name(tmp_path: Path) -> None:
    main = written(tmp_path / "p.toml", b"a")
    for name in ("20-b.toml", "10-a.toml", "100.toml", ".hidden.toml", "30.toml~", "README"):
        written(tmp_path / "p.toml.d" / name, name.encode())
    names = ("10-a.toml", "100.toml", "20-b.toml")
    expected = [ConfigFile(str(main), b"a")]
    expected += [ConfigFile(f"{main}.d/{name}", name.encode()) for name in names]
    assert list(read_files(str(main), required=False)) == expected


def test_a_default_file_may_be_missing_and_one_that_is_named_may_not(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    assert read_files(str(path), required=False) == ()
    assert refused(path) == f"{path}: cannot be read: No such file or directory"
    written(tmp_path / "p.toml.d" / "1.toml", b"b")
    assert read_files(str(path), required=False) == (ConfigFile(f"{path}.d/1.toml", b"b"),)


def test_a_file_of_a_megabyte_is_refused_and_not_read_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml", b"#" * 1_000_000)
    assert refused(path) == f"{path}: it has more than {MAX_BYTES} bytes: put a part of it into {path}.d"
    assert len(read_file(str(written(path, b"#" * MAX_BYTES))).content) == MAX_BYTES


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a file without an end"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    match kind:
        case "a directory":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("/dev/zero")
    assert refused(path) == f"{path}: it is no regular file"


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646, 0o777])
def test_a_file_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml")
    path.chmod(mode)
    assert refused(path) == f"{path}: others may write to it (mode {mode:04o}): chmod go-w"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_another_user_is_refused_also_beside_the_first(tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml")
    other = written(tmp_path / "p.toml.d" / "1.toml")
    os.chown(other, 1234, 1234)
    said = "user 1234 owns it: give it to root, or to the user that runs plugind"
    assert refused(path) == f"{other}: {said}"
    os.chown(path, 1234, 1234)
    assert refused(path) == f"{path}: {said}"


def test_a_link_is_followed_as_in_a_volume_of_kubernetes(tmp_path: Path) -> None:
    """A ConfigMap is mounted as links to a directory that is replaced as a whole."""
    target = written(tmp_path / "..data" / "p.toml", b"x")
    path = tmp_path / "p.toml"
    path.symlink_to(target)
    assert read_files(str(path), required=True) == (ConfigFile(str(path), b"x"),)
    target.chmod(0o666)
    assert "others may write to it" in refused(path)


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.symlink_to(path)
    assert refused(path, required=False) == f"{path}: cannot be read: Too many levels of symbolic links"


def test_a_link_to_nothing_beside_the_first_file_is_an_error(tmp_path: Path) -> None:
    """It is a file that somebody wanted to be read."""
    path = written(tmp_path / "p.toml")
    (tmp_path / "p.toml.d").mkdir()
    (tmp_path / "p.toml.d" / "1.toml").symlink_to(tmp_path / "nothing")
    assert refused(path) == f"{path}.d/1.toml: cannot be read: No such file or directory"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_in_which_others_may_put_files_is_refused(mode: int, tmp_path: Path) -> None:
    """They could put a link there to a file of root that says something else."""
    path = written(tmp_path / "p.toml")
    directory = written(tmp_path / "p.toml.d" / "1.toml").parent
    directory.chmod(mode)
    assert refused(path) == f"{directory}: others may write to it (mode {mode:04o}): chmod go-w"


def test_the_mode_of_a_directory_on_a_read_only_mount_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "p.toml")
    other = written(tmp_path / "p.toml.d" / "1.toml")
    other.parent.chmod(0o777)
    flags = os.statvfs_result((0, 0, 0, 0, 0, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: flags)
    assert [file.path for file in read_files(str(path), required=True)] == [str(path), str(other)]


def test_so_many_files_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml")
    for number in range(MAX_DROP_INS + 1):
        written(tmp_path / "p.toml.d" / f"{number}.toml")
    assert refused(path) == f"{path}.d: has 65 files that end with .toml: at most 64 are read"
