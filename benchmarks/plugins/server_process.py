"""The cheap server as a child process, with its commands as methods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from plugind.benchmarks.plugins.cheap_plugin import PluginReport, ServerOptions

Event = dict[str, object]
#: The environment variable that names another place for scratch directories.
SCRATCH = "PLUGIND_SCRATCH"


class ServerProcess:
    """A running server. Commands block until the server has confirmed them."""

    def __init__(self, options: ServerOptions, process: subprocess.Popen[str]) -> None:
        self.options = options
        self.pid = process.pid
        self._process = process
        self._early: dict[str, Event] = {}

    def ask(self, *words: object) -> None:
        """Send a command without waiting for its effect."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def event(self, name: str) -> Event:
        """Return the next event called ``name``; other events are kept for later.

        Raises:
          RuntimeError: if the server ended.
        """
        assert self._process.stdout is not None
        while name not in self._early:
            line = self._process.stdout.readline()
            event: Event = json.loads(line or "{}")
            if event.get("event", "error") == "error":
                raise RuntimeError(f"the plugins' process printed {line!r} instead of {name!r}")
            self._early[str(event["event"])] = event
        return self._early.pop(name)

    def create(self, *numbers: int) -> Event:
        """Create all sockets, or COUNT sockets from FIRST on."""
        self.ask("create", *numbers)
        return self.event("created")

    def remove(self, *numbers: int) -> Event:
        """Remove all sockets, or COUNT sockets from FIRST on."""
        self.ask("remove", *numbers)
        return self.event("removed")

    def reached(self, count: int, seconds: float) -> int:
        """Wait until this many sockets were notified, or until the deadline; return how many were."""
        self.ask("await", count, seconds)
        return int(cast("int", self.event("reached")["notified"]))

    def await_notified(self, count: int, seconds: float) -> None:
        """Wait until this many sockets were notified.

        Raises:
          RuntimeError: if fewer were in ``seconds``.
        """
        if (notified := self.reached(count, seconds)) < count:
            raise RuntimeError(f"of {count} plugins {notified} were registered in {seconds:g} s")

    def counts(self) -> dict[str, float]:
        """Return sums over all sockets since the start, and the server's own CPU seconds."""
        self.ask("counts")
        return {key: value for key, value in self.event("counts").items() if isinstance(value, int | float)}

    def report(self) -> list[PluginReport]:
        """Return the events of each socket since the start, with replaced sockets first."""
        self.ask("report")
        return cast("list[PluginReport]", self.event("report")["plugins"])


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory for sockets: in ``$PLUGIND_SCRATCH``, or in memory if the machine has a file system for that.

    ext4 skips recently deleted inodes one by one, so a second run creates its sockets many times slower than the first:
    18,000 took 0.75 s, then 10 s; on tmpfs they take 0.35 s each time.
    """
    memory = Path("/dev/shm")
    place = os.environ.get(SCRATCH) or (memory if os.access(memory, os.W_OK | os.X_OK) else None)
    with tempfile.TemporaryDirectory(prefix="plugind-", dir=place) as directory:
        yield Path(directory)


@contextmanager
def cheap_server(options: ServerOptions, module: str = "cheap_server") -> Iterator[ServerProcess]:
    """Run the server for the duration of the block. Its sockets already listen, unless the options have ``wait``."""
    command = [sys.executable, "-m", f"plugind.benchmarks.plugins.{module}", *options.arguments()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = ServerProcess(options, process)
            server.event("ready")
            if not options.wait:
                server.event("created")
            yield server
        finally:
            # The server ends with its input; one that spins or hangs is killed.
            process.kill()
