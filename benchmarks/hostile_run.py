"""One run with hostile plugins of one kind beside good ones, and the figures of the good ones and of the daemon."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import attrs

from plugind.benchmarks.peers.daemon_process import JUDGING, DaemonProcess, StatusPoll, plugind_run
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.benchmarks.plugins.cheap_plugin import PluginReport, ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.plugins.turnover import Turnover, delay_ms, p99, verdicts_of

#: Seconds until the first good plugins must be registered, and the first hostile one must be dialed.
_PATIENCE = 30.0
#: Seconds of the burst if nothing is dialed.
_UNDIALED = 2.0
#: Seconds between two looks at how many hostile plugins have failed once.
_LOOK = 0.2


@attrs.frozen(kw_only=True)
class Conditions:
    """What all runs share. ``good`` plugins stand at any time, and ``rate`` of them are replaced each second.

    The burst begins when the hostile plugins appear. It ends when each of them has been dialed and left again, and
    ``settle`` seconds after the first of them was dialed at the latest. ``seconds`` of steady state follow. So a
    process that gets no CPU for a while makes the run longer, and the hostile plugins meet the daemon all the same.
    """

    peers: int = 128
    good: int = 100
    rate: float = 20.0
    seconds: float = 20.0
    settle: float = 15.0
    daemon_core: int | None = None
    peers_core: int | None = None
    daemon_options: tuple[str, ...] = ()
    #: The size of the daemon's memory cgroup; None if it has none of its own.
    memory_mib: int | None = None

    def options_for(self, kind: str) -> tuple[str, ...]:
        """Return the daemon's options: all plugins of one name are registered, so that their cost can be compared."""
        raised = ("--max-instances", str(self.peers)) if kind == "one-name" else ()
        return self.daemon_options + raised

    @property
    def life(self) -> float:
        """How long a good plugin lives, in seconds."""
        return self.good / self.rate


@attrs.define(kw_only=True)
class HostileRun:
    """The figures of one run: the milliseconds from listen() of a good plugin until it is notified, and the costs.

    One that is not notified in its life counts as lost, and with its life as its delay. ``lost`` and CPU are those of
    the steady state; ``cpu_s`` and memory are those of the whole run. ``dials`` and ``notified`` are the largest
    numbers of any one hostile plugin in ``lasted_s`` seconds; ``stop_s`` is None if the daemon failed when it was to
    stop.
    """

    kind: str
    peers: int
    dialed: bool
    plugins: int = 0
    lost: int = 0
    burst_lost: int = 0
    notified_twice: int = 0
    refused: int = 0
    burst_s: float = 0.0
    burst_p99_ms: float | None = None
    burst_max_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    cpu_percent: float = 0.0
    cpu_s: float = 0.0
    rss_kib: int = 0
    peak_kib: int = 0
    descriptors: int = 0
    healthz_p95_ms: float | None = None
    healthz_max_ms: float | None = None
    log_kib: float = 0.0
    lasted_s: float = 0.0
    dials: int = 0
    dials_per_s: float = 0.0
    notified: int = 0
    stop_s: float | None = None
    failure: str = ""


def measure(kind: str, conditions: Conditions, *, dialed: bool) -> HostileRun:
    """Run the daemon beside hostile plugins, in its root if they are ``dialed``, else where it does not look.

    Raises:
      RuntimeError: if a process did not start, or the first good plugins were not registered.
    """
    result = HostileRun(kind=kind, peers=conditions.peers, dialed=dialed)
    with scratch_directory() as scratch:
        root, outside = scratch / "root", scratch / "outside"
        root.mkdir()
        outside.mkdir()
        options = conditions.options_for(kind)
        if kind == "callers" and dialed:
            options += (f"--device-plugins={scratch / 'device-plugins'}", f"--state={scratch / 'state'}")
        with _good_plugins(root, conditions, options, kind) as (good, daemon):
            place = root if dialed else outside
            pinned = conditions.peers_core is not None
            peers = hostile_peers(kind, place, conditions.peers, core=conditions.peers_core, idle=pinned, wait=False)
            with peers as hostile:
                try:
                    _Run(result, conditions, good, daemon, hostile).go()
                except OSError as error:
                    result.failure = f"the daemon does not answer: {error}"
                result.failure = _stop(daemon, result) or result.failure
                result.log_kib = daemon.log.stat().st_size / 1024
    return result


@contextmanager
def _good_plugins(
    root: Path, conditions: Conditions, options: Sequence[str], kind: str
) -> Iterator[tuple[ServerProcess, DaemonProcess]]:
    sockets = conditions.good + int(conditions.rate * (conditions.seconds + conditions.settle)) + 2
    server = ServerOptions(directory=root, sockets=sockets, wait=True, core=conditions.peers_core)
    module: Sequence[str] = JUDGING
    if kind.startswith("csi-"):
        # The daemon asks CSI drivers then, and the good plugins, which answer no calls, are DRA drivers.
        server, module = attrs.evolve(server, type="DRAPlugin"), (*JUDGING, "DRAPlugin")
    # In a cgroup the pages of the log count, and those of a file system in memory cannot be written back.
    with (
        tempfile.TemporaryDirectory(dir=None if conditions.memory_mib else root.parent) as logs,
        cheap_server(server) as good,
        plugind_run(root, Path(logs) / "log", options, conditions.daemon_core, conditions.memory_mib, module) as daemon,
    ):
        good.create(0, conditions.good)
        good.await_notified(conditions.good, _PATIENCE)
        yield good, daemon


