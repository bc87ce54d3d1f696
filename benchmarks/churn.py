"""Plugins that appear and disappear at a steady rate: the rate that the daemon sustains, and the growth of its memory.

    python -m benchmarks.churn --rates 50 100 200 400 --seconds 60

Sockets are created at even intervals, and each is removed ``--life`` seconds later. ``--standing`` other plugins stay
registered all the time. The daemon sustains a rate if every plugin was notified exactly once before its removal and
the sockets were created as fast as requested. Memory is sampled each second. Its slope over the second half of
the time should be zero, as far as can be told: it is printed with its error, which counts neighbouring samples that
depend on each other as fewer ones.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median

import attrs

from plugind.benchmarks.peers.cores import two_cores
from plugind.benchmarks.peers.daemon_process import DaemonProcess, StatusPoll, plugind_run
from plugind.benchmarks.plugins.cheap_plugin import PluginReport, ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.plugins.turnover import BEAT, Turnover, delay_ms, p99, verdicts_of
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.limits import Verdict
from plugind.benchmarks.report.plots import PALETTE, Lines, Plot, Series
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table
from plugind.benchmarks.report.trend import Slope

_PATIENCE = 30.0
#: How many errors of the slope it may be above zero by chance, and which slope is too small to matter (KiB per minute).
#: An hour of the latter is 1 MiB.
SURE, SMALL_KIB_MIN = 2.0, 17.0
_DEREGISTERED = re.compile(r'plugind_operations_total\{operation="deregister",outcome="ok",[^}]*\} (\S+)')


@attrs.define(kw_only=True)
class Churn:
    """The figures of one rate. ``rss`` lists (seconds, MiB); the slope is in KiB per minute."""

    rate: float
    seconds: float
    plugins: int = 0
    never_notified: int = 0
    notified_twice: int = 0
    refused: int = 0
    not_deregistered: int = 0
    achieved: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    cpu_percent: float = 0.0
    cpu_ms: float = 0.0
    healthz_max_ms: float | None = None
    descriptors: int = 0
    slope_kib_min: float = 0.0
    slope_error_kib_min: float | None = None
    rss: list[tuple[float, float]] = attrs.field(factory=list)

    @property
    def errors(self) -> int:
        """The number of plugins that were lost or notified twice."""
        return self.never_notified + self.notified_twice + self.refused + self.not_deregistered


@attrs.frozen(kw_only=True)
class Conditions:
    """The settings that all rates share. Times are seconds."""

    seconds: float
    life: float
    standing: int
    daemon_core: int | None
    server_core: int | None


def measure(rate: float, conditions: Conditions) -> Churn:
    """Create and remove plugins at this rate.

    Raises:
      RuntimeError: if a process did not start or stop.
      OSError: if a process ended early.
    """
    total = max(1, round(rate * conditions.seconds))
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(
            directory=root, sockets=conditions.standing + total, wait=True, core=conditions.server_core
        )
        with (
            cheap_server(options) as server,
            plugind_run(root, scratch / "log", core=conditions.daemon_core) as daemon,
        ):
            if conditions.standing:
                server.create(0, conditions.standing)
                server.await_notified(conditions.standing, _PATIENCE)
            return _churn(server, daemon, Churn(rate=rate, seconds=conditions.seconds), conditions, total)


def _churn(server: ServerProcess, daemon: DaemonProcess, result: Churn, conditions: Conditions, total: int) -> Churn:
    standing, deregistered = conditions.standing, _deregistered(daemon)
    cpu = daemon.cpu_seconds()
    turnover = Turnover(
        server=server, rate=result.rate, first=standing, oldest=standing, life=conditions.life, most=total
    )
    with StatusPoll(daemon) as poll:
        while turnover.removed < total:
            now, made = turnover.elapsed, turnover.made
            turnover.beat()
            if turnover.made > made:
                result.achieved = turnover.made / max(now, BEAT)
            if now >= len(result.rss):
                result.rss.append((now, daemon.memory_kib() / 1024))
            turnover.rest(now)
    spent, lasted = daemon.cpu_seconds() - cpu, turnover.elapsed
    result.cpu_percent, result.cpu_ms = spent / lasted * 100, spent / total * 1000
    result.healthz_max_ms = max(poll.times, default=None)
    deadline = time.monotonic() + _PATIENCE
    while _deregistered(daemon) - deregistered < total and time.monotonic() < deadline:
        time.sleep(0.1)
    result.not_deregistered = total - (_deregistered(daemon) - deregistered)
    result.descriptors = daemon.descriptors()
    _account(result, [plugin for plugin in server.report() if plugin["index"] >= standing])
    return result


def _account(result: Churn, report: Sequence[PluginReport]) -> None:
    result.plugins = len(report)
    verdicts = verdicts_of(report)
    result.never_notified, result.notified_twice, result.refused = len(verdicts.never), verdicts.twice, verdicts.refused
    times = [delay_ms(plugin) for plugin in report if plugin["notified_ns"]]
    if times:
        result.p50_ms, result.p99_ms, result.max_ms = median(times), p99(times), max(times)
    later = [sample for sample in result.rss if sample[0] >= result.seconds / 2]
    if len(later) > 1:
        slope = Slope.of(later)
        result.slope_kib_min = slope.slope * 1024 * 60
        result.slope_error_kib_min = None if slope.error is None else slope.error * 1024 * 60


def _deregistered(daemon: DaemonProcess) -> int:
    found = _DEREGISTERED.findall(daemon.get("/metrics")[1].decode())
    return int(sum(float(count) for count in found))


def summary(results: Sequence[Churn]) -> str:
    """Return the table as text."""
    head = ["per second", "achieved", "plugins", "p50 ms", "p99 ms", "max ms", "CPU %", "CPU ms each", "healthz max ms"]
    head += ["MiB first", "MiB last", "KiB/min", "± error", "descriptors", "errors"]
    lines: list[list[Cell]] = []
    for one in results:
        line: list[Cell] = [one.rate, one.achieved, one.plugins, one.p50_ms, one.p99_ms, one.max_ms, one.cpu_percent]
        line += [one.cpu_ms, one.healthz_max_ms, one.rss[0][1], one.rss[-1][1], one.slope_kib_min]
        lines.append([*line, one.slope_error_kib_min, one.descriptors, one.errors])
    errors = [
        f"{one.rate:g} per second: {one.never_notified} never notified, {one.notified_twice} notified more than "
        f"once, {one.refused} refused, {one.not_deregistered} not deregistered"
        for one in results
        if one.errors
    ]
    sustained = [one.rate for one in results if not one.errors and one.achieved >= 0.98 * one.rate]
    verdict = f"sustained: {', '.join(f'{rate:g}' for rate in sustained) or 'none'} per second"
    judged = map(str, verdicts(results))
    return "\n".join(
        ["Plugins that appear and disappear", machine(), "", table(head, lines), "", *errors, verdict, *judged]
    )


def verdicts(results: Sequence[Churn]) -> Iterator[Verdict]:
    """Yield whether memory is flat at each rate: its slope is small, or could be zero."""
    for one in results:
        if one.slope_error_kib_min is not None:
            allowed = max(SMALL_KIB_MIN, SURE * one.slope_error_kib_min)
            beside = f"± {one.slope_error_kib_min:.3g}, in the second half of {one.seconds:g} s"
            yield Verdict("growth of memory", f"{one.rate:g} per second", one.slope_kib_min, allowed, "KiB/min", beside)


def plot(results: Sequence[Churn], conditions: Conditions) -> Plot:
    """Return a plot of memory over time with a line for each rate, and of latency over the rates."""
    names = {one.rate: f"{one.rate:g} per second" for one in results}
    step = max(1, int(conditions.seconds / 12))
    panels = [
        Lines(
            title="Resident memory of the daemon, MiB: flat is good",
            x_title="seconds",
            values={names[one.rate]: [(round(at), Spread.of([mib])) for at, mib in one.rss[::step]] for one in results},
        )
    ]
    series = [Series(name, PALETTE[index % len(PALETTE)]) for index, name in enumerate(names.values())]
    about = f"each lives {conditions.life:g} s, {conditions.standing:,} others stay; {machine()}"
    return Plot("Plugins that come and go at a steady rate", about, series, panels)


def main() -> int:
    """Measure, print and write. Return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[200.0], help="plugins per second (default 200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each rate lasts (default 60)")
    parser.add_argument("--life", type=float, default=2.0, help="seconds between a socket's creation and its removal")
    parser.add_argument("--standing", type=int, default=1000, help="plugins that stay registered (default 1000)")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let the kernel choose cores")
    add_file_arguments(parser)
    arguments = parser.parse_args()
    raise_descriptor_limit(1 << 20)
    daemon_core, server_core = two_cores(pin=arguments.pin)
    conditions = Conditions(
        seconds=arguments.seconds,
        life=arguments.life,
        standing=arguments.standing,
        daemon_core=daemon_core,
        server_core=server_core,
    )
    progress = Progress(len(arguments.rates))
    results = []
    for rate in arguments.rates:
        progress.step(f"{rate:g} per second for {arguments.seconds:g} s")
        results.append(measure(rate, conditions))
    progress.end()
    print(summary(results))
    rows: list[Row] = [attrs.asdict(one) | {"errors": one.errors, "machine": machine()} for one in results]
    write_files(arguments, rows, plot(results, conditions))
    return 1 if any(one.errors for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
