"""The directory of device plugins: which may be taken, and how its socket is made, with real files."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from inotify_simple import INotify, flags

from plugind.actors.devices.directory import DeviceSocket, KubeletSocket, RealDeviceDirectory, SocketTakenError
from plugind.actors.trust.directories import InsecureRootError
from plugind.protocol.devices.calls import RegisterCall
from plugind.protocol.discovery.device_directory import check_place, not_made
from plugind.protocol.errors import ConfigError
from plugind.protocol.settings import config
from plugind.protocol.settings.config import DevicePluginDirectory
from plugind.tests.tools.restarts import ACCEPTED, watching

CHECKPOINT = "kubelet_internal_checkpoint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device-plugins"


@pytest.fixture
def made(path: Path) -> Path:
    """The directory, which is there already."""
    path.mkdir(mode=0o750)
    return path


@pytest.fixture
def take(path: Path) -> Iterator[Callable[..., RealDeviceDirectory]]:
    """Make a directory that is released at the end."""
    directories: list[RealDeviceDirectory] = []

    def take(where: Path = path, **options: bool) -> RealDeviceDirectory:
        directories.append(RealDeviceDirectory(DevicePluginDirectory(where, **options)))
        return directories[-1]

    yield take
    for directory in directories:
        directory.release()


Take = Callable[..., RealDeviceDirectory]


async def accept(call: RegisterCall) -> None:
    """Register whatever calls."""


@asynccontextmanager
async def serving(directory: RealDeviceDirectory, *, delete_sockets: bool = True) -> AsyncIterator[DeviceSocket]:
    """Serve as the device server does."""
    directory.hold()
    served = directory.listen()
    async with trio.open_nursery() as nursery:
        await nursery.start(served.serve, accept)
        served.publish(delete_sockets=delete_sockets)
        yield served
        served.retire()
    served.close()


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(path))


# --- the guard --------------------------------------------------------------------------------------------------------


def test_a_missing_directory_is_made_for_root_alone_and_locked(path: Path, take: Take) -> None:
    take().hold()
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert os.listdir(path) == [".plugind.lock"]


def test_the_usual_directory_is_made_with_the_one_above_it(
    tmp_path: Path, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented ``run --device-plugins`` did not serve on a machine without ``/var/lib/kubelet``."""
    monkeypatch.setattr(config, "DEFAULT_ROOT", str(tmp_path / "kubelet" / "plugins_registry"))
    where = tmp_path / "kubelet" / "device-plugins"
    take(where).hold()
    assert where.is_dir()
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o750


def test_a_directory_below_a_missing_one_is_not_made_and_the_error_says_what_to_do(tmp_path: Path, take: Take) -> None:
    """It was a bare ``No such file or directory``. It is tried again, since the disk may be mounted later."""
    where = tmp_path / "missing" / "device-plugins"
    with pytest.raises(OSError, match="since") as caught:
        take(where).hold()
    assert caught.value.strerror == (
        f"cannot make {where}, since {where.parent} is missing: make that, or name another directory with"
        " --device-plugins=DIR"
    )
    assert not where.parent.exists()


def test_a_service_that_may_not_write_there_is_told_what_permits_it() -> None:
    assert not_made("/d", OSError(errno.EROFS, "Read-only file system")) == (
        "cannot make /d: Read-only file system; let the service write there, as 'plugind install-unit --device-plugins'"
        " does for the usual one, or name another directory with --device-plugins=DIR"
    )


@pytest.mark.parametrize("name", ["afile", "afile/device-plugins"])
def test_what_is_not_a_directory_is_refused(tmp_path: Path, take: Take, name: str) -> None:
    """It was tried again for ever, with a warning."""
    (tmp_path / "afile").write_text("a file")
    where = tmp_path / name
    with pytest.raises(ConfigError) as caught:
        take(where).hold()
    assert str(caught.value) == (f"{where} is not a directory: move it away, or name another with --device-plugins=DIR")


@pytest.mark.parametrize("name", ["device-plugins", "empty", "used"])
def test_a_directory_that_is_meant_for_this_may_be_taken(tmp_path: Path, take: Take, name: str) -> None:
    where = tmp_path / name
    where.mkdir(mode=0o750)
    if name == "device-plugins":
        bind(where / "nvidia-gpu.sock")
    if name == "used":
        (where / ".plugind.lock").touch(mode=0o600)
        bind(where / "kubelet.sock")
    take(where).hold()


def test_any_other_directory_may_not_and_nothing_is_deleted_or_made(tmp_path: Path, take: Take) -> None:
    """``--device-plugins=/run`` must not delete docker.sock."""
    where = tmp_path / "run"
    where.mkdir()
    bind(where / "docker.sock")
    with pytest.raises(ConfigError, match="give plugind an empty directory with --device-plugins=DIR"):
        take(where).hold()
    assert os.listdir(where) == ["docker.sock"]


def test_the_directory_of_a_kubelet_needs_an_option(path: Path, take: Take) -> None:
    """A kubelet that is only stopped does not answer."""
    path.mkdir()
    (path / CHECKPOINT).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        take().hold()
    assert str(caught.value) == (
        f"{path} is the directory of a kubelet, whose {CHECKPOINT} is there: give plugind another directory with"
        " --device-plugins=DIR, or add --take-over-kubelet if no kubelet will run on this machine"
    )
    take(take_over_kubelet=True).hold()


