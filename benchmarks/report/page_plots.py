"""The plots of docs/performance.md, of figures that benchmarks have written as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks import scaling, wire
from plugind.benchmarks.report import storm_tables
from plugind.benchmarks.report.comparison import Comparison, Side
from plugind.benchmarks.report.plots import Plot
from plugind.benchmarks.report.table import Row, machine

#: The plots by the names of their files, with the benchmark whose ``--json`` has the figures.
BENCHMARKS: Final[Mapping[str, str]] = {"storms": "storm", "wire": "wire", "scaling": "scaling"}


def plot_of(name: str, rows: Sequence[Row]) -> Plot:
    """Return the plot of one of :data:`BENCHMARKS`, of at least one row; it names the machine of the figures."""
    drawn = {"wire": _of_wire, "storms": _of_storms, "scaling": _of_scaling}[name](rows)
    machines = dict.fromkeys(str(row.get("machine", machine())) for row in rows)
    return attrs.evolve(drawn, subtitle=drawn.subtitle.replace(machine(), "; ".join(machines)))


def _of_wire(rows: Sequence[Row]) -> Plot:
    outcome, server = wire.from_rows(rows)
    clients, levels = dict.fromkeys(client for client, _ in outcome.runs), {level for _, level in outcome.runs}
    return wire.plot(outcome, server, list(clients), sorted(levels))


def _of_storms(rows: Sequence[Row]) -> Plot:
    return storm_tables.plot(storm_tables.from_rows(rows))


def _of_scaling(rows: Sequence[Row]) -> Plot:
    return scaling.plot(scaling.from_rows(rows))


def plots(found: Comparison, side: Side) -> Iterator[tuple[str, Plot]]:
    """Yield the name of each plot for which one side of a comparison has figures, and the plot."""
    for name, benchmark in BENCHMARKS.items():
        if rows := found.rows(benchmark, side):
            yield name, plot_of(name, rows)


def save_plots(found: Comparison, directory: Path, suffix: str) -> Iterator[Path]:
    """Draw the plots of the side that is compared with the first one, and yield the files as they are written."""
    for name, plot in plots(found, found.sides[-1]):
        path = directory / f"{name}.{suffix}"
        plot.save(path)
        yield path
