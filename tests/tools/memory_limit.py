"""Hostile plugins of each kind in turn, against a daemon that may have 128 MiB: it must not be ended (fault 65).

    python -m tests.tools.memory_limit
    python -m tests.tools.memory_limit --kind big-info silent --sockets 1000

The daemon runs in a memory cgroup of its own, version 1 or 2, which takes root. The plugins are the peers of
``benchmarks.hostile``, in a process outside of that cgroup. For each kind they are there until the daemon has dialed
each of them, or for ``--seconds`` where it has not. Prints the memory before and after each kind, and its peak so far.
Exit code 1 if the daemon ended, and 2 if there can be no such cgroup.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plugind.benchmarks.peers.daemon_process import DaemonProcess
from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.peers.hostile.process import hostile_peers

LIMIT = 128 * 1024 * 1024
#: The files that limit memory, by version.
_LIMITS = ("memory.limit_in_bytes", "memory.max")
_POLL = 0.05
#: Kinds of which each plugin makes 1,000 entries, so that one of them does as much as 1,000 others.
_CROWDS = ("symlinks", "directories")


class NoCgroupError(Exception):
    """This process cannot limit the memory of another; the text says why."""


def _mounted() -> Path:
    """Return where the memory controller is mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            return Path(place)
    raise NoCgroupError("no memory controller is mounted")


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Make a cgroup whose processes may use ``limit`` bytes, for the duration of the block.

    Raises:
      NoCgroupError: if that is impossible here.
    """
    try:
        place = Path(tempfile.mkdtemp(prefix="plugind-", dir=_mounted()))
    except OSError as error:
        raise NoCgroupError(f"no cgroup can be made: {error}") from error
    try:
        file = next((place / name for name in _LIMITS if (place / name).exists()), None)
        if file is None:
            raise NoCgroupError("a new cgroup has no memory controller")
        file.write_text(str(limit))
        yield place
    finally:
        place.rmdir()


@contextmanager
def limited_daemon(directory: Path, cgroup: Path | None) -> Iterator[DaemonProcess]:
    """Run a daemon in ``cgroup`` from its first instruction on; its root is ``root`` in ``directory``."""
    (directory / "root").mkdir(mode=0o755)
    status, log = directory / "status.sock", directory / "log"
    command = [sys.executable, "-m", "plugind", "run", "--root", str(directory / "root"), "--status", str(status)]
    if cgroup is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs"), *command]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        daemon = DaemonProcess(process, status, log)
        try:
            daemon.wait_ready()
            yield daemon
        finally:
            daemon.kill()


def attack(daemon: DaemonProcess, kind: str, directory: Path, sockets: int, seconds: float) -> None:
    """Have ``sockets`` plugins of one kind in ``directory`` until each was dialed, or for ``seconds``.

    Raises:
      RuntimeError: if the daemon ended.
    """
    began = time.monotonic()
    with hostile_peers(kind, directory, sockets) as peers:
        while time.monotonic() - began < seconds and peers.counts()["dials"] < sockets and not daemon.ended:
            time.sleep(_POLL)
    if daemon.ended:
        raise RuntimeError(f"the daemon was ended by {kind}")
    shutil.rmtree(directory)
    # It must still answer, and not only be there.
    daemon.get("/healthz")


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack one daemon with each kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.memory_limit", description=__doc__.split("\n")[0])
    parser.add_argument("--kind", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="default: all kinds")
    parser.add_argument("--sockets", type=int, default=1000, help="plugins of each kind (default 1000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="the longest time for one kind (default 10)")
    options = parser.parse_args(arguments)
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            memory_cgroup(LIMIT) as cgroup,
            limited_daemon(Path(name), cgroup) as daemon,
        ):
            for kind in options.kind:
                before = daemon.memory_kib()
                sockets = max(1, options.sockets // 1000) if kind in _CROWDS else options.sockets
                attack(daemon, kind, Path(name) / "root" / kind, sockets, options.seconds)
                now, peak = daemon.memory_kib(), daemon.memory_kib("VmHWM")
                print(f"{kind:16} {before:8} KiB before {now:8} after {peak:8} at the peak", flush=True)
    except NoCgroupError as error:
        print(error, file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
