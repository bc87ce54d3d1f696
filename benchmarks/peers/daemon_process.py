"""A daemon as a child process: ``plugind run`` with its status socket, logs and metrics, or the kubelet's manager.

The kernel reports the costs, so that measuring them does not increase them.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path

from plugind.benchmarks.peers.memory_cgroup import memory_cgroup
from plugind.tests.tools.peers import PEERS, built

#: The kernel's clock CPUCLOCK_SCHED: the nanoseconds for which all threads of a process have run.
_CPU_OF_ALL_THREADS = 2
#: Seconds until the daemon must be ready, and until a request must be answered.
_PATIENCE = 60.0
#: The module of a daemon whose handlers of CSI and DRA drivers call no driver, and that of ``plugind``.
JUDGING = ("plugind.benchmarks.peers.judging",)
CONSUMING = ("plugind",)
#: Seconds in which a daemon at rest needs no more than a fiftieth of a core.
_REST = 0.2
#: Seconds until the daemon must have stopped.
_STOP = 20.0


class DaemonProcess:
    """A running daemon, and what the kernel reports about it.

    Without a ``status`` socket it is the kubelet's plugin manager. ``gone`` is in the line that it writes about each
    plugin that it has deregistered.
    """

    def __init__(self, process: subprocess.Popen[bytes], status: Path | None, log: Path) -> None:
        self.pid = process.pid
        self.status = status
        self.log = log
        self.gone = b'"returned":"deregister"' if status is None else b'msg="plugin gone"'
        self._process = process

    def cpu_seconds(self) -> float:
        """Return user and system time since the start, to the nanosecond.

        Raises:
          OSError: if the process has ended.
        """
        return time.clock_gettime((~self.pid << 3) | _CPU_OF_ALL_THREADS)

    def memory_kib(self, field: str = "VmRSS") -> int:
        """Return resident memory now, or its peak with ``VmHWM``."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        raise KeyError(field)

    def delayed_seconds(self) -> float:
        """Return how long its threads were ready to run but had no core, since their start."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    def descriptors(self) -> int:
        """Return the number of open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_of_threads(self) -> tuple[float, float]:
        """Return the seconds for which the first thread has run, and those of all others."""
        runs = {
            int(task.parent.name): int(task.read_text().split()[0]) / 1e9
            for task in Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        }
        return runs.pop(self.pid), sum(runs.values())

    def get(self, path: str) -> tuple[int, bytes]:
        """Send one request to the status socket; return the status code and the body.

        Raises:
          OSError: if the daemon does not answer.
        """
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: bytes | None = None, patience: float = _PATIENCE) -> tuple[int, bytes]:
        """Send one request of any method; return the status code and the body.

        Raises:
          OSError: if the daemon does not answer.
        """
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(patience)
        try:
            connection.sock.connect(str(self.status))
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def pause(self) -> None:
        """Send SIGSTOP; return when the kernel reports the process as stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> float:
        """Send SIGTERM; return the seconds until the daemon ended.

        Raises:
          RuntimeError: if it failed, or did not end in time.
        """
        began = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the daemon did not stop in {_STOP:g} s") from None
        if code:
            raise RuntimeError(f"the daemon ended with exit code {code}: {self._last_lines()}")
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Return once /readyz reports ready.

        Raises:
          RuntimeError: if the daemon ends, or is not ready within a minute.
        """
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self.ended:
                raise RuntimeError(f"the daemon ended with exit code {self._process.returncode}: {self._last_lines()}")
            try:
                if self._is_ready():
                    return
            except OSError:
                pass  # The daemon does not listen yet.
            time.sleep(0.01)
        raise RuntimeError(f"the daemon was not ready in {_PATIENCE:g} s")

    def wait_at_rest(self, patience: float = _PATIENCE, *, share: float = 0.02) -> None:
        """Return once it needs less than this ``share`` of a core: what it does right after READY belongs to its start.

        Raises:
          RuntimeError: if it is never at rest within so many seconds.
          OSError: if the process has ended.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            time.sleep(_REST)
            if self.cpu_seconds() - before < _REST * share:
                return
        raise RuntimeError(f"the daemon was not at rest in {patience:g} s")

    def _is_ready(self) -> bool:
        if self.status is None:
            return b'"ready"' in self.log.read_bytes()
        return self.get("/readyz")[0] == 200

    def _last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-500:]


class StatusPoll:
    """Requests /healthz ten times a second; ``times`` holds the milliseconds of each answer."""

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
def plugind_run(
    root: Path,
    log: Path,
    options: Sequence[str] = (),
    core: int | None = None,
    memory_mib: int | None = None,
    module: Sequence[str] = JUDGING,
) -> Iterator[DaemonProcess]:
    """Run the daemon on ``root`` for the duration of the block, once it is ready; it logs to the file ``log``.

    With ``memory_mib`` it runs in a memory cgroup of that size.
    """
    with ExitStack() as stack:
        prefix = [] if memory_mib is None else stack.enter_context(memory_cgroup(memory_mib))
        daemon = stack.enter_context(plugind_started(root, log, options, core, prefix=prefix, module=module))
        daemon.wait_ready()
        yield daemon


@contextmanager
def plugind_started(
    root: Path,
    log: Path,
    options: Sequence[str] = (),
    core: int | None = None,
    profile: Path | None = None,
    prefix: Sequence[str] = (),
    module: Sequence[str] = JUDGING,
) -> Iterator[DaemonProcess]:
    """Like ``plugind_run``, without waiting until it is ready. The sampler writes the file ``profile`` at the end.

    The command begins with ``prefix``, which must become the daemon's process. ``module`` has the module that runs, and
    its arguments before those of the daemon. By default its handlers of CSI and DRA drivers call no driver.
    """
    status = log.parent / "status.sock"
    module = ["plugind.benchmarks.report.sampler", str(profile)] if profile else module
    command = [*prefix, sys.executable, "-m", *module, "run", "--root", str(root)]
    with _running([*command, "--status", str(status), *options], log, status, core) as daemon:
        yield daemon


@contextmanager
def variant_started(variant: str, root: Path, log: Path) -> Iterator[DaemonProcess]:
    """Run a variant of plugind: the module ``without_liveness``, ``with_links`` or ``with_checks`` beside this one."""
    status = log.parent / "status.sock"
    command = [sys.executable, "-m", f"plugind.benchmarks.peers.{variant}", "run", "--root", str(root)]
    with _running([*command, "--status", str(status)], log, status, None) as daemon:
        yield daemon


@contextmanager
def kubelet_started(root: Path, log: Path, core: int | None = None) -> Iterator[DaemonProcess]:
    """Run the kubelet's own plugin manager, which has no status socket; it is built when it is needed first.

    Raises:
      MissingError: if there is no Go, or a module that it needs cannot be had.
    """
    program = built(PEERS / "kubelet-pm", lambda line: print(line, file=sys.stderr))
    command = [str(program), "--quiet", str(root)]
    with _running(command, log, None, core) as daemon:
        yield daemon


@contextmanager
def _running(command: Sequence[str], log: Path, status: Path | None, core: int | None) -> Iterator[DaemonProcess]:
    # An installed daemon has its bytecode; one that compiles its modules at each start takes a second more.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (
        log.open("ab") as lines,
        subprocess.Popen(command, stdout=lines, stderr=lines, stdin=subprocess.DEVNULL, env=environment) as process,
    ):
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        daemon = DaemonProcess(process, status, log)
        try:
            yield daemon
            if not daemon.ended:
                daemon.stop()
        finally:
            process.kill()
            process.wait()
