"""Three nodes of Slurm on this machine, each with a plugind and a fake device plugin with four devices.

It runs in the namespaces of ``namespaces.py``, which end whatever has left its parent. It uses no service of the
machine, not even its munge.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.peers.slurm.cgroups import mount_groups
from plugind.benchmarks.peers.slurm.files import IDS, NODES, RESOURCE, Way, write_files
from plugind.benchmarks.peers.slurm.namespaces import PATH, settle_network
from plugind.client import SyncClient

PLUGIND: Final = (sys.executable, "-P", "-m", "plugind")
#: Seconds in which anything that is waited for must happen, and in which a command must end.
PATIENCE: Final = 120.0
#: Jobs are those of this user, who has no rights: that of nobody.
USER: Final = 65534
#: The major number of the device nodes, which is for local use: no driver serves it.
_MAJOR: Final = 60
#: Seconds until a daemon that was told to stop must have ended.
_STOP: Final = 5.0


class ClusterError(Exception):
    """Something did not happen in time, or a command has failed."""


def until(what: str, condition: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.2) -> None:
    """Wait until the condition holds.

    Raises:
      ClusterError: if it does not hold in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"after {seconds:g} s still not: {what}")
        time.sleep(pause)


@attrs.frozen
class Record:
    """What one task of a job saw on one node."""

    job: str
    #: How often the job had been requeued.
    run: int
    node: str
    #: The seconds since 1970 at which it began and ended; None if it was killed, or runs.
    begin: float
    end: float | None
    ids: tuple[str, ...]
    #: The ids of those devices of the node whose device nodes it could open.
    opened: tuple[str, ...]
    lease: str

    @classmethod
    def read(cls, path: Path) -> Record:
        """Return what a task has written."""
        job, run, node, _ = path.name.split(".")
        begin, ids, opened, lease, *end = path.read_text().splitlines()
        could = tuple(IDS[int(number)] for number in opened.split())
        return cls(job, int(run), node, float(begin), float(end[0]) if end else None, tuple(ids.split()), could, lease)


