"""Files below a root are opened beneath it: by the kernel, and step by step where it cannot."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from plugind.actors.discovery import directory as directory_module
from plugind.actors.discovery.directory import RealDirectory
from plugind.actors.grpc.client.dial import dial_registration
from plugind.actors.grpc.endpoints import RealEndpointFiles
from plugind.actors.io import beneath
from plugind.actors.io.beneath import has_openat2, open_beneath, resolve, root_of
from plugind.actors.io.connecting import stream_socket
from plugind.actors.io.exact_connect import connect_to
from plugind.actors.io.file_identity import identity_at
from plugind.actors.io.processes import Processes
from plugind.protocol.discovery.sockets import EntryKind
from plugind.protocol.health.liveness import ConnectAnswer
from plugind.protocol.wire.errors import DialError, DialFailure
from plugind.protocol.wire.learning import KnownConversations
from plugind.tests.actors.io.exhaustion import descriptors


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a file is opened beneath a root."""
    if request.param == "openat2" and not has_openat2():
        pytest.skip("needs Linux 5.6, and no filter of openat2(2)")
    monkeypatch.setattr(beneath, "has_openat2", lambda: request.param == "openat2")
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with a socket in it, beside a directory with another socket that is none of the root's."""
    for place in ("root/sub/deep", "secret"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("root/sub/deep", "secret"):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(tmp_path / place / "a.sock"))
    return tmp_path


def opens(root: Path, path: Path) -> os.stat_result:
    descriptor = open_beneath(str(root), str(path))
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_below_the_root_is_opened_and_nothing_else_stays_open(tree: Path) -> None:
    """Fault 14: a directory that is kept open withholds the events of its end."""
    path, before = tree / "root/sub/deep/a.sock", descriptors()
    assert os.path.samestat(opens(tree / "root", path), os.lstat(path))
    assert os.path.samestat(opens(tree / "root", tree / "root"), os.lstat(tree / "root"))
    assert os.path.samestat(opens(Path("/"), path), os.lstat(path))
    with pytest.raises(FileNotFoundError):
        opens(tree / "root", tree / "root/sub/none")
    assert descriptors() == before


@pytest.mark.parametrize("link", ["sub", "sub/deep"])
def test_a_link_in_the_place_of_a_directory_is_not_followed(tree: Path, link: str) -> None:
    """Fault 3: it leads to a socket of the same name that only root may reach."""
    place = tree / "root" / link
    place.rename(tree / "aside")
    place.symlink_to(tree / "secret")
    path = place / ("deep/a.sock" if link == "sub" else "a.sock")
    with pytest.raises(NotADirectoryError, match=r"a symbolic link|Not a directory"):
        opens(tree / "root", path)
    seen = RealDirectory(str(tree / "root"))
    assert seen.look(str(path)) is None
    assert not seen.leads_to_socket(str(path))
    with pytest.raises(NotADirectoryError):
        next(seen.scan(str(place), {}, deep=True))
    with closing(seen.events()) as events, pytest.raises(NotADirectoryError):
        events.watch(str(place))
    assert seen.look(str(place)) is not None, "the link itself can be looked at"


def test_a_link_at_the_end_is_opened_itself(tree: Path) -> None:
    """Behaviour 7."""
    link = tree / "root/link.sock"
    link.symlink_to(tree / "secret/a.sock")
    found = RealDirectory(str(tree / "root")).look(str(link))
    assert found is not None
    assert found.kind is EntryKind.SYMLINK


def test_nothing_leads_out_of_the_root(tree: Path) -> None:
    with pytest.raises(OSError, match="Invalid cross-device link") as caught:
        opens(tree / "root", tree / "root" / ".." / "secret" / "a.sock")
    assert caught.value.errno == errno.EXDEV


