"""Tools for all benchmarks: aligned tables, the facts of the machine, medians, a progress bar."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import attrs
import rich.progress
from rich.console import Console
from rich.progress import BarColumn, TextColumn

Cell = str | float | int | None
Row = dict[str, object]
_T = TypeVar("_T")


@attrs.frozen
class Spread:
    """Several runs of one measurement."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(median(values), min(values), max(values))


def cell(value: object) -> Cell:
    """Return a value of a row as what a table shows."""
    return value if isinstance(value, str | int | float) or value is None else str(value)


def figure(value: Cell) -> str:
    """Format a number with three significant digits and thousands separators, and a missing value as a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if not value:
        return "0"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Align columns: text to the left, numbers to the right. A pipe and a terminal get the same text."""
    lines = [list(head), *([figure(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numeric = [all(not isinstance(row[column], str) for row in rows) for column in range(len(head))]
    out = []
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        out.append(
            "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()
        )
    out.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(out)


def machine() -> str:
    """Return the facts about the machine on which figures depend, in a few words."""
    return f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Progress:
    """A progress bar with the current step on standard error, which is only shown on a terminal."""

    def __init__(self, steps: int) -> None:
        console = Console(stderr=True)
        columns = BarColumn(bar_width=24), TextColumn("{task.description}")
        self._bar = rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=steps)
        self._bar.start()

    def step(self, doing: str) -> None:
        """Show the step that begins now."""
        self._bar.update(self._task, description=doing, advance=1)

    def end(self) -> None:
        """Remove the bar."""
        self._bar.stop()
