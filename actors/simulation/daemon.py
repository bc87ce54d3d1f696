"""A real daemon for tests: plugins in any language register with it as processes, without root and without a cluster.

It needs neither Trio nor pytest. A wait fails as soon as it cannot succeed any more, and the error says why: the state
of each socket with its history, the log of the daemon, and the output of each plugin.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.status import PluginStatus, StateName
from ...protocol.words import Step
from ..client.errors import ClientError, DaemonError, NoDaemonError
from ..client.sync import SyncClient
from .faults import WaitFailedError

T = TypeVar("T")

#: Seconds between two looks at what is waited for, and until a process that is to end is killed.
_PAUSE: Final = 0.02
_GRACE: Final = 10.0
#: How many lines of each output an error has.
_LINES: Final = 40
_REGISTERED = (StateName.REGISTERED, StateName.OBSERVED)


def _is_refused(plugin: PluginStatus) -> bool:
    # A plugin that was told nothing waits for the process that is its handler, or because its last life was short.
    was_told = not plugin.last_known and (plugin.called or any(step is Step.NOTIFY for step, _ in plugin.steps))
    return plugin.state in (StateName.WAITING, StateName.PARKED) and was_told


class PluginProcess:
    """A process that a test has started. It ends with the daemon of the test."""

    def __init__(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        self.command = tuple(command)
        self._output = output
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(
                    self.command,
                    cwd=directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Its own children end with it.
                )
        except OSError as error:
            where = directory or Path.cwd()
            raise WaitFailedError(f"{' '.join(command)} cannot be started in {where}: {error}") from None
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        """What it has written to standard output and standard error so far."""
        return self._output.read_text(errors="backslashreplace")

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to it and to its children."""
        if self.code is None:
            os.killpg(self.pid, number)

    def wait(self, *, timeout: float = _GRACE) -> int:
        """Return its exit code once it has ended.

        Raises:
          WaitFailedError: if it runs for more than ``timeout`` seconds.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WaitFailedError(f"it still runs after {timeout:g} s\n{self.told()}") from None

    def end(self) -> int:
        """Stop it with SIGTERM, or kill it if that takes too long; return its exit code."""
        self.kill(signal.SIGTERM)
        try:
            return self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def told(self) -> str:
        """Return its command, its end and the end of its output, in lines."""
        state = "runs" if self.code is None else f"has ended with code {self.code}"
        lines = self.output.splitlines()[-_LINES:]
        return "\n".join([f"{' '.join(self.command)} (pid {self.pid}) {state}:", *(f"  {line}" for line in lines)])


class RunningDaemon:
    """A daemon that runs for a test, in directories of its own; see :func:`daemon`."""

    def __init__(self, directory: Path, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self.directory = directory
        #: Where plugins have their sockets.
        self.plugins = directory / "plugins"
        #: Where device plugins call Register, on ``kubelet.sock``.
        self.device_plugins = directory / "device-plugins"
        #: The status socket, which is ``PLUGIND_STATUS`` for the processes that are started here.
        self.status = directory / "status.sock"
        self.client = SyncClient(str(self.status))
        self.processes: list[PluginProcess] = []
        # What an earlier daemon has left elsewhere would withhold devices: a new directory may have its inode numbers.
        places = {"PLUGIND_MARKERS": f"{directory}/markers", "PLUGIND_LEASES_CDI_DIRECTORY": f"{directory}/cdi"}
        self._environment = {**places, **environment, "PLUGIND_STATUS": str(self.status)}
        self.plugins.mkdir()
        run = (sys.executable, "-m", "plugind", "run", "--config", "/dev/null", "--status", self.status)
        served = ("--root", self.plugins, f"--device-plugins={self.device_plugins}", "--state", directory / "state")
        command = [*map(str, (*run, *served)), *options]
        self._daemon = PluginProcess(command, directory / "daemon.log", self._environment)

    @property
    def log(self) -> str:
        """What the daemon has logged so far."""
        return self._daemon.output

    def run(
        self,
        *command: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> PluginProcess:
        """Start a plugin, or any other process, and return it at once.

        It has the variables of this process, and those of ``environment``. Its working directory is ``cwd``, or else
        that of this process.

        Raises:
          WaitFailedError: if it cannot be started.
        """
        words = [os.fspath(word) for word in command]
        output = self.directory / f"output-{len(self.processes)}"
        directory = None if cwd is None else Path(cwd)
        process = PluginProcess(words, output, {**self._environment, **(environment or {})}, directory)
        self.processes.append(process)
        return process

    def registered(self, name: str, *, timeout: float = _GRACE) -> PluginStatus:
        """Return the status of the plugin of that ``name`` once it is registered and serves.

        A socket whose GetInfo fails does not end the wait, but is in the error: its plugin, which has no name yet, may
        answer the next try, and a driver's endpoint fails beside the socket that registers the driver.

        Raises:
          WaitFailedError: as soon as it is refused, all processes have ended, or ``timeout`` seconds are over.
        """

        def look() -> PluginStatus | None:
            plugins = self.client.list(name)
            found = next(filter(self._is_registered, plugins), None)
            if found is None and any(map(_is_refused, plugins)):
                raise self._error(f"{name} is refused")
            return found

        return self._wait(look, f"{name} is not registered", timeout)

    def refused(self, name: str, *, timeout: float = _GRACE) -> PluginStatus:
        """Return the status of the plugin of that ``name`` once it was asked and is not registered.

        Raises:
          WaitFailedError: as soon as it is registered, all processes have ended, or ``timeout`` seconds are over.
        """

        def look() -> PluginStatus | None:
            plugins = self.client.list(name)
            if any(map(self._is_registered, plugins)):
                raise self._error(f"{name} is registered")
            return next(filter(_is_refused, plugins), None)

        return self._wait(look, f"{name} is not refused", timeout)

    def devices(self, resource: str, *, healthy: int = 1, timeout: float = _GRACE) -> ResourceStatus:
        """Return ``resource`` once it has exactly so many healthy devices.

        Raises:
          WaitFailedError: as soon as its plugin is refused, all processes have ended, or ``timeout`` seconds are over.
        """

        def look() -> ResourceStatus | None:
            try:
                (found,) = self.client.devices(resource)
            except DaemonError:
                found = None  # No plugin has registered for it yet.
            if found is not None and found.allocatable == healthy:
                return found
            if found is None and any(map(_is_refused, self.client.list(resource))):
                raise self._error(f"{resource} is refused")
            return None

        return self._wait(look, f"{resource} has not {healthy} healthy devices", timeout)

    def wait_answering(self) -> None:
        """Return once the daemon answers. Raises WaitFailedError if it ends, or takes too long."""
        self._wait(self.client.list, "the daemon does not answer", 3 * _GRACE)

    def _is_registered(self, plugin: PluginStatus) -> bool:
        # A plugin whose process has ended stays registered until the next process has its socket.
        has_ended = any(process.pid == plugin.pid and process.code is not None for process in self.processes)
        return plugin.state in _REGISTERED and plugin.serving is not False and not has_ended

    def _wait(self, look: Callable[[], T | None], failure: str, timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while True:
            # Looked at first, so that what a process did before its end is seen.
            have_ended = bool(self.processes) and all(process.code is not None for process in self.processes)
            if self._daemon.code is not None:
                raise self._error(f"{failure}, and the daemon has ended")
            # Without an answer the daemon begins or ends.
            with suppress(NoDaemonError):
                if (found := look()) is not None:
                    return found
            if have_ended:
                raise self._error(f"{failure}, and all processes of the test have ended")
            if time.monotonic() >= deadline:
                raise self._error(f"{failure} after {timeout:g} s")
            time.sleep(_PAUSE)

    def _error(self, what: str) -> WaitFailedError:
        processes = (*self.processes, self._daemon)
        return WaitFailedError("\n\n".join([what, *self._statuses(), *(process.told() for process in processes)]))

    def _statuses(self) -> Iterator[str]:
        """Yield what the daemon says of each socket, and of each resource."""
        try:
            for plugin in self.client.list():
                yield "\n".join(_told(self.client.describe(plugin.socket)[0]))
            yield from map(_counted, self.client.devices())
        except ClientError as error:
            yield str(error)

    def end(self) -> None:
        """Stop all processes, the daemon last."""
        for process in self.processes:
            process.end()
        self._daemon.end()


def _told(plugin: PluginStatus) -> Iterator[str]:
    who = " ".join(filter(None, (plugin.type, plugin.name))) or "a plugin without a name"
    why = f": {plugin.cause}" if plugin.cause else ""
    serving = ", not serving" if plugin.serving is False else ""
    yield f"{plugin.socket}: {who} is {plugin.state}{serving}, attempt {plugin.attempt}{why}"
    for entry in plugin.history:
        step = "" if entry.step is None else f" ({entry.step})"
        yield f"  {entry.state}{step}: {entry.reason}" if entry.reason else f"  {entry.state}{step}"


def _counted(resource: ResourceStatus) -> str:
    why = f" ({resource.reason})" if resource.reason else ""
    unhealthy = [f"\n  {device.id} is {device.health}" for device in resource.devices() if not device.healthy]
    healthy = f"{resource.allocatable} of {resource.capacity} devices are healthy"
    return f"{resource.name} is {resource.state}{why}: {healthy}{''.join(unhealthy[:_LINES])}"


@contextmanager
def daemon(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[RunningDaemon]:
    """Run a daemon for a block, with more ``options`` of ``plugind run``; it answers when the block begins.

    ::

        with daemon() as node:
            node.run("./our-plugin", "--socket", node.plugins / "ours.sock")
            node.registered("ours.example.com")

    It does not read the configuration of this machine, and has the variables of this process but those of plugind. Any
    number of daemons can run at once. At the end of the block all processes are stopped, and the directory is removed.

    Raises:
      WaitFailedError: if the daemon does not start.
    """
    with ExitStack() as stack:
        directory = Path(_short_directory())
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("PLUGIND_")}
        node = RunningDaemon(directory, options, {**inherited, **(environment or {})})
        stack.callback(node.end)
        node.wait_answering()
        yield node


def _short_directory() -> str:
    """Make a directory whose sockets have paths that are short enough, also where TMPDIR is a long path."""
    where = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="plugind-", dir=where if len(where) <= 40 else "/tmp")
