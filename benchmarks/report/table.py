"""What all benchmarks share for telling: aligned tables, JSON files, the machine's facts, medians, a progress line."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import attrs

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
        """The spread of at least one value."""
        return cls(median(values), min(values), max(values))


def figure(value: Cell) -> str:
    """A number with three significant digits and thousands apart; a dash for what was not measured."""
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
    """Columns aligned by hand, so that a pipe and a narrow terminal get the same text; text left, numbers right."""
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


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Writes the rows as one JSON list."""
    path.write_text(json.dumps(list(rows), indent=2) + "\n")


def machine() -> str:
    """The facts that a figure depends on, in a few words."""
    return f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Progress:
    """One line on standard error that says what is being measured; silent where that is no terminal."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._shown = sys.stderr.isatty()

    def step(self, doing: str) -> None:
        """Says what begins now."""
        self._done += 1
        if self._shown:
            full = 24 * self._done // self._steps
            print(f"\r\x1b[K{'█' * full}{'░' * (24 - full)} {doing}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Takes the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
