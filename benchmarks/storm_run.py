"""One storm: many sockets at once, and the figures of the daemon."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median, quantiles

import attrs

from plugind.benchmarks.peers.daemon_process import DaemonProcess, StatusPoll, kubelet_started, plugind_started
from plugind.benchmarks.plugins.cheap_plugin import PluginReport, ServerOptions
from plugind.benchmarks.plugins.server_process import scratch_directory
from plugind.benchmarks.plugins.storm_plugins import Plugins, plugins

#: Seconds without a change after which the remaining plugins count as never removed.
_REMOVAL = 20.0
#: Seconds after the last notification in which the daemon finishes its work: closing, logging and counting.
_TAIL = 0.5


@attrs.frozen(kw_only=True)
class Scenario:
    """The events of a storm.

    ``patience`` is how many seconds the plugins wait to be notified. ``settle`` is how many seconds the daemon is idle
    before its memory at rest is read.
    """

    sockets: int
    daemon: str = "plugind"
    server: str = "fake"
    existing: bool = False
    overflow: bool = False
    remove: bool = False
    stop_midway: bool = False
    hang_fraction: float = 0.0
    hang: str = "get-info"
    fail_first: int = 0
    spin: bool = False
    idle_seconds: float = 20.0
    patience: float = 180.0
    settle: float = 2.0
    daemon_core: int | None = None
    server_core: int | None = None
    daemon_options: tuple[str, ...] = ()
    profile: Path | None = None

    def plugin_options(self, root: Path) -> ServerOptions:
        """Return the options of the plugins' process."""
        return ServerOptions(
            directory=root,
            sockets=self.sockets,
            hang_fraction=self.hang_fraction,
            hang=self.hang,
            fail_first=self.fail_first,
            spin=self.spin,
            core=self.server_core,
            wait=True,
        )


@attrs.define(kw_only=True)
class StormRun:
    """The figures of one storm: seconds, milliseconds (``_ms``), MiB (``_mib``), per cent of a core (``_percent``).

    ``cpu_ms`` is the daemon's CPU time per registration until the last plugin was notified, ``cpu_settled_ms`` half a
    second later, when logs and views are up to date. ``removal_cpu_ms`` is that per plugin from the first socket's
    removal until all plugins are deregistered. Requests to the status socket are made during the storm and the removal,
    but not while a daemon starts. ``delayed_s`` is how long the daemon was ready to run while other
    processes had its core. ``floor_ms`` is the cost of a bare conversation just before, which shows the machine's load.
    A value of None was not measured.
    """

    sockets: int
    healthy: int
    notified: int = 0
    last_notified_s: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    cpu_ms: float | None = None
    cpu_settled_ms: float | None = None
    floor_ms: float | None = None
    delayed_s: float | None = None
    base_mib: float | None = None
    peak_mib: float | None = None
    rest_mib: float | None = None
    idle_percent: float | None = None
    healthz_median_ms: float | None = None
    healthz_max_ms: float | None = None
    removal_s: float | None = None
    removal_cpu_ms: float | None = None
    stop_s: float | None = None
    overflows: int | None = None
    lost: int = 0
    notified_twice: int = 0
    refused: int = 0
    retries: int = 0
    wire_failures: int = 0
    warnings: int = 0
    last_error: str = ""

    @property
    def floors(self) -> float | None:
        """The CPU per registration in bare conversations, measured just before."""
        return self.cpu_ms / self.floor_ms if self.cpu_ms is not None and self.floor_ms else None

    @property
    def errors(self) -> int:
        """The number of errors. Plugins that hang, and failures on request, are not errors."""
        counted = self.lost + self.notified_twice + self.refused + self.retries + self.wire_failures
        return counted + bool(self.last_error)


def run_storm(scenario: Scenario, *, idle: bool) -> StormRun:
    """Run one storm to its end; measure the idle daemon too if ``idle`` is set.

    Raises:
      RuntimeError: if a process did not start or stop.
      OSError: if a process ended early.
    """
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        with plugins(scenario.plugin_options(root), scenario.server) as there:
            storm = _Storm(scenario, there, scratch, idle=idle)
            storm.run(root)
            return storm.result