def test_the_socket_that_was_judged_is_not_dialed_through_a_link_either(tree: Path) -> None:
    """Fault 41: even the very inode is not reached by a way that leaves the root."""
    secret = tree / "secret/a.sock"
    judged = identity_at(os.lstat(secret), str(secret))
    (tree / "root/way").symlink_to(tree / "secret")
    with stream_socket() as connection, pytest.raises(NotADirectoryError):
        connect_to(connection, str(tree / "root/way/a.sock"), judged, roots=[str(tree / "root")])
    with stream_socket() as connection, pytest.raises(ConnectionRefusedError):
        connect_to(connection, str(tree / "root/way/a.sock"), judged)


async def test_whoever_connects_goes_by_the_root_that_is_named_for_the_socket(tree: Path) -> None:
    """A dial, a look of the liveness actor, and the link of a plugin whose endpoint is its socket."""
    judged = identity_at(os.lstat(tree / "secret/a.sock"), str(tree / "secret/a.sock"))
    (tree / "root/way").symlink_to(tree / "secret")
    path, root = str(tree / "root/way/a.sock"), str(tree / "root")
    dial = partial(dial_registration, path, identity=judged, timeout=60.0, refused_grace=0.0)
    with pytest.raises(DialError) as unnamed:
        await dial(conversations=KnownConversations())
    with pytest.raises(DialError) as named:
        await dial(root=root, conversations=KnownConversations())
    assert (unnamed.value.kind, named.value.kind) == (DialFailure.REFUSED, DialFailure.GONE)
    with closing(Processes(1)) as processes:
        assert processes.look(path, judged, take_process=False)[0] is ConnectAnswer.REFUSED
        assert processes.look(path, judged, root=root, take_process=False)[0] is not ConnectAnswer.REFUSED
    files = RealEndpointFiles()
    with pytest.raises(ConnectionRefusedError):
        files.connect_exactly(path, judged)
    with pytest.raises(NotADirectoryError):
        files.below((root,)).connect_exactly(path, judged)


def test_a_link_that_is_accepted_is_opened_where_it_leads_inside_of_the_root(tree: Path) -> None:
    """Behaviour 7: neither link may lead out, whatever it says on the way."""
    root, link = tree / "root", tree / "root/link.sock"
    seen = RealDirectory(str(root))
    link.symlink_to("../root/sub/deep/a.sock")
    assert resolve(str(root), str(link)) == str(root / "sub/deep/a.sock")
    found = seen.follow(str(link), str(root))
    assert found is not None
    with stream_socket() as connection, pytest.raises(ConnectionRefusedError):
        connect_to(connection, str(link), found.identity, roots=[str(root)], follow_symlinks=True)
    link.unlink()
    link.symlink_to(tree / "secret/a.sock")
    assert seen.follow(str(link), str(root)) is None
    with stream_socket() as connection, pytest.raises(OSError, match="leads out of the root"):
        connect_to(connection, str(link), found.identity, roots=[str(root)], follow_symlinks=True)


def test_a_directory_that_is_swapped_after_the_link_was_resolved_is_not_followed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 7: the last moment between the resolution and the look."""
    root, link = tree / "root", tree / "root/link.sock"
    link.symlink_to("sub/deep/a.sock")

    def swap(top: str, path: str) -> str:
        target = resolve(top, path)
        (root / "sub").rename(tree / "aside")
        (tree / "secret/deep").mkdir()
        os.rename(tree / "secret/a.sock", tree / "secret/deep/a.sock")
        (root / "sub").symlink_to(tree / "secret")
        return target

    monkeypatch.setattr(directory_module, "resolve", swap)
    assert RealDirectory(str(root)).follow(str(link), str(root)) is None


def test_the_root_of_a_path_is_the_one_below_which_it_lies() -> None:
    roots = ["/run/a", "/run/ab"]
    assert root_of("/run/ab/c.sock", roots) == "/run/ab"
    assert root_of("/run/abc/c.sock", roots) is None
    assert root_of("/run/a", roots) is None
    assert root_of("/run/a.sock", ["/"]) == "/"
