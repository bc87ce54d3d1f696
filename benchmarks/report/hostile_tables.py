"""The table of runs beside hostile plugins, and the verdict on each limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from plugind.benchmarks.hostile_run import HostileRun
from plugind.benchmarks.report.limits import Verdict
from plugind.benchmarks.report.table import Cell, Row, machine, table
from plugind.protocol.backoff import Backoff
from plugind.protocol.settings.config import Timeouts

#: The largest 99th percentile, as a multiple of that without a dial, and what is added to it (milliseconds).
SLOWER, SLACK_MS = 1.5, 20.0
#: The most flooders for which that limit holds.
FLOODERS = 128
#: The most memory for each hostile socket, and from how many on that can be told from other changes (KiB).
SOCKET_KIB, ENOUGH = 24.0, 500
#: The longest delay of a newcomer beside plugins that never answer, once each of them has failed (milliseconds).
NEWCOMER_MS = 100.0
#: The slowest of 19 in 20 answers of ``/healthz`` beside plugins whose lists cost as much as they can (milliseconds).
HEALTHZ_MS = 100.0
#: How many plugins that is said of.
LISTERS = 4
#: The most CPU for plugins of one name, as a multiple of that of as many names.
ONE_NAME = 2.0
#: Seconds beyond the grace period in which the process ends.
STOP_SLACK = 1.0


@attrs.frozen
class Pair:
    """Two runs of one kind: with the plugins in the root, and with the same ones where the daemon does not look."""

    dialed: HostileRun
    undialed: HostileRun

    @property
    def socket_kib(self) -> float:
        """Resident memory that each hostile socket adds, at the end of the run."""
        return (self.dialed.rss_kib - self.undialed.rss_kib) / self.dialed.peers


def steps(seconds: float, backoff: Backoff = Backoff()) -> int:
    """Return how many backoff steps begin in so many seconds, the first one included."""
    count, at = 0, 0.0
    while at <= seconds:
        count += 1
        at += backoff.delay(count)
    return count


def verdicts(pairs: Mapping[str, Pair]) -> Iterator[Verdict]:
    """Yield the verdict on each limit for which there are figures."""
    for kind, pair in pairs.items():
        yield from _of_all_kinds(kind, pair)
        yield from _of_one_kind(kind, pair.dialed)
    if (one := pairs.get("one-name")) and (own := pairs.get("own-names")):
        yield Verdict("CPU of as many own names", "one-name", one.dialed.cpu_s / own.dialed.cpu_s, ONE_NAME, "times")


def _of_all_kinds(kind: str, pair: Pair) -> Iterator[Verdict]:
    run, base = pair.dialed, pair.undialed
    yield Verdict(
        "good plugins lost, refused or notified twice", kind, run.lost + run.refused + run.notified_twice, 0, ""
    )
    yield Verdict(
        "SIGTERM", kind, math.inf if run.stop_s is None else run.stop_s, Timeouts().stop_grace + STOP_SLACK, "s"
    )
    if run.p99_ms is not None and base.p99_ms is not None and run.peers <= FLOODERS:
        yield Verdict("p99 of the good ones", kind, run.p99_ms, SLOWER * base.p99_ms + SLACK_MS, "ms")
    if run.peers >= ENOUGH and kind != "symlinks":
        yield Verdict("memory of a hostile socket", kind, pair.socket_kib, SOCKET_KIB, "KiB")


def _of_one_kind(kind: str, run: HostileRun) -> Iterator[Verdict]:
    allowed = steps(run.lasted_s)
    if kind == "chmod":
        yield Verdict("dials of one socket", kind, run.dials, 2 * allowed, "dials")
    if kind == "crash-loop":
        yield Verdict("registrations of one socket", kind, run.notified, allowed + 1, "registrations")
    if kind == "many-nodes" and run.healthz_p95_ms is not None and run.peers <= LISTERS:
        yield Verdict("p95 of /healthz", kind, run.healthz_p95_ms, HEALTHZ_MS, "ms")
    if kind in ("silent", "full-backlog") and run.max_ms is not None:
        yield Verdict("the slowest newcomer after the burst", kind, run.max_ms, NEWCOMER_MS, "ms")


def _ratio(pair: Pair, field: str) -> float | None:
    ours, base = getattr(pair.dialed, field), getattr(pair.undialed, field)
    return ours / base if ours is not None and base else None


_HEAD = [
    "kind",
    "peers",
    "burst s",
    "lost",
    "p99 ms",
    "then lost",
    "p50 ms",
    "p99 ms",
    "max ms",
    "undialed p99",
    "times",
]
_HEAD += ["CPU %", "times", "MiB", "times", "peak MiB", "times", "KiB each", "dials/s", "log KiB/s", "stop s"]


def _line(kind: str, pair: Pair) -> list[Cell]:
    run = pair.dialed
    line: list[Cell] = [kind, run.peers, run.burst_s, run.burst_lost, run.burst_p99_ms, run.lost]
    line += [run.p50_ms, run.p99_ms, run.max_ms]
    line += [pair.undialed.p99_ms, _ratio(pair, "p99_ms"), run.cpu_percent, _ratio(pair, "cpu_percent")]
    line += [run.rss_kib / 1024, _ratio(pair, "rss_kib"), run.peak_kib / 1024, _ratio(pair, "peak_kib")]
    log = run.log_kib / run.lasted_s if run.lasted_s else None
    return [*line, pair.socket_kib, run.dials_per_s, log, run.stop_s]


def summary(pairs: Mapping[str, Pair], found: Sequence[Verdict]) -> str:
    """Return the table and the verdicts as text."""
    failures = [f"{kind}: {pair.dialed.failure}" for kind, pair in pairs.items() if pair.dialed.failure]
    lines = [_line(kind, pair) for kind, pair in pairs.items()]
    parts = ["Good plugins beside hostile ones", machine(), "", table(_HEAD, lines), "", *failures]
    return "\n".join([*parts, *map(str, found)])


def rows(pairs: Mapping[str, Pair]) -> list[Row]:
    """Return all figures, a row for each run."""
    runs = [run for pair in pairs.values() for run in (pair.dialed, pair.undialed)]
    return [attrs.asdict(run) | {"machine": machine()} for run in runs]
