"""What ``benchmarks.compare`` can measure: which benchmark runs with which options, and which of its figures count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from plugind.benchmarks.peers.daemons import DAEMONS
from plugind.benchmarks.report.table import Row

#: The figures of one run of a benchmark, by their names, made of the rows that it has written.
Figures = Callable[[Sequence[Row]], dict[str, float]]
_PLUGIND: Final = ("plugind",)


@attrs.frozen(kw_only=True)
class Case:
    """A benchmark with its options. Less is better for each of its ``figures``.

    The first word of ``name`` is that of its kind. ``daemons`` are those that it can start. With ``environment`` it
    measures the commands of an environment, and takes the directory of that as ``--installed``.
    """

    name: str
    benchmark: str
    options: tuple[str, ...]
    figures: Figures
    daemons: tuple[str, ...] = _PLUGIND
    environment: bool = False

    def arguments(self, daemon: str, environment: str) -> list[str]:
        """Return the options for a run with this daemon, with an interpreter of this environment."""
        # An older checkout may not have the option, and plugind is its default.
        chosen = ["--daemon", daemon] if daemon != "plugind" else []
        return [*self.options, *chosen, *(["--installed", environment] if self.environment else [])]


def _columns(names: Mapping[str, str], row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the fields of a row that have a value, under the names that the table has for them."""
    return {prefix + name: float(row[key]) for key, name in names.items() if row.get(key) is not None}


_STORM: Final = {
    "cpu_ms": "CPU ms each",
    "floors": "CPU in floors",
    "last_notified_s": "wall s",
    "removal_s": "removal wall s",
    "removal_cpu_ms": "removal CPU ms each",
    "healthz_max_ms": "slowest status ms",
    "peak_mib": "peak MiB",
}
_LATENCY: Final = {"cpu_ms": "CPU ms each", "median_ms": "wall ms, median", "min_ms": "wall ms, least"}
_IDLE: Final = {"cpu_percent": "CPU % of a core", "wakeups_per_s": "wake-ups/s", "rss_mib": "MiB"}


def _storm(rows: Sequence[Row]) -> dict[str, float]:
    return _columns(_STORM, rows[0])


def _latency(rows: Sequence[Row]) -> dict[str, float]:
    return _columns(_LATENCY, rows[0])


def _idle(rows: Sequence[Row]) -> dict[str, float]:
    return _columns(_IDLE, rows[0])


def _start(rows: Sequence[Row]) -> dict[str, float]:
    names = {"empty_interpreters": "CPU, empty interpreters", "cpu_ms": "CPU ms", "wall_ms": "wall ms"}
    return {name: value for row in rows for name, value in _columns(names, row, f"{row['command']}: ").items()}


def _wire(rows: Sequence[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        values: dict[str, Any] = dict(row)
        values["wall_ms"] = 1000 / values["conversations_per_s"]
        names = {"cpu_ms": "CPU ms each", "ratio_to_floor": "CPU in floors", "wall_ms": "wall ms each"}
        found |= _columns(names, values, f"{row['client']}, {row['concurrency']} at once: ")
    return found


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is measured. ``seconds`` is how long an idle daemon is watched."""

    storms: tuple[int, ...]
    existing: tuple[int, ...]
    latency: tuple[int, ...]
    latency_runs: int
    idle: tuple[int, ...]
    seconds: float
    settle: float
    start_turns: int
    wire: tuple[str, ...]


#: What the page on performance shows.
FULL: Final = Sizes(
    storms=(1, 100, 1000, 5000, 10000),
    existing=(1000, 5000, 10000),
    latency=(0, 1000),
    latency_runs=20,
    idle=(0, 1000, 10000),
    seconds=20.0,
    settle=3.0,
    start_turns=3,
    wire=("--concurrency", "64", "512", "--clients", "plugind", "grpcio-aio", "floor"),
)
#: Some seconds for each side and turn.
QUICK: Final = Sizes(
    storms=(300,),
    existing=(300,),
    latency=(0,),
    latency_runs=10,
    idle=(300,),
    seconds=3.0,
    settle=0.5,
    start_turns=1,
    wire=("--sockets", "300", "--seconds", "0.1", "--concurrency", "64", "--clients", "plugind", "floor"),
)
KINDS: Final = ("storm", "existing", "latency", "idle", "start", "wire")
#: The daemons that a storm can have.
_BOTH: Final = ("plugind", "kubelet")
#: The kubelet asks some of thousands of plugins again after up to two minutes, several times over.
_ONE_STORM: Final = ("--runs", "1", "--idle-seconds", "0", "--settle", "0.6", "--patience", "900")


def cases(kinds: Sequence[str], sizes: Sizes) -> Iterator[Case]:
    """Yield all cases of these kinds."""
    for kind in kinds:
        yield from _MADE[kind](sizes)


def _storms(sizes: Sizes) -> Iterator[Case]:
    for count in sizes.storms:
        options = ("--sockets", str(count), *_ONE_STORM, "--remove")
        yield Case(name=f"storm {count}", benchmark="storm", options=options, figures=_storm, daemons=_BOTH)


def _existings(sizes: Sizes) -> Iterator[Case]:
    for count in sizes.existing:
        options = ("--existing", "--sockets", str(count), *_ONE_STORM)
        yield Case(name=f"existing {count}", benchmark="storm", options=options, figures=_storm, daemons=_BOTH)


def _latencies(sizes: Sizes) -> Iterator[Case]:
    for count in sizes.latency:
        options = ("--registered", str(count), "--runs", str(sizes.latency_runs))
        yield Case(
            name=f"latency {count}", benchmark="latency", options=options, figures=_latency, daemons=tuple(DAEMONS)
        )


def _idles(sizes: Sizes) -> Iterator[Case]:
    for count in sizes.idle:
        options = ("--registered", str(count), "--seconds", f"{sizes.seconds:g}", "--settle", f"{sizes.settle:g}")
        yield Case(name=f"idle {count}", benchmark="idle", options=options, figures=_idle, daemons=tuple(DAEMONS))


def _starts(sizes: Sizes) -> Iterator[Case]:
    options = ("--turns", str(sizes.start_turns))
    yield Case(name="start", benchmark="start", options=options, figures=_start, environment=True)


def _wires(sizes: Sizes) -> Iterator[Case]:
    yield Case(name="wire", benchmark="wire", options=("--runs", "1", *sizes.wire), figures=_wire)


_MADE: Final[Mapping[str, Callable[[Sizes], Iterator[Case]]]] = {
    "storm": _storms,
    "existing": _existings,
    "latency": _latencies,
    "idle": _idles,
    "start": _starts,
    "wire": _wires,
}