class _Run:
    """The burst and the steady state of one run."""

    def __init__(
        self,
        result: HostileRun,
        conditions: Conditions,
        good: ServerProcess,
        daemon: DaemonProcess,
        hostile: ServerProcess,
    ) -> None:
        self._result = result
        self._conditions = conditions
        self._good = good
        self._daemon = daemon
        self._hostile = hostile
        #: Good plugins beyond the first ones are made, and as many of the oldest are removed.
        self._turnover = Turnover(server=good, rate=conditions.rate, first=conditions.good, oldest=0)
        self._looked = self._turnover.began
        #: When the first hostile plugin was found dialed, or all of them were there if none will be.
        self._met: float | None = None

    def go(self) -> None:
        """Replace good plugins at a steady rate, and take the figures.

        Raises:
          OSError: if the daemon does not answer.
        """
        result, cpu_at_first = self._result, self._daemon.cpu_seconds()
        with StatusPoll(self._daemon) as poll:
            self._replace_until(lambda: self._settled)
            burst_over, cpu = time.monotonic(), self._daemon.cpu_seconds()
            self._replace_until(lambda: time.monotonic() - burst_over >= self._conditions.seconds)
            over = time.monotonic()
        result.cpu_percent = (self._daemon.cpu_seconds() - cpu) / (over - burst_over) * 100
        result.cpu_s = self._daemon.cpu_seconds() - cpu_at_first
        result.burst_s = burst_over - self._turnover.began
        result.rss_kib, result.peak_kib = self._daemon.memory_kib(), self._daemon.memory_kib("VmHWM")
        result.descriptors = self._daemon.descriptors()
        result.healthz_max_ms = max(poll.times, default=None)
        result.healthz_p95_ms = quantiles(poll.times, n=20, method="inclusive")[18] if len(poll.times) > 1 else None
        self._count_dials()
        self._good.reached(self._conditions.good + self._turnover.made, self._conditions.life)
        account(result, self._good.report(), self._conditions, int(burst_over * 1e9))

    @property
    def _settled(self) -> bool:
        """Whether each hostile plugin has been dialed and left once, or has had the time for it.

        Raises:
          OSError: if the daemon dials none of them.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        counts = self._hostile.counts()
        if self._met is None and (counts["dials"] or not (self._result.dialed and counts["listening"])):
            self._met = now
        if self._met is None:
            if now - self._turnover.began >= _PATIENCE:
                raise TimeoutError(f"it dialed no hostile plugin in {_PATIENCE:g} s")
            return False
        return 0 < counts["sockets"] <= counts["ended"] or now - self._met >= self._longest_burst

    @property
    def _longest_burst(self) -> float:
        settle = self._conditions.settle
        return settle if self._result.dialed else min(settle, _UNDIALED)

    def _replace_until(self, over: Callable[[], bool]) -> None:
        while not over():
            self._turnover.beat()
            self._turnover.rest(self._turnover.elapsed)
        self._turnover.beat()  # All that are due by then, even if this process was held up.

    def _count_dials(self) -> None:
        counts, lasted = self._hostile.counts(), time.monotonic() - self._turnover.began
        self._result.lasted_s = lasted
        self._result.dials, self._result.notified = int(counts["most_dials"]), int(counts["most_notified"])
        self._result.dials_per_s = counts["dials"] / lasted


def account(result: HostileRun, report: Sequence[PluginReport], conditions: Conditions, burst_over_ns: int) -> None:
    """Count what happened to the good plugins that appeared beside the hostile ones."""
    later = [plugin for plugin in report if plugin["index"] >= conditions.good]
    result.plugins = len(later)
    verdicts = verdicts_of(later)
    result.burst_lost = sum(plugin["listening_ns"] < burst_over_ns for plugin in verdicts.never)
    result.lost = len(verdicts.never) - result.burst_lost
    everybody = verdicts_of(report)
    result.notified_twice, result.refused = everybody.twice, everybody.refused
    burst = [_delay_ms(plugin, conditions) for plugin in later if plugin["listening_ns"] < burst_over_ns]
    steady = [_delay_ms(plugin, conditions) for plugin in later if plugin["listening_ns"] >= burst_over_ns]
    if burst:
        result.burst_p99_ms, result.burst_max_ms = p99(burst), max(burst)
    if steady:
        result.p50_ms, result.p99_ms, result.max_ms = median(steady), p99(steady), max(steady)


def _delay_ms(plugin: PluginReport, conditions: Conditions) -> float:
    if not plugin["notified_ns"]:
        return conditions.life * 1000
    return delay_ms(plugin)


def _stop(daemon: DaemonProcess, result: HostileRun) -> str:
    """Stop the daemon while the peers go on; return what went wrong."""
    try:
        result.stop_s = daemon.stop()
    except RuntimeError as error:
        daemon.kill()
        return str(error)
    return ""
