"""The cgroups by which Slurm confines jobs: groups of our own, which their namespace sees as the root."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

#: What Slurm needs of version 1: one for the devices of a job, one to end all its processes.
CONTROLLERS: Final = ("devices", "freezer")
_HIERARCHIES: Final = Path("/sys/fs/cgroup")
#: The name of a group, before the pid of the process that has made it.
_NAME: Final = "plugind-slurm-"
#: Seconds until the groups must be empty, after all their processes were killed.
_PATIENCE: Final = 10.0


def can_confine() -> bool:
    """Return whether this machine has hierarchies in which groups can be made."""
    return all(os.access(_HIERARCHIES / name / "cgroup.procs", os.W_OK) for name in CONTROLLERS)


@contextmanager
def own_groups() -> Iterator[list[str]]:
    """Yield the beginning of a command that enters groups of its own, as the root of its cgroups.

    At the end the groups are removed; no process may be in them then.

    Raises:
      OSError: if they cannot be made, or removed.
    """
    if not can_confine():
        yield []
        return
    _remove_stale()
    groups = [_HIERARCHIES / name / f"{_NAME}{os.getpid()}" for name in CONTROLLERS]
    with ExitStack() as stack:
        for group in groups:
            group.mkdir()
            stack.callback(_remove, group)
        files = [str(group / "cgroup.procs") for group in groups]
        enter = f'for group in {" ".join(files)}; do echo 0 >"$group" || exit; done; exec "$@"'
        yield ["sh", "-c", enter, "sh", "unshare", "--cgroup", "--"]


def _remove_stale() -> None:
    """Remove the groups of processes that were killed before they could do it."""
    for name in CONTROLLERS:
        for group in (_HIERARCHIES / name).glob(f"{_NAME}*"):
            if not os.path.exists(f"/proc/{group.name.removeprefix(_NAME)}"):
                _remove(group)


def _remove(group: Path) -> None:
    """Remove a group and those below it, once the last process has left."""
    end = time.monotonic() + _PATIENCE
    for directory, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def mount_groups(place: Path) -> None:
    """Mount the hierarchies below ``place``, with the groups of this namespace as their roots.

    Raises:
      subprocess.CalledProcessError: if the kernel does not let it.
    """
    for name in CONTROLLERS:
        (place / name).mkdir(parents=True)
        command = ["mount", "-t", "cgroup", "-o", name, "plugind-slurm", str(place / name)]
        subprocess.run(command, timeout=60, check=True)
