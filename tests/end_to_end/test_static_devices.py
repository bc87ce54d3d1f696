"""Static devices of a real daemon: nodes that come and go, and a lease that survives the daemon."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plugind.testing import RunningDaemon, daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may make device nodes")


def make(path: Path, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))


def shown(node: RunningDaemon, *words: str) -> str:
    command = [sys.executable, "-m", "plugind", *words]
    variables = {**os.environ, "PLUGIND_STATUS": str(node.status)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_device_of_the_machine_is_leased_without_a_plugin_and_stays_what_it_was(tmp_path: Path) -> None:
    make(tmp_path / "ttyUSB0", 3)
    with daemon("--devices", f"lab/serial={tmp_path}/ttyUSB*") as node:
        node.devices("lab/serial", healthy=1, within=60)
        given = shown(node, "allocate", "lab/serial=1", "--", "sh", "-c", "echo $PLUGIND_DEVICES at $PLUGIND_NODES")
        assert given == f"lab/serial=ttyUSB0 at {tmp_path}/ttyUSB0\n"
        make(tmp_path / "ttyUSB1", 5)
        node.devices("lab/serial", healthy=2, within=60)
        shown(node, "allocate", "lab/serial=1", "--id", "bench", "--until-release", "--ids", "ttyUSB0")
        (tmp_path / "ttyUSB0").unlink()
        make(tmp_path / "ttyUSB0", 7)
        deadline = time.monotonic() + 60
        while (lease := node.client.leases()[0]).reason is None:
            assert time.monotonic() < deadline, shown(node, "leases")
            time.sleep(0.05)
        assert lease.reason == "unhealthy, another device of lab/serial has the id by now: ttyUSB0"
