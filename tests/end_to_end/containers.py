"""A container engine: podman with runc, on a directory with busybox instead of an image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.packages import program

#: Applets of busybox that tests use.
_APPLETS = ("sh", "cat", "echo", "stat", "env")
#: For a machine whose limits are lower than podman's own, and without a network of its own.
_OPTIONS = ("--rm", "--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")


@attrs.frozen
class Engine:
    """Runs containers as a user; the files of the engine are in ``directory``."""

    directory: Path
    uid: int

    def command(self, device: str, script: str) -> list[str]:
        """Return the command that runs ``script`` in a container with a CDI device."""
        store = [f"--root={self.directory}/store", f"--runroot={self.directory}/run/r", "--storage-driver=vfs"]
        # The machine may have no systemd; and crun refuses a machine with both kinds of cgroups.
        engine = ["podman", *store, "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime=runc"]
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if self.uid else []
        what = ["--device", device, "--rootfs", f"{self.directory}/root", "sh", "-c", script]
        return [*as_user, *engine, "run", *_OPTIONS, *what]

    def run(self, device: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run ``script`` in a container to its end."""
        own = {"HOME": f"{self.directory}/home", "XDG_RUNTIME_DIR": f"{self.directory}/run"} if self.uid else {}
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin"
        return subprocess.run(
            self.command(device, script),
            env={"HOME": "/root", "PATH": path} | own,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )


def engine(directory: Path, uid: int = 0) -> Engine:
    """Return an engine; skip the test if something for it is not installed."""
    program("podman")
    program("runc")
    binary = program("busybox")
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes and writes to /var/run/cdi")
    programs = directory / "root" / "bin"
    for made in (programs, directory / "home", directory / "run"):
        made.mkdir(parents=True)
    shutil.copy(binary, programs / "busybox")
    for name in _APPLETS:
        (programs / name).symlink_to("busybox")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    return Engine(directory, uid)
