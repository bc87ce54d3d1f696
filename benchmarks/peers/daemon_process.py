"""A daemon as a child process: `plugind run` as its users run it (with its status socket, logs and metrics), or a peer.

What it costs is read from the kernel, so that nothing is added to what is measured.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_CPU_OF_ALL_THREADS = 2
"""CPUCLOCK_SCHED of the kernel's clock numbers: the nanoseconds that a process has run, of all its threads."""
_PATIENCE = 60.0
"""Seconds for the daemon to be ready, and for the answer to a request."""
_STOP = 20.0
"""Seconds for the daemon to stop."""


class DaemonProcess:
    """A running daemon, and what the kernel says of it."""

    def __init__(self, process: subprocess.Popen[bytes], status: Path | None, log: Path) -> None:
        self.pid = process.pid
        self.status = status
        self.log = log
        self._process = process

    def cpu_seconds(self) -> float:
        """User and system time since its start, to the nanosecond; of a process that ended, raises `OSError`."""
        return time.clock_gettime((~self.pid << 3) | _CPU_OF_ALL_THREADS)

    def memory_kib(self, field: str = "VmRSS") -> int:
        """Resident memory now, or at its highest with `VmHWM`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        raise KeyError(field)

    def delayed_seconds(self) -> float:
        """How long its threads could have run but had no core, since their start: others on the machine had it."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    def descriptors(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def get(self, path: str) -> tuple[int, bytes]:
        """One request to the status socket: the status code and the body. Raises `OSError`."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_PATIENCE)
        try:
            connection.sock.connect(str(self.status))
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def pause(self) -> None:
        """SIGSTOP; returns when the kernel says that it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> float:
        """SIGTERM; returns the seconds until it ended. Raises `RuntimeError` when it ended badly or not in time."""
        began = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the daemon did not stop in {_STOP:g} s") from None
        if code:
            raise RuntimeError(f"the daemon ended with exit code {code}: {self._last_lines()}")
        return time.monotonic() - began

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Returns once /readyz says so. Raises `RuntimeError` when it does not in a minute, or the daemon ended."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self.ended:
                raise RuntimeError(f"the daemon ended with exit code {self._process.returncode}: {self._last_lines()}")
            try:
                if self._is_ready():
                    return
            except OSError:
                pass  # It does not listen yet.
            time.sleep(0.01)
        raise RuntimeError(f"the daemon was not ready in {_PATIENCE:g} s")

    def _is_ready(self) -> bool:
        if self.status is None:
            return b"ready\n" in self.log.read_bytes()
        return self.get("/readyz")[0] == 200

    def _last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-500:]


class StatusPoll:
    """Asks /healthz ten times a second, and notes how long each answer took: milliseconds in `times`."""

    def __init__(self, daemon: DaemonProcess, every: float = 0.1) -> None:
        self.times: list[float] = []
        self.failures = 0
        self._daemon = daemon
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> StatusPoll:
        if self._daemon.status is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._daemon.status is not None:
            self._thread.join()

    def _poll(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._daemon.get("/healthz")
                self.times.append((time.monotonic() - began) * 1000)
            except OSError:
                self.failures += 1
            self._over.wait(self._every)


@contextmanager
def plugind_run(root: Path, log: Path, options: Sequence[str] = (), core: int | None = None) -> Iterator[DaemonProcess]:
    """Runs the daemon on `root` for as long as the block lasts, ready; its lines go to the file `log`."""
    with plugind_started(root, log, options, core) as daemon:
        daemon.wait_ready()
        yield daemon


@contextmanager
def plugind_started(
    root: Path, log: Path, options: Sequence[str] = (), core: int | None = None, profile: Path | None = None
) -> Iterator[DaemonProcess]:
    """As `plugind_run`, but whoever needs it ready waits. `profile` is a file that the sampler writes at the end."""
    status = log.parent / "status.sock"
    module = ["plugind.benchmarks.report.sampler", str(profile)] if profile else ["plugind"]
    command = [sys.executable, "-m", *module, "run", "--root", str(root)]
    with _running([*command, "--status", str(status), *options], log, status, core) as daemon:
        yield daemon


@contextmanager
def peer_started(root: Path, log: Path, core: int | None = None) -> Iterator[DaemonProcess]:
    """Runs the peer, which has no status socket."""
    command = [sys.executable, "-m", "plugind.benchmarks.peers.reference", "--root", str(root)]
    with _running(command, log, None, core) as daemon:
        yield daemon


@contextmanager
def _running(command: Sequence[str], log: Path, status: Path | None, core: int | None) -> Iterator[DaemonProcess]:
    with log.open("ab") as lines, subprocess.Popen(command, stderr=lines, stdin=subprocess.DEVNULL) as process:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        daemon = DaemonProcess(process, status, log)
        try:
            yield daemon
            if not daemon.ended:
                daemon.stop()
        finally:
            process.kill()