class _Storm:
    def __init__(self, scenario: Scenario, there: Plugins, scratch: Path, *, idle: bool) -> None:
        healthy = sum(not scenario.plugin_options(scratch).hangs(index) for index in range(scenario.sockets))
        self.result = StormRun(sockets=scenario.sockets, healthy=healthy)
        self._scenario = scenario
        self._plugins = there
        self._log = scratch / "log"
        self._idle = idle
        self._delayed_before = 0.0

    def run(self, root: Path) -> None:
        if self._scenario.existing:
            self._plugins.create()
            self._plugins.created()
        started_ns = time.monotonic_ns()
        with self._daemon(root) as daemon:
            if self._scenario.existing:
                self._existing(daemon, started_ns)
            else:
                daemon.wait_ready()
                # The sampler's signals take a few per cent.
                daemon.wait_at_rest(share=0.02 if self._scenario.profile is None else 0.1)
                self.result.base_mib = daemon.memory_kib() / 1024
                self._storm(daemon)
            self._afterwards(daemon)

    def _daemon(self, root: Path) -> AbstractContextManager[DaemonProcess]:
        scenario = self._scenario
        if scenario.daemon == "plugind":
            return plugind_started(root, self._log, scenario.daemon_options, scenario.daemon_core, scenario.profile)
        return kubelet_started(root, self._log, scenario.daemon_core)

    def _existing(self, daemon: DaemonProcess, started_ns: int) -> None:
        # The start of the interpreter is included, since users wait for it too.
        self._wait(daemon, 0.0)
        daemon.wait_ready()
        self._account(since_ns=started_ns)

    def _storm(self, daemon: DaemonProcess) -> None:
        before = daemon.cpu_seconds()
        self._delayed_before = daemon.delayed_seconds()
        if self._scenario.overflow:
            with _paused(daemon):
                self._plugins.create()
                self._plugins.created()
                resumed_ns = time.monotonic_ns()
            with StatusPoll(daemon) as poll:
                self._wait(daemon, before)
            self._account(since_ns=resumed_ns)
        else:
            with StatusPoll(daemon) as poll:
                self._plugins.create()
                self._wait(daemon, before)
                self._plugins.created()
            self._account(since_ns=0)
        self._answers(poll)

    def _answers(self, poll: StatusPoll) -> None:
        """Take the times of answers into account; their median is that of the storm."""
        result = self.result
        if poll.times:
            if result.healthz_median_ms is None:
                result.healthz_median_ms = median(poll.times)
            result.healthz_max_ms = max(result.healthz_max_ms or 0.0, *poll.times)
        if poll.failures and not self._scenario.stop_midway:
            result.last_error = f"{poll.failures} requests to the status socket failed"

    def _wait(self, daemon: DaemonProcess, cpu_before: float) -> None:
        result = self.result
        share = 0.5 if self._scenario.stop_midway else 1.0
        notified = max(1, self._plugins.reached(share, self._scenario.patience))
        result.cpu_ms = (daemon.cpu_seconds() - cpu_before) / notified * 1000
        result.delayed_s = daemon.delayed_seconds() - self._delayed_before
        if self._scenario.stop_midway:
            result.stop_s = daemon.stop()
            return
        time.sleep(min(_TAIL, self._scenario.settle))
        result.cpu_settled_ms = (daemon.cpu_seconds() - cpu_before) / notified * 1000

    def _account(self, since_ns: int) -> None:
        """Count the events of the plugins. Existing plugins could not be found before ``since_ns``."""
        result, report = self.result, self._plugins.report()
        healthy = [plugin for plugin in report if not plugin["hang"]]
        notified = [plugin for plugin in healthy if plugin["notified_ns"]]
        result.notified = len(notified)
        result.lost = 0 if self._scenario.stop_midway else len(healthy) - len(notified)
        result.notified_twice = sum(plugin["notified"] > 1 for plugin in healthy)
        result.refused = sum(plugin["refused"] > 0 for plugin in healthy)
        result.retries = sum(max(0, plugin["asked"] - 1 - self._scenario.fail_first) for plugin in healthy)
        result.wire_failures = self._plugins.failures()
        if notified:
            first = max(since_ns, min(plugin["listening_ns"] for plugin in report))
            result.last_notified_s = (max(plugin["notified_ns"] for plugin in notified) - first) / 1e9
            self._latencies(notified, since_ns)

    def _latencies(self, notified: list[PluginReport], since_ns: int) -> None:
        result = self.result
        times = [(plugin["notified_ns"] - max(since_ns, plugin["listening_ns"])) / 1e6 for plugin in notified]
        cuts = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        result.p50_ms, result.p90_ms, result.p99_ms, result.max_ms = cuts[49], cuts[89], cuts[98], max(times)

    def _afterwards(self, daemon: DaemonProcess) -> None:
        result = self.result
        if not daemon.ended:
            result.peak_mib = daemon.memory_kib("VmHWM") / 1024
            time.sleep(self._scenario.settle)
            result.rest_mib = daemon.memory_kib() / 1024
            if self._idle and self._scenario.idle_seconds:
                result.idle_percent = idle_percent(daemon, self._scenario.idle_seconds)
            if self._scenario.overflow and daemon.status is not None:
                found = re.search(rb'"overflows": (\d+)', daemon.get("/healthz")[1])
                result.overflows = int(found[1]) if found else None
            # This is counted again, since a second notification may come late.
            result.notified_twice = sum(plugin["notified"] > 1 for plugin in self._plugins.report())
            if self._scenario.remove:
                self._remove(daemon)
            try:
                result.stop_s = daemon.stop()
            except RuntimeError as error:
                result.last_error = str(error)
        result.warnings = len(re.findall(rb"^[^\n]*level=(?:warning|error)", self._log.read_bytes(), re.MULTILINE))

    def _remove(self, daemon: DaemonProcess) -> None:
        with StatusPoll(daemon) as poll:
            self._remove_all(daemon)
        self._answers(poll)

    def _remove_all(self, daemon: DaemonProcess) -> None:
        before, cpu = _deregistered(daemon), daemon.cpu_seconds()
        with self._log.open("rb") as log:
            log.seek(0, 2)
            ended = began = self._plugins.remove() / 1e9
            gone, rest = 0, b""
            # The log costs the daemon little, but it may drop lines. When no more lines come, the counters decide.
            while gone < self.result.sockets:  # Plugins that hang disappear too.
                time.sleep(0.005)
                now = time.monotonic()
                *lines, rest = (rest + log.read()).split(b"\n")
                if new := sum(daemon.gone in line for line in lines):
                    gone, ended = gone + new, now
                elif now - ended > 0.3:
                    if _deregistered(daemon) - before >= self.result.notified:
                        break
                    if now - ended > _REMOVAL:
                        self.result.last_error = (
                            f"only {gone} of {self.result.notified} plugins were seen to be removed"
                        )
                        break
            self.result.removal_s = ended - began
            self.result.removal_cpu_ms = (daemon.cpu_seconds() - cpu) / max(1, self.result.notified) * 1000
        if daemon.status is not None and (gone := _deregistered(daemon) - before) != self.result.notified:
            self.result.last_error = f"the handler deregistered {gone} of {self.result.notified} plugins"


_DEREGISTERED = re.compile(
    rb'plugind_operations_total\{operation="deregister",outcome="ok",plugin_type="CSIPlugin"\} (\S+)'
)


def _deregistered(daemon: DaemonProcess) -> int:
    """Return how many plugins were deregistered since the daemon's start."""
    found = _DEREGISTERED.search(daemon.get("/metrics")[1]) if daemon.status is not None else None
    return 0 if found is None else int(float(found[1]))


@contextmanager
def _paused(daemon: DaemonProcess) -> Iterator[None]:
    daemon.pause()
    try:
        yield
    finally:
        daemon.resume()


def idle_percent(daemon: DaemonProcess, seconds: float) -> float:
    """Return the daemon's share of one core while nothing happens."""
    before = daemon.cpu_seconds()
    time.sleep(seconds)
    return (daemon.cpu_seconds() - before) / seconds * 100
