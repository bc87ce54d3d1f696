"""Static devices of a real daemon: nodes that come and go, and a lease that survives the daemon."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plugind.testing import RunningDaemon, daemon
from plugind.tests.end_to_end.processes import PLUGIND

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may make device nodes")


def make(path: Path, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))


def shown(node: RunningDaemon, *words: str) -> str:
    command = [sys.executable, "-m", "plugind", *words]
    variables = {**os.environ, "PLUGIND_STATUS": str(node.status)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_device_of_the_machine_is_leased_without_a_plugin_and_stays_what_it_was(tmp_path: Path) -> None:
    make(tmp_path / "ttyUSB0", 3)
    with daemon("--devices", f"lab/serial={tmp_path}/ttyUSB*") as node:
        node.devices("lab/serial", healthy=1, timeout=60)
        given = shown(node, "allocate", "lab/serial=1", "--", "sh", "-c", "echo $PLUGIND_DEVICES at $PLUGIND_NODES")
        assert given == f"lab/serial=ttyUSB0 at {tmp_path}/ttyUSB0\n"
        make(tmp_path / "ttyUSB1", 5)
        node.devices("lab/serial", healthy=2, timeout=60)
        shown(node, "allocate", "lab/serial=1", "--id", "bench", "--until-release", "--ids", "ttyUSB0")
        (tmp_path / "ttyUSB0").unlink()
        make(tmp_path / "ttyUSB0", 7)
        deadline = time.monotonic() + 60
        while (lease := node.client.leases()[0]).reason is None:
            assert time.monotonic() < deadline, shown(node, "leases")
            time.sleep(0.05)
        assert lease.reason == "unhealthy, another device of lab/serial has the id by now: ttyUSB0"


def opens(node: Path, uid: int) -> bool:
    """Whether a process of this user opens a node."""
    done = subprocess.run(["/bin/cat", node], user=uid, group=uid, extra_groups=(), capture_output=True, check=False)
    return done.returncode == 0


def opens_in_the_end(node: Path, uid: int) -> None:
    deadline = time.monotonic() + 60
    while not opens(node, uid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory of root that all users reach."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="plugind-") as place:
        os.chmod(place, 0o711)
        yield Path(place)


def test_with_access_by_acl_a_node_is_open_to_the_user_of_its_lease_and_to_no_other(open_place: Path) -> None:
    """Also after a kill of the daemon, and after a change of the mode as udev makes it."""
    alice, bob, tty = 4_001, 4_002, open_place / "ttyUSB0"
    make(tty, 3)
    devices = f'{{"lab/serial" = {{paths = ["{open_place}/ttyUSB*"], access = "acl"}}}}'
    variables = {**os.environ, "PLUGIND_STATUS": f"{open_place}/status.sock", "PLUGIND_STATIC_DEVICES": devices}
    words = ["run", "--config=/dev/null", f"--root={open_place}/plugins", f"--state={open_place}/state"]

    def plugind(*words: str) -> str:
        done = subprocess.run(
            [*PLUGIND, *words], env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        return f"{done.stdout}{done.stderr}exit code {done.returncode}"

    def allocate(uid: int) -> str:
        return plugind("allocate", "lab/serial=1", "--for-user", str(uid), "--id=bench", "--until-release")

    with (open_place / "log").open("ab") as log, ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            daemon = stack.enter_context(subprocess.Popen([*PLUGIND, *words], env=variables, stderr=log))
            stack.callback(daemon.terminate)
            assert plugind("wait", "--resource", "lab/serial=1", "--timeout", "60").endswith("exit code 0")
            return daemon

        daemon = start()
        assert not opens(tty, alice)
        assert allocate(alice).endswith("exit code 0")
        assert (opens(tty, alice), opens(tty, bob)) == (True, False)
        os.chmod(tty, 0o600)
        opens_in_the_end(tty, alice)
        daemon.kill()
        daemon.wait()
        os.chmod(tty, 0o600)
        assert not opens(tty, alice), "its mask lets nothing through"
        daemon = start()
        opens_in_the_end(tty, alice)
        assert "lease bench belongs to another user" in allocate(bob)
        assert plugind("release", "bench").endswith("exit code 0")
        assert not opens(tty, alice)
        assert allocate(bob).endswith("exit code 0")
        assert (opens(tty, alice), opens(tty, bob)) == (False, True)
        assert plugind("release", "bench").endswith("exit code 0")
        # As Slurm's prolog asks, for a job of alice.
        job = f"slurm:c:n:7:0:{alice}:serial"
        assert plugind("allocate", "lab/serial=1", "--id", job, "--until-release").endswith("exit code 0")
        assert (opens(tty, alice), opens(tty, bob)) == (True, False)
        assert plugind("release", job).endswith("exit code 0")
        assert not opens(tty, alice)