def test_a_directory_in_which_a_process_answers_is_refused_with_its_pid(path: Path, take: Take) -> None:
    path.mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(path / "kubelet.sock"))
        kubelet.listen()
        with pytest.raises(SocketTakenError) as caught:
            take().hold()
    assert str(caught.value) == (
        f"pid {os.getpid()} serves {path}/kubelet.sock: stop it, or give plugind another directory with"
        " --device-plugins=DIR"
    )
    assert caught.value.pid == os.getpid()


def test_a_directory_that_another_node_has_locked_is_refused(path: Path, take: Take) -> None:
    take().hold()
    with pytest.raises(ConfigError) as caught:
        take().hold()
    assert str(caught.value) == (
        f"another plugind serves {path}/kubelet.sock: stop it, or give plugind another directory with"
        " --device-plugins=DIR"
    )


def test_a_directory_to_which_others_may_write_is_refused(path: Path, take: Take) -> None:
    """Fault 3, as for a root; the advice names the option of this directory."""
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(InsecureRootError, match="run 'chmod o-w"):
        take().hold()
    take(insecure=True).hold()


@pytest.mark.parametrize(
    ("directory", "roots", "status", "words"),
    [
        ("/a/b", ("/a/b",), None, "overlap"),
        ("/a/b/c", ("/a/b",), None, "overlap"),
        ("/a", ("/a/b",), None, "overlap"),
        ("/a", ("/r",), "/a", "the status socket is in the directory"),
        ("/" + "x" * 100, ("/r",), None, "no plugin can connect"),
    ],
)
def test_a_directory_of_other_sockets_of_the_node_is_refused(
    directory: str, roots: tuple[str, ...], status: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_place(directory, roots, status)
    check_place("/dp", roots, status)


# --- the socket -------------------------------------------------------------------------------------------------------


async def test_the_start_deletes_all_sockets_and_nothing_else(made: Path, take: Take) -> None:
    """Consumers B.3: whatever their names are, and neither directories, nor files, nor links."""
    path = made
    bind(path / "nvidia.sock")
    bind(path / "vendor.com_gpu")
    bind(path / "kubelet.sock")
    (path / "checkpoint").write_text("")
    (path / "sub").mkdir()
    bind(path / "sub" / "x.sock")
    (path / "link").symlink_to("sub/x.sock")
    async with serving(take()) as served:
        assert sorted(os.listdir(path)) == [".plugind.lock", "checkpoint", "kubelet.sock", "link", "sub"]
        assert os.listdir(path / "sub") == ["x.sock"]
        assert served.place() is KubeletSocket.OURS
    assert sorted(os.listdir(path)) == [".plugind.lock", "checkpoint", "link", "sub"]


async def test_the_start_shows_both_signs_of_a_restart_in_their_order(made: Path, take: Take) -> None:
    """Consumers B.3: plugins whose socket is gone call, so it goes first; others see one CREATE, and no rename."""
    for name in ("kubelet.sock", "vendor_gpu"):
        bind(made / name)
    directory = take()
    directory.hold()
    with INotify() as watch:
        watch.add_watch(made, flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO)
        async with serving(directory):
            events = [(flags.from_mask(event.mask)[0], event.name) for event in watch.read(timeout=0)]
    assert events == [
        (flags.CREATE, ".kubelet.sock.tmp"),
        (flags.DELETE, "vendor_gpu"),
        (flags.DELETE, "kubelet.sock"),
        (flags.CREATE, "kubelet.sock"),
        (flags.DELETE, ".kubelet.sock.tmp"),
    ]


async def test_a_socket_that_is_made_again_deletes_none(made: Path, take: Take) -> None:
    bind(made / "nvidia.sock")
    async with serving(take(), delete_sockets=False):
        assert sorted(os.listdir(made)) == [".plugind.lock", "kubelet.sock", "nvidia.sock"]


async def test_a_socket_that_is_removed_or_replaced_is_noticed(path: Path, take: Take) -> None:
    async with serving(take()) as served:
        (path / "kubelet.sock").unlink()
        assert served.place() is KubeletSocket.MISSING
        bind(path / "kubelet.sock")
        assert served.place() is KubeletSocket.ANOTHER
    assert (path / "kubelet.sock").exists(), "that of another process is not removed"


def test_a_watcher_that_dials_upon_create_is_never_refused(made: Path, take: Take) -> None:
    """Consumers B.3, consequence 2: 200 starts, and a raw watcher of IN_CREATE in another process dials at once.

    ``python -m tests.tools.restarts`` does the same with daemons.
    """
    directory = take()
    with watching(made, 200) as dials:

        async def start() -> None:
            directory.hold()
            serving = directory.listen()
            serving.publish(delete_sockets=True)
            said.append(dials.readline().strip())
            serving.close()

        said: list[str] = []
        for _ in range(200):
            trio.run(start)
    assert said == [ACCEPTED] * 200


async def test_the_processes_of_other_users_can_connect_only_if_some_are_trusted(tmp_path: Path) -> None:
    """Fault 40: who calls is judged by the kernel's word; the mode of the socket lets all others not even connect."""
    modes = []
    for others in (False, True):
        directory = RealDeviceDirectory(DevicePluginDirectory(tmp_path / f"d{others}"), others)
        async with serving(directory):
            modes.append(stat.S_IMODE(os.stat(tmp_path / f"d{others}" / "kubelet.sock").st_mode))
        directory.release()
    assert modes == [0o600, 0o666]
