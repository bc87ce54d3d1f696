"""A container engine: podman with runc, on a directory with busybox instead of an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

#: Applets of busybox that tests use.
_APPLETS = ("sh", "cat", "echo", "stat", "env", "sleep")
#: For a machine whose limits are lower than podman's own, and without a network of its own.
OPTIONS = ("--rm", "--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")


@attrs.frozen
class Engine:
    """Runs containers as a user; the files of the engine are in ``directory``."""

    directory: Path
    uid: int
    #: How the files of images and containers are kept; ``vfs`` copies all of them, and works everywhere.
    storage: str = "vfs"

    @property
    def podman(self) -> list[str]:
        """The command ``podman`` with its options."""
        store = [
            f"--root={self.directory}/store",
            f"--runroot={self.directory}/run/r",
            f"--storage-driver={self.storage}",
        ]
        # The machine may have no systemd; and crun refuses a machine with both kinds of cgroups.
        engine = ["podman", *store, "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime=runc"]
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if self.uid else []
        return [*as_user, *engine]

    def command(self, options: Sequence[str], script: str) -> list[str]:
        """Return the command that runs ``script`` in a container, with ``options`` of ``podman run``."""
        what = [*options, "--rootfs", f"{self.directory}/root", "sh", "-c", script]
        return [*self.podman, "run", *OPTIONS, *what]

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the engine."""
        own = {"HOME": f"{self.directory}/home", "XDG_RUNTIME_DIR": f"{self.directory}/run"} if self.uid else {}
        return {"HOME": "/root", "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin"} | own

    def run(self, options: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
        """Run ``script`` in a container to its end."""
        return finish(self.command(options, script), cwd=self.directory, env=self.environment)

    @contextmanager
    def started(self, options: Sequence[str], script: str) -> Iterator[subprocess.Popen[str]]:
        """Start ``script`` in a container, with pipes; its standard input is closed at exit."""
        with subprocess.Popen(
            self.command(["--interactive", *options], script),
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as engine:
            yield engine


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


def python_of_all(directory: Path) -> str:
    """Return an interpreter with plugind that all users reach, if there is one.

    The environment of the tests may lie where only its owner reaches it.
    """
    python = directory / "bin" / "python3"
    made = subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", directory], check=False)
    for packages in directory.glob("lib/python*/site-packages"):
        (packages / "tests.pth").write_text(f"{Path(__file__).parents[2]}/.links\n{Path(attrs.__file__).parents[1]}\n")
    tried = subprocess.run([python, "-m", "plugind", "--version"], capture_output=True, check=False)
    return sys.executable if made.returncode or tried.returncode else str(python)
