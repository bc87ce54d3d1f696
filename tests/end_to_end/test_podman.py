"""``podman run $(plugind allocate … -o podman)``, with a daemon, a fake device plugin and the hook of plugind."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.tests.end_to_end.containers import OPTIONS, engine, python_of_all
from plugind.tests.end_to_end.leasing import ended, leases, listed, release
from plugind.tests.end_to_end.processes import PLUGIND, Daemon, daemon_process, finish

pytestmark = pytest.mark.extended

#: The user of the rootless engine.
USER = 1000
GPU, DATA, STATIC = "example.com/gpu", "example.com/data", "lab/static"
#: A container's end is followed by the lease's sooner than in a real daemon.
TIMEOUTS = {"protocol.leases.book.GRACE": 0.2}


@attrs.frozen
class Served:
    """A daemon with two device plugins: one has a device node, and the other a file."""

    daemon: Daemon
    directory: Path
    #: The command ``plugind``.
    plugind: list[str]

    def allocate(self, *arguments: str, uid: int = 0) -> list[str]:
        """Return the options that ``plugind allocate -o podman`` prints for a user, as a shell splits them."""
        command = [*(as_user(uid) if uid else []), *self.plugind, "allocate", *arguments, "-o", "podman"]
        status = ["--status", self.daemon.status]
        done = finish([*command, *status], cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


def as_user(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


#: Podman looks nowhere else for the files, so the markers are where daemons of other runs look for them, too.
PLACES = {"PLUGIND_MARKERS": "/run/plugind", "PLUGIND_LEASES_CDI_DIRECTORY": "/var/run/cdi"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes and writes to /var/run/cdi")
    with ExitStack() as stack:
        # Other users reach it; podman refuses paths of more than 50 characters. What podman starts at the end of a
        # container may still write there when the tests have ended.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)))
        os.chmod(place, 0o755)
        plugins = place / "device-plugins"
        plugins.mkdir()
        os.mknod(place / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.chmod(place / "node", 0o640)
        os.chown(place / "node", 0, 20)
        os.mknod(place / "static", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        (place / "file").write_text("read\n")
        python = python_of_all(place / "python")
        script = [python, str(Path(__file__).with_name("patient.py")), json.dumps(TIMEOUTS), "--log-format=json"]
        root, status = ["--root", str(place / "root")], ["--status", str(place / "status.sock")]
        options = [f"--device-plugins={plugins}", f"--state={place}/state", f"--lease-uids={USER}"]
        options += ["--devices", f"{STATIC}={place}/static"]
        log = stack.enter_context((place / "log").open("ab"))
        stack.callback(remove_files, place / "state/state.db")
        process = stack.enter_context(daemon_process([*script, *root, *status, *options], log, PLACES))
        started = Daemon(place / "root", status[1], process, place / "log")
        for name, *devices in (
            (GPU, f"--device=gpu-0={place}/node", "--device=gpu-1=/dev/null", "--env=GIVEN={ids}"),
            (DATA, f"--device=data-0={place}/file"),
        ):
            fake = ["fake", "--type=DevicePlugin", f"--name={name}", f"--device-plugins={plugins}", *devices]
            plugin = subprocess.Popen([*PLUGIND, *fake], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(_end, plugin)
        trio.run(listed, started, GPU, DATA)
        yield Served(started, place, [python, "-m", "plugind"])


def remove_files(state: Path) -> None:
    """Remove what the daemon that was killed has left: it would withhold the devices of each later one."""
    with closing(sqlite3.connect(state)) as database:
        ((instance,),) = database.execute("SELECT value FROM meta WHERE key = 'instance'")
    for file in Path("/var/run/cdi").glob(f"plugind-{instance}-*"):
        file.unlink()
    Path(f"/run/plugind/leases-{instance}").unlink(missing_ok=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def owner(served: Served, lease: str) -> dict[str, Any]:
    found: dict[str, Any] = trio.run(leases, served.daemon)[lease]["owner"]
    return found


#: Prints what the container got, and ends with its input.
_LOOK = """
echo $GIVEN $PLUGIND_LEASE $PLUGIND_DEVICES $PLUGIND_NODES
stat -c '%A %u %g %t:%T' /dev/gpu-0 ${PLUGIND_NODES#*,}
cat /dev/data-0
cat
"""


def test_a_container_has_the_devices_of_its_lease_alone_and_frees_them_after_its_end(served: Served) -> None:
    podman = engine(served.directory / "e")
    options = served.allocate(f"{GPU}=1", f"{DATA}=1", f"{STATIC}=1", "--id", "job")
    assert owner(served, "job")["kind"] == "container"
    with podman.started(options, _LOOK) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        seen = [first.stdout.readline() for _ in range(4)]
        assert [line.strip() for line in seen] == [
            f"gpu-0 job {GPU}=gpu-0;{DATA}=data-0;{STATIC}=static /dev/gpu-0,{served.directory}/static",
            "crw-r----- 0 20 1:3",
            "crw------- 0 0 1:5",
            "read",
        ]
        init = owner(served, "job")["init"]["pid"]
        second = podman.run(options, "echo started")
        assert (second.returncode != 0, second.stdout) == (True, "")
        text = f"lease job is bound to another container, whose init is {init}"
        assert f"plugind: lease job cannot be bound to this container: {text}" in second.stderr
        first.communicate()
    assert first.returncode == 0
    trio.run(ended, served.daemon, "job")
    third = podman.run(options, "echo started")
    assert f"unresolvable CDI devices {options[1]}" in third.stderr


def purpose(served: Served, lease: str) -> str:
    """Return what ``plugind who`` says a lease is for."""
    done = finish([*PLUGIND, "who", "-o", "json"], env={**os.environ, "PLUGIND_STATUS": served.daemon.status})
    (found,) = (each["for"] for each in json.loads(done.stdout)["leases"] if each["id"] == lease)
    return str(found)


def test_a_lease_until_its_release_is_kept_over_stop_and_start(served: Served) -> None:
    podman = engine(served.directory / "k")
    options = served.allocate(f"{GPU}=1", "--id=kept", "--until-release")

    def run(*words: str) -> None:
        done = finish([*podman.podman, *words], cwd=podman.directory, env=podman.environment)
        assert done.returncode == 0, done.stderr

    run(
        "run",
        "--detach",
        "--name=web",
        *OPTIONS[1:],
        *options,
        "--rootfs",
        f"{podman.directory}/root",
        "sleep",
        "1000",
    )
    first = owner(served, "kept")["init"]
    assert purpose(served, "kept") == "web"
    run("stop", "--time=0", "web")
    trio.run(unbound, served, "kept")
    # Nobody knows the name of a container that does not run.
    assert purpose(served, "kept") == "kept"
    run("start", "web")
    assert owner(served, "kept")["init"] not in (None, first)
    run("rm", "--force", "--time=0", "web")
    trio.run(release, served.daemon, "kept")


async def unbound(served: Served, lease: str) -> None:
    with trio.fail_after(30):
        while (await leases(served.daemon))[lease]["owner"]["init"] is not None:  # noqa: ASYNC110 - another process
            await trio.sleep(0.05)


def test_a_user_has_containers_of_leases_of_its_own(served: Served) -> None:
    """Where an engine can make no nodes, it mounts them. A lease of another user is not bound: the hook has a user."""
    podman = engine(served.directory / "u", USER)
    alone = [*as_user(USER), "unshare", "--user", "--map-root-user", *served.plugind, "--version"]
    tried = finish(alone, cwd="/")
    if tried.returncode:
        pytest.skip(f"users have no user namespaces here, or do not reach plugind: {tried.stderr}")
    own = served.allocate(f"{GPU}=1", "--ids=gpu-1", "--id=own", uid=USER)
    done = podman.run(own, "echo $PLUGIND_DEVICES; stat -Lc %t:%T /dev/gpu-1; echo > /dev/gpu-1")
    assert (done.stdout.split(), done.returncode) == ([f"{GPU}=gpu-1", "1:3"], 0), done.stderr
    trio.run(ended, served.daemon, "own")
    foreign = served.allocate(f"{DATA}=1", "--id=foreign")
    done = podman.run(foreign, "echo started")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "lease foreign cannot be bound to this container: lease foreign belongs to another user" in done.stderr
    assert owner(served, "foreign")["init"] is None
    trio.run(release, served.daemon, "foreign")


def test_a_shell_gives_the_options_to_podman(served: Served) -> None:
    """The line of docs/leases.md. Without a lease the container does not start, for want of a device."""
    podman = engine(served.directory / "s")
    allocate = f"{' '.join(served.plugind)} allocate {DATA}=1 -o podman --status {served.daemon.status}"
    line = " ".join(podman.command(["$OPTIONS"], "'cat /dev/data-0'")).replace("$OPTIONS", f"$({allocate})")

    def run() -> subprocess.CompletedProcess[str]:
        return finish(["sh", "-c", line], env=podman.environment)

    served.allocate(f"{DATA}=1", "--id=before")
    done = run()
    assert "Requested: 1, Available: 0" in done.stderr
    assert "unresolvable CDI devices plugind/lease=none" in done.stderr
    assert "cat: " not in done.stderr
    trio.run(release, served.daemon, "before")
    # As in a loop of a shell, the second container gets the only device from the first one, which has just ended.
    for _ in range(2):
        done = run()
        assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr
