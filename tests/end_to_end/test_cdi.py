"""The CDI files of leases, loaded by a real container engine, which runs the hook. A server of the test is the daemon.

One container takes a second.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

import plugind
from plugind.actors.leases.cdi_files import CdiFiles, hook_command
from plugind.protocol.leases.cdi import Hook, name_of
from plugind.protocol.leases.values import (
    CDI_KIND,
    Answer,
    ContainerOwner,
    Lease,
    LeaseState,
    Mount,
    Node,
    Request,
    Wanted,
)
from plugind.tests.actors.console.lease_server import answer, lease_server
from plugind.tests.end_to_end.containers import Engine, engine

pytestmark = pytest.mark.extended

NAME = name_of(int.from_bytes(os.urandom(16), "big"))
DEVICE = f"{CDI_KIND}={NAME}"
GIVE = ("--device", DEVICE)
#: Other tests, and a daemon of this machine, have files of their own.
INSTANCE = f"test{os.getpid()}"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users reach; podman refuses paths of more than 50 characters."""
    # What podman starts at the end of a container may still write there when the test has ended.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def rootful(place: Path) -> Engine:
    return engine(place / "e")


@contextmanager
def files_for(place: Path, command: tuple[str, ...]) -> Iterator[CdiFiles]:
    """Yield the files of a daemon with its status socket in ``place``; they are where engines look for them."""
    files = CdiFiles(INSTANCE, Hook(command, str(place / "status.sock")))
    try:
        yield files
    finally:
        trio.run(files.clean, ())


@pytest.fixture
def files(place: Path, rootful: Engine) -> Iterator[CdiFiles]:
    with files_for(place, hook_command()) as files:
        yield files


def write(files: CdiFiles, answer: Answer, uid: int = 0) -> None:
    request = Request((Wanted("v.com/a", 1),), container=True)
    lease = Lease("job-7", uid, request, ContainerOwner(), LeaseState.HELD, 0.0, {"v.com/a": ("0",)}, answer, NAME)
    trio.run(files.write, lease)


#: Prints the environment, the node, the mount, and when the container's init began.
_LOOK = """
echo $GIVEN $PLUGIND_LEASE $PLUGIND_DEVICES $PLUGIND_NODES
stat -c '%A %u %g %t:%T' /dev/inside
cat /data/file
echo no > /data/file && echo written
echo > /dev/inside
set -- $(cat /proc/1/stat); echo ${22}
"""


def test_a_container_gets_what_the_lease_gives_and_the_hook_binds_its_init(
    place: Path, files: CdiFiles, rootful: Engine
) -> None:
    """A file that is half written is not seen; the node has the mode of the host's, not 0666."""
    node, data = place / "node", place / "data"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.chmod(node, 0o640)
    os.chown(node, 0, 20)
    data.mkdir()
    (data / "file").write_text("read\n")
    given = Answer({"GIVEN": "by-plugin"}, (Mount(str(data), "/data", True),), (Node(str(node), "/dev/inside"),))
    write(files, given)
    path = Path(files.path_of(NAME))
    half = path.with_name(f".plugind-{INSTANCE}-half")
    half.write_bytes(path.read_bytes()[:100])
    with lease_server(place, answer(200)) as daemon:
        done = rootful.run(GIVE, _LOOK)
    assert "Read-only file system" in done.stderr
    *seen, started = done.stdout.splitlines()
    assert seen == ["by-plugin job-7 v.com/a=0 /dev/inside", "crw-r----- 0 20 1:3", "read"], done.stderr
    (asked,) = daemon.requests
    assert asked.line == "POST /v1/leases/job-7/bind HTTP/1.1"
    assert (asked.body["start_ticks"], asked.uid) == (int(started), 0)
    assert asked.body["pid"] != 1


def test_a_container_whose_lease_is_refused_does_not_start(place: Path, files: CdiFiles, rootful: Engine) -> None:
    """The engine shows what the daemon says."""
    write(files, Answer())
    with lease_server(place, answer(409, {"error": "it is bound to process 12"})) as daemon:
        done = rootful.run(GIVE, "echo started")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "plugind: lease job-7 cannot be bound to this container: it is bound to process 12" in done.stderr
    assert len(daemon.requests) == 1


def test_a_container_without_a_daemon_or_after_its_lease_does_not_start(files: CdiFiles, rootful: Engine) -> None:
    write(files, Answer())
    done = rootful.run(GIVE, "echo started")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "job-7 cannot be bound to this container: no daemon answers at" in done.stderr
    trio.run(files.remove, NAME)
    done = rootful.run(GIVE, "echo started")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert f"unresolvable CDI devices {DEVICE}" in done.stderr


def _hook_of_others() -> tuple[str, ...]:
    """Return a command ``plugind`` for users who do not reach the interpreter that runs this test."""
    path = f"PYTHONPATH={Path(plugind.__file__).parent}/.links:{Path(attrs.__file__).parents[1]}"
    return ("/usr/bin/env", path, "PYTHONDONTWRITEBYTECODE=1", "/usr/bin/python3", "-m", "plugind")


def test_an_engine_without_root_gives_the_same(place: Path) -> None:
    """Where it can make no nodes, it mounts them; the daemon sees the user who runs it."""
    uid = 1000
    user, command = engine(place / "e", uid), _hook_of_others()
    alone = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "unshare", "--user", "--map-root-user")
    tried = subprocess.run([*alone, *command, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"users have no user namespaces here, or do not reach plugind: {tried.stderr}")
    link = place / "link"
    link.symlink_to("/dev/zero")
    nodes = (Node("/dev/null", "/dev/inside"), Node(str(link), str(link)))
    with files_for(place, command) as files, lease_server(place, answer(200)) as daemon:
        write(files, Answer({"GIVEN": "by-plugin"}, nodes=nodes), uid)
        done = user.run(GIVE, f"echo $GIVEN; stat -Lc %t:%T /dev/inside {link}; echo > /dev/inside")
    assert done.stdout.split() == ["by-plugin", "1:3", "1:5"], done.stderr
    assert done.returncode == 0
    assert [asked.uid for asked in daemon.requests] == [uid]
