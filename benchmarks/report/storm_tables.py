"""The figures of storms as a table, as rows of JSON, and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, cast

import attrs

from plugind.benchmarks.report.plots import Bars, Lines, Plot, Series
from plugind.benchmarks.report.table import Cell, Row, Spread, figure, machine, table
from plugind.benchmarks.storm_run import Scenario, StormRun

_TITLE = "Storms: sockets that appear at once, until the last plugin is notified"
_COLOURS = {"plugind": "#0072b2", "kubelet": "#8a94a0"}
_COLUMNS = {
    "s": "last_notified_s",
    "p50 ms": "p50_ms",
    "p90 ms": "p90_ms",
    "p99 ms": "p99_ms",
    "max ms": "max_ms",
    "CPU ms each": "cpu_ms",
    "settled": "cpu_settled_ms",
    "in floors": "floors",
    "no core s": "delayed_s",
    "peak MiB": "peak_mib",
    "rest MiB": "rest_mib",
    "idle %": "idle_percent",
    "healthz ms": "healthz_median_ms",
    "max": "healthz_max_ms",
    "removal s": "removal_s",
    "removal CPU ms each": "removal_cpu_ms",
    "stop s": "stop_s",
}


@attrs.frozen
class StormResult:
    """All figures, and the reasons for those that are missing."""

    runs: dict[Scenario, list[StormRun]]
    failed: dict[Scenario, str]

    def all_runs(self) -> Iterator[StormRun]:
        """Yield every run of every scenario."""
        for runs in self.runs.values():
            yield from runs

    def spread(self, scenario: Scenario, field: str) -> Spread | None:
        """Return one figure over the runs that have it."""
        values = [value for run in self.runs[scenario] if (value := getattr(run, field)) is not None]
        return Spread.of(values) if values else None

    def median(self, scenario: Scenario, field: str) -> float | None:
        """Return the median of one figure."""
        spread = self.spread(scenario, field)
        return None if spread is None else spread.median


def summary(outcome: StormResult) -> str:
    """Return the table and its notes as text."""
    measured = [scenario for scenario, runs in outcome.runs.items() if runs]
    if not measured:
        return "nothing was measured"
    shown = {
        head: field
        for head, field in _COLUMNS.items()
        if any(outcome.median(one, field) is not None for one in measured)
    }
    several = len({scenario.daemon for scenario in measured}) > 1
    hanging = any(scenario.hang_fraction for scenario in measured)
    head = ["sockets", *["daemon"] * several, *["hang"] * hanging, *shown, "errors"]
    lines: list[list[Cell]] = []
    for scenario in measured:
        line: list[Cell] = [scenario.sockets]
        line += [scenario.daemon] * several + [f"{scenario.hang_fraction:.0%}"] * hanging
        line += [outcome.median(scenario, field) for field in shown.values()]
        lines.append([*line, sum(run.errors for run in outcome.runs[scenario])])
    notes = [*_errors(outcome), *_ratios(outcome, measured), *_overflows(outcome)]
    return "\n".join([_TITLE, conditions(measured[0]), machine(), "", table(head, lines), "", *notes])


def conditions(scenario: Scenario) -> str:
    """Return what all storms of a table have in common."""
    server = {"fake": "cheap plugins", "grpcio": "plugins that are grpcio servers"}[scenario.server]
    parts = [server]
    parts += ["there before the daemon starts (timed from its start)"] * scenario.existing
    parts += ["made while the daemon is stopped (timed from its waking)"] * scenario.overflow
    parts += [f"each failing its first {scenario.fail_first} GetInfo calls"] * bool(scenario.fail_first)
    parts += ["the daemon is stopped midway"] * scenario.stop_midway
    if scenario.daemon_core is not None:
        parts.append(f"daemon on core {scenario.daemon_core}, plugins on core {scenario.server_core}")
    return ", ".join(parts)


def _errors(outcome: StormResult) -> Iterator[str]:
    for scenario, runs in outcome.runs.items():
        for run in runs:
            if run.errors:
                yield (
                    f"{scenario.daemon}, {scenario.sockets:,} sockets: {run.lost} lost, {run.notified_twice} notified "
                    f"more than once, {run.refused} refused, {run.retries} asked again, {run.wire_failures} failures "
                    "on the wire" + (f"; {run.last_error}" if run.last_error else "")
                )


def _ratios(outcome: StormResult, measured: list[Scenario]) -> Iterator[str]:
    for scenario in measured:
        if scenario.daemon == "plugind" and (kubelet := attrs.evolve(scenario, daemon="kubelet")) in outcome.runs:
            times = [_ratio(outcome, kubelet, scenario, field) for field in ("last_notified_s", "cpu_ms", "peak_mib")]
            if all(times):
                yield (
                    f"{scenario.sockets:,} sockets: the kubelet takes {figure(times[0])} times as long, "
                    f"{figure(times[1])} times the CPU and {figure(times[2])} times the memory at its peak"
                )
        if scenario.hang_fraction:
            ratio = _ratio(outcome, scenario, attrs.evolve(scenario, hang_fraction=0.0), "last_notified_s")
            yield (
                f"{scenario.sockets:,} sockets, {scenario.daemon}: with {scenario.hang_fraction:.0%} hanging at "
                f"{scenario.hang}, the healthy ones take {figure(ratio)} times as long as without"
            )


def _ratio(outcome: StormResult, one: Scenario, other: Scenario, field: str) -> float | None:
    """Return ``one`` relative to ``other``: the median of the ratios of each pair of runs, which had the same load."""
    pairs = zip(outcome.runs[one], outcome.runs[other], strict=False)
    both = [(getattr(mine, field), getattr(theirs, field)) for mine, theirs in pairs]
    ratios = [mine / theirs for mine, theirs in both if mine is not None and theirs]
    return median(ratios) if ratios else None


def _overflows(outcome: StormResult) -> Iterator[str]:
    for scenario, runs in outcome.runs.items():
        if scenario.overflow:
            counts = ", ".join("unknown" if run.overflows is None else str(run.overflows) for run in runs)
            yield f"{scenario.daemon}, {scenario.sockets:,} sockets: overflows of the queue that it saw: {counts}"


def rows(outcome: StormResult) -> list[Row]:
    """Return one row for each scenario, with every run in it."""
    out: list[Row] = []
    for scenario, runs in outcome.runs.items():
        what = {key: value for key, value in attrs.asdict(scenario).items() if key != "profile"}
        medians = {field: outcome.median(scenario, field) for field in _COLUMNS.values()}
        errors = sum(run.errors for run in runs)
        each = [attrs.asdict(run) for run in runs]
        out.append({"scenario": what, **medians, "errors": errors, "runs": each, "machine": machine()})
    return out


def from_rows(written: Sequence[Row]) -> StormResult:
    """Return the result of which :func:`rows` made these rows; runs of one scenario may be in several of them."""
    outcome = StormResult({}, {})
    for row in written:
        what = dict(cast("Mapping[str, Any]", row["scenario"]))
        scenario = Scenario(**what | {"daemon_options": tuple(what["daemon_options"])})
        runs = cast("Sequence[Mapping[str, Any]]", row["runs"])
        outcome.runs.setdefault(scenario, []).extend(StormRun(**run) for run in runs)
    return outcome


def plot(outcome: StormResult) -> Plot:
    """Return a plot of time, CPU, memory and latency over the number of sockets, with bars where plugins hang."""
    measured = [scenario for scenario, runs in outcome.runs.items() if runs]
    plain = [scenario for scenario in measured if not scenario.hang_fraction]
    sizes = {scenario.sockets for scenario in plain}
    panels: list[Bars | Lines] = []
    if len(sizes) > 1:
        panels += _curves(outcome, plain)
    panels.append(_latency(outcome, [one for one in measured if one.daemon == measured[0].daemon]))
    names = [*dict.fromkeys(name for panel in panels if isinstance(panel, Lines) for name in panel.values)]
    series = [Series(name, _COLOURS[name]) for name in names] + _PERCENTILES
    return Plot(_TITLE, f"{conditions(measured[0])}; {machine()}", series, panels)


def _curves(outcome: StormResult, plain: list[Scenario]) -> Iterator[Lines]:
    what = {
        "last_notified_s": "Seconds from the first socket to the last plugin notified, logarithmic: less is better",
        "cpu_ms": "CPU milliseconds of the daemon per registration, logarithmic: flat is linear",
        "peak_mib": "Resident memory of the daemon at its peak, MiB, logarithmic",
    }
    for field, name in what.items():
        values: dict[str, list[tuple[float, Spread]]] = {}
        for scenario in plain:
            if (spread := outcome.spread(scenario, field)) is not None:
                values.setdefault(scenario.daemon, []).append((scenario.sockets, spread))
        yield Lines(title=name, x_title="sockets at once, logarithmic", values=values, log=True, log_x=True)


_PERCENTILES = [
    Series("half of the plugins", "#56b4e9"),
    Series("99 of 100", "#009e73"),
    Series("the last one", "#cc79a7"),
]


def _latency(outcome: StormResult, measured: list[Scenario]) -> Bars:
    fields = dict(zip((series.name for series in _PERCENTILES), ("p50_ms", "p99_ms", "max_ms"), strict=True))
    groups = {one: f"{one.sockets:,}" + f", {one.hang_fraction:.0%} hang" * bool(one.hang_fraction) for one in measured}
    return Bars(
        title="Milliseconds from listen() until a plugin was notified, by number of sockets, logarithmic",
        groups=list(groups.values()),
        values={
            (group, name): spread
            for scenario, group in groups.items()
            for name, field in fields.items()
            if (spread := outcome.spread(scenario, field)) is not None
        },
        log=True,
    )
