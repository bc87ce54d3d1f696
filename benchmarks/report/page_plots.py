"""The plots of docs/performance.md, of what ``benchmarks.compare`` has measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plugind.benchmarks import wire
from plugind.benchmarks.report import storm_tables
from plugind.benchmarks.report.comparison import Comparison, Side
from plugind.benchmarks.report.plots import Plot


def plots(found: Comparison, side: Side) -> Iterator[tuple[str, Plot]]:
    """Yield the name of each plot for which one side has figures, and the plot."""
    if storms := found.rows("storm", side):
        yield "storms", storm_tables.plot(storm_tables.from_rows(storms))
    if conversations := found.rows("wire", side):
        outcome, server = wire.from_rows(conversations)
        clients, levels = (dict.fromkeys(client for client, _ in outcome.runs), {level for _, level in outcome.runs})
        yield "wire", wire.plot(outcome, server, list(clients), sorted(levels))


def save_plots(found: Comparison, directory: Path, suffix: str) -> Iterator[Path]:
    """Draw the plots of the side that is compared with the first one, and yield the files as they are written."""
    for name, plot in plots(found, found.sides[-1]):
        path = directory / f"{name}.{suffix}"
        plot.save(path)
        yield path
