"""`plugind run` as a child process, as its users run it: with its status socket, logs and metrics."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE = 60.0
"""Seconds for the daemon to be ready."""


class DaemonProcess:
    """A running daemon, and what the kernel says of it."""

    def __init__(self, process: subprocess.Popen[bytes], status: Path) -> None:
        self.pid = process.pid
        self.status = status
        self._process = process

    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_kib(self, field: str = "VmRSS") -> int:
        """Resident memory now, or at its highest with `VmHWM`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        raise KeyError(field)

    def get(self, path: str) -> tuple[int, bytes]:
        """One request to the status socket: the status code and the body. Raises `OSError`."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(str(self.status))
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Returns once /readyz says so. Raises `RuntimeError` when it does not in a minute, or the daemon ended."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended with exit code {self._process.returncode}")
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass  # It does not listen yet.
            time.sleep(0.01)
        raise RuntimeError(f"the daemon was not ready in {_PATIENCE:g} s")


@contextmanager
def plugind_run(root: Path, log: Path, options: Sequence[str] = (), core: int | None = None) -> Iterator[DaemonProcess]:
    """Runs the daemon on `root` for as long as the block lasts; its lines go to the file `log`."""
    status = log.parent / "status.sock"
    command = [
        sys.executable,
        "-m",
        "plugind.supervisor",
        "run",
        "--root",
        str(root),
        "--status",
        str(status),
        *options,
    ]
    with log.open("ab") as lines, subprocess.Popen(command, stderr=lines, stdin=subprocess.DEVNULL) as process:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        try:
            daemon = DaemonProcess(process, status)
            daemon.wait_ready()
            yield daemon
            process.terminate()
            process.wait(20)
        finally:
            process.kill()