@attrs.define
class Cluster:
    """A running cluster."""

    directory: Path
    way: Way
    #: Whether Slurm confines jobs to the devices that it chose.
    confined: bool
    stack: ExitStack
    plugins: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    slurmds: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    # --- commands -----------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Slurm's commands."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "PLUGIND"))}
        return {**kept, "PATH": PATH, "SLURM_CONF": str(self.directory / "etc" / "slurm.conf")}

    def slurm(self, *words: str) -> str:
        """Run a command of Slurm; return its output.

        Raises:
          ClusterError: if it fails, or does not end in time.
        """
        return _output(words, self.environment)

    def client(self, node: str) -> SyncClient:
        """Return a client of the plugind of a node."""
        return SyncClient(str(self.directory / node / "status.sock"))

    def part(self, node: str, name: str) -> int:
        """Run a part that a timer or a script of the site would run; return its exit code."""
        environment = {**self.environment, "SLURMD_NODENAME": node}
        with (self.directory / "parts.log").open("ab") as log:
            command = [str(self.directory / "etc" / name)]
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=PATIENCE, check=False)
        return done.returncode

    def command(self, node: str, line: str) -> None:
        """Give the device plugin of a node a command; it is an error if nobody reads it."""
        pipe = os.open(self.directory / node / "control", os.O_WRONLY | os.O_NONBLOCK)
        with open(pipe, "w", encoding="ascii") as control:
            control.write(f"{line}\n")

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, devices: int, seconds: float, *options: str, first: str = "") -> str:
        """Submit a job whose only step has a task on each of its nodes, which sleeps; return its id.

        ``first`` is what the batch script does before.
        """
        gres = [f"--gres={self.way.gres}:{devices}"] if devices else []
        who = [f"--uid={USER}", f"--gid={USER}", "--chdir=/tmp", "--export=NONE"]
        where = ["--output", str(self.directory / "records" / "out.%j"), "--open-mode=append"]
        script = f"{first}\nexec srun --export=ALL {self.directory}/task {self.directory} {seconds:g}"
        return self.slurm("sbatch", "--parsable", *gres, *who, *where, *options, "--wrap", script).strip()

    def queued(self) -> dict[str, str]:
        """Return the state of each job that has not ended."""
        return dict(line.split() for line in self.slurm("squeue", "-hr", "-o", "%A %T").splitlines())

    def records(self, job: str | None = None) -> list[Record]:
        """Return what all tasks saw, or those of one job."""
        paths = (self.directory / "records").glob(f"{job or '[0-9]*'}.*.n?.[0-9]")
        return [Record.read(path) for path in sorted(paths)]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        return dict(line.split() for line in self.slurm("sinfo", "-hN", "-o", "%N %T").splitlines())

    def reason(self, node: str) -> str:
        """Return why a node is drained; "none" if it is not."""
        return self.slurm("sinfo", "-hn", node, "-o", "%E").strip()

    def leases(self, node: str) -> dict[str, tuple[str, ...]]:
        """Return the devices of each lease of a node."""
        return {lease.id: tuple(lease.devices[RESOURCE]) for lease in self.client(node).leases()}

    def start_slurmd(self, node: str) -> None:
        """Start the daemon of Slurm on a node."""
        command = ["slurmd", "-D", "-N", node]
        self.slurmds[node] = self._started(command, self.directory / node / "slurmd.out", self.environment)

    def kill_slurmd(self, node: str) -> None:
        """Kill slurmd of a node and its stepds, and leave the processes of the user."""
        _ended(self.slurmds[node], signal.SIGKILL)
        for parent in {_parent(pid) for pid in self.processes(node)}:
            if _read(f"/proc/{parent}/comm") == b"slurmstepd\n":
                _kill(parent)

    def processes(self, node: str, job: str | None = None) -> list[int]:
        """Return the processes of jobs on a node, or those of one job."""
        wanted = {f"SLURMD_NODENAME={node}".encode()} | ({f"SLURM_JOB_ID={job}".encode()} if job else set())
        found = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [pid for pid in found if wanted <= set(_read(f"/proc/{pid}/environ").split(b"\0"))]

    def kill_processes(self, node: str, job: str) -> None:
        """Kill what a job has on a node, and wait until it has ended."""
        for pid in self.processes(node, job):
            _kill(pid)
        until(f"no process of job {job} lives on {node}", lambda: not self.processes(node, job))

    def start_plugind(self, node: str) -> None:
        """Start plugind on a node."""
        place = self.directory / node
        options = ["--root", str(place / "root"), "--status", str(place / "status.sock")]
        command = [*PLUGIND, "run", *options, "--state", str(place / "state")]
        places = {"PLUGIND_MARKERS": str(place / "markers"), "PLUGIND_LEASES_CDI_DIRECTORY": str(place / "cdi")}
        environment = {**os.environ, **places, "PLUGIND_CONFIG": os.devnull}
        self.daemons[node] = self._started(command, place / "plugind.log", environment)

    def kill_plugind(self, node: str) -> None:
        """Kill plugind of a node."""
        _ended(self.daemons[node], signal.SIGKILL)

    def has_devices(self, node: str) -> None:
        """Wait until all devices of a node are healthy."""
        self.client(node).wait_for_devices({RESOURCE: len(IDS)}, timeout=PATIENCE)

    def healthy(self, node: str) -> int:
        """Return how many devices of a node are healthy."""
        (resource,) = self.client(node).devices(RESOURCE)
        return resource.allocatable

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, apart: int, expire: int, *, parts: bool) -> None:
        """Start everything; return when all nodes are idle and have their devices."""
        write_files(self.directory, self.way, confined=self.confined, apart=apart, expire=expire, parts=parts)
        (self.directory / "bin" / "plugind").write_text(f'#!/bin/sh\nexec {" ".join(PLUGIND)} "$@"\n')
        (self.directory / "bin" / "plugind").chmod(0o755)
        (self.directory / "variables").mkdir()
        for name in ("locks", "records"):
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o777)
        settle_network()
        if self.confined:
            mount_groups(self.directory / "cgroup")
        self._start_munge()
        for node in NODES:
            (self.directory / node / "spool").mkdir(parents=True)
            self._start_plugin(node)
            self.start_plugind(node)
        self._started(["slurmctld", "-D", "-c"], self.directory / "ctld.out", self.environment)
        for node in NODES:
            self.start_slurmd(node)
        for node in NODES:
            self.has_devices(node)
        until("all nodes are idle", lambda: self._answers() and set(self.states().values()) == {"idle"})

    def _answers(self) -> bool:
        pinged = subprocess.run(
            ["scontrol", "ping"], env=self.environment, capture_output=True, timeout=PATIENCE, check=False
        )
        return pinged.returncode == 0

    def _start_munge(self) -> None:
        (place := self.directory / "munge").mkdir()
        (place / "key").write_bytes(os.urandom(128))
        (place / "key").chmod(0o600)
        files = [f"--{name}-file={place / name}" for name in ("key", "pid", "log", "seed")]
        command = ["munged", "--foreground", f"--socket={place / 'socket'}", *files]
        self._started(command, place / "out", self.environment)
        until("munge answers", (place / "socket").exists)

    def _start_plugin(self, node: str) -> None:
        place = self.directory / node
        (place / "root").mkdir()
        named = []
        for number, name in enumerate(IDS):
            path = place / f"gpu{number}"
            os.mknod(path, stat.S_IFCHR, os.makedev(_MAJOR, NODES.index(node) * len(IDS) + number))
            path.chmod(0o666)
            named += ["--device", f"{name}={path}"]
        command = [*PLUGIND, "fake", "--type", "DevicePlugin", "--name", RESOURCE, "--same-paths", *named]
        command += ["--socket", str(place / "root" / "gpu.sock"), "--control", str(place / "control")]
        self.plugins[node] = self._started(command, place / "fake.log", dict(os.environ))

    def _started(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        program = shutil.which(command[0], path=environment.get("PATH"))
        with log.open("ab") as output:
            process = subprocess.Popen(
                [program or command[0], *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self.stack.callback(_ended, process, signal.SIGTERM)
        return process

    def last_lines(self) -> str:
        """Return the last lines of all logs that have some."""
        logs = sorted({*self.directory.glob("*.log"), *self.directory.glob("n?/*.log"), *self.directory.glob("*.out")})
        return "\n".join(f"--- {log}\n{_tail(log)}" for log in logs if log.stat().st_size)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _read(path: str) -> bytes:
    """Return a file of a process; nothing once the process has ended."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 once it has ended."""
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(words[1]) if words else 0


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _output(words: Sequence[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(words)} has not ended within {PATIENCE:g} s") from None
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _ended(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal, and wait until the process has ended; kill it if it does not."""
    process.send_signal(number)
    try:
        process.wait(_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running_cluster(
    directory: Path, way: Way, *, confined: bool, apart: int = 2, expire: int = 10, parts: bool = True
) -> Iterator[Cluster]:
    """Start a cluster in a new directory; end it at exit.

    ``apart`` and ``expire`` are those of :func:`~plugind.benchmarks.peers.slurm.files.write_files`. Slurm calls the
    parts if ``parts`` says so.

    Raises:
      ClusterError: if something does not start.
    """
    # Jobs are another user's.
    directory.chmod(0o755)
    with ExitStack() as stack:
        cluster = Cluster(directory, way, confined, stack)
        cluster.start(apart, expire, parts=parts)
        yield cluster
