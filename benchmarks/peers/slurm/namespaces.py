"""Runs a module as root in namespaces of its own: it sees only its own processes and network, and none outlives it.

Slurm's daemons and its steps leave their parents, so a list of what was started could not end them all. The kernel ends
a pid namespace as a whole. Ports and abstract sockets are those of the namespace, so that several can run at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from plugind.benchmarks.peers.slurm.cgroups import own_groups

#: The Debian package of each program that is needed.
PACKAGES: Final = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "flock": "util-linux",
}
#: The servers are installed where the path of a user may not lead.
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The exit code of a module that was ended by its deadline, as timeout(1) has it.
TOO_LONG: Final = 124
#: That of one that Ctrl-C has ended, as of a shell.
INTERRUPTED: Final = 128 + signal.SIGINT
#: Seconds until the processes of a namespace must have ended that was killed.
_PATIENCE: Final = 10.0
_NAMESPACES: Final = ("--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts")
#: The first process of a pid namespace has to wait for all that lose their parents; a shell does.
_FIRST: Final = ("sh", "-c", '"$@"; exit $?', "sh")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8913, 0x8914, 0x8916, 1


def lacking(needed: Mapping[str, str] = PACKAGES) -> str:
    """Return what is missing here, in words; nothing if these programs can be run in namespaces."""
    packages = {package for name, package in needed.items() if shutil.which(name, path=PATH) is None}
    if packages:
        return f"the Debian packages {', '.join(sorted(packages))} are not installed"
    if os.getuid():
        return "this needs root"
    made = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, timeout=60, check=False)
    return made.stderr.strip() if made.returncode else ""


def run_isolated(module: str, words: Sequence[str], seconds: float) -> int:
    """Run a Python module, and end it with all that it has started when it ends, or this process does.

    Returns its exit code, TOO_LONG after so many seconds, or INTERRUPTED after Ctrl-C. SIGTERM and SIGHUP end it with
    this process.

    Raises:
      OSError: if its cgroups cannot be made or removed.
    """
    command = [sys.executable, "-P", "-m", module, *words]
    with own_groups() as enter, _ended_by_signals():
        # Each process is killed with the one before it; each but the last two becomes the next one.
        chain = ["setpriv", "--pdeathsig", "KILL", *enter, "unshare", *_NAMESPACES, *_FIRST, *command]
        # Ctrl-C is for this process alone.
        with subprocess.Popen(chain, stdin=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return TOO_LONG
            except KeyboardInterrupt:
                return INTERRUPTED
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the first process of the namespace: unshare ends after it, and it ends after all the others."""
    if process.poll() is None:
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    process.kill()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise SystemExit, as SIGINT raises KeyboardInterrupt."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def settle_network() -> None:
    """Bring up the only interface of the namespace, and have a name of the host that resolves there."""
    socket.sethostname("localhost")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
        # Slurm resolves no name, nor 127.0.0.1, where a host has that address alone.
        address = struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton("192.0.2.1"))
        fcntl.ioctl(any_socket, _SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))
