"""What a registration costs a simulated node with up to 100,000 plugins: CPU time and memory of each.

    python -m benchmarks.scaling --json docs/figures/scaling.json
    python -m benchmarks.scaling --registered 1000 10000 --runs 3

A machine has neither the descriptors nor the time for 100,000 processes of plugins, so the node and its plugins are in
memory (``benchmarks.peers.simulated_node``): plugind's own actors and wire, with streams in memory, cheap plugins, and
the node's record of each plugin's states. So a plugin takes more memory than in a daemon. What counts is whether the
cost of each depends on how many there are. Each size has a process of its own, and the least of all runs is shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import attrs

from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.limits import Verdict, printed
from plugind.benchmarks.report.plots import PALETTE, Lines, Plot, Series
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

#: The most that a plugin may cost among many, in those of the fewest.
FLAT: Final = 1.25
_MODULE: Final = "plugind.benchmarks.peers.simulated_node"


@attrs.frozen(kw_only=True)
class Cost:
    """What each of so many plugins costs; ``wall_s`` is the time for all of them."""

    registered: int
    cpu_ms: float
    kib: float
    wall_s: float


def measure(registered: int) -> Cost:
    """Register so many plugins in a process of its own.

    Raises:
      RuntimeError: if that fails; the text is the last line of its errors.
    """
    line = [sys.executable, "-m", _MODULE, str(registered)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{registered:,} plugins: {(done.stderr.splitlines() or ['no error'])[-1]}")
    figures = json.loads(done.stdout)
    return Cost(
        registered=registered,
        cpu_ms=figures["cpu_s"] / registered * 1000,
        kib=figures["kib"] / registered,
        wall_s=figures["wall_s"],
    )


def least(costs: Sequence[Cost]) -> list[Cost]:
    """Return the least of each figure for each number of plugins, beginning with the fewest."""
    by_size: dict[int, list[Cost]] = {}
    for cost in sorted(costs, key=lambda cost: cost.registered):
        by_size.setdefault(cost.registered, []).append(cost)
    return [
        Cost(
            registered=size,
            cpu_ms=min(one.cpu_ms for one in runs),
            kib=min(one.kib for one in runs),
            wall_s=min(one.wall_s for one in runs),
        )
        for size, runs in by_size.items()
    ]


def verdicts(costs: Sequence[Cost]) -> Iterator[Verdict]:
    """Yield whether the cost of a plugin is flat, for each number of plugins but the fewest."""
    few = costs[0]
    for cost in costs[1:]:
        kind, unit = f"{cost.registered:,} registered", f"times that among {few.registered:,}"
        yield Verdict("CPU of each", kind, cost.cpu_ms / few.cpu_ms, FLAT, unit)
        yield Verdict("memory of each", kind, cost.kib / few.kib, FLAT, unit)


def summary(costs: Sequence[Cost]) -> str:
    """Return the table as text."""
    lines: list[list[Cell]] = [[cost.registered, cost.cpu_ms, cost.kib, cost.wall_s] for cost in costs]
    head = ["registered", "CPU ms each", "KiB each", "all, wall s"]
    return "\n".join(["Plugins of a simulated node", machine(), "", table(head, lines)])


def from_rows(written: Sequence[Row]) -> list[Cost]:
    """Return the costs of which :func:`main` has made these rows, beginning with the fewest plugins."""
    fields = [field.name for field in attrs.fields(Cost)]
    return least([Cost(**{name: cast("Any", row[name]) for name in fields}) for row in written])


def plot(costs: Sequence[Cost]) -> Plot:
    """Return a plot of the cost of a plugin over the number of plugins."""
    cpu, memory = Series("CPU", PALETTE[0]), Series("memory", PALETTE[4])
    panels = [
        Lines(
            title="CPU milliseconds of each registration: flat is good",
            x_title="plugins, logarithmic",
            values={cpu.name: [(cost.registered, Spread.of([cost.cpu_ms])) for cost in costs]},
            log_x=True,
            from_zero=True,
        ),
        Lines(
            title="KiB of resident memory of each plugin, with its simulation and its history: flat is good",
            x_title="plugins, logarithmic",
            values={memory.name: [(cost.registered, Spread.of([cost.kib])) for cost in costs]},
            log_x=True,
            from_zero=True,
        ),
    ]
    return Plot("What a plugin costs a simulated node", machine(), [cpu, memory], panels)


def main() -> int:
    """Measure, print and write. Return 1 if the cost is not flat."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--registered",
        type=int,
        nargs="+",
        default=[1000, 3000, 10_000, 30_000, 100_000],
        help="the numbers of plugins (default 1000 3000 10000 30000 100000)",
    )
    parser.add_argument("--runs", type=int, default=1, help="how often each number is measured (default 1)")
    add_file_arguments(parser)
    arguments = parser.parse_args()
    progress = Progress(arguments.runs * len(arguments.registered))
    costs: list[Cost] = []
    for number in range(arguments.runs):
        for registered in arguments.registered:
            progress.step(f"run {number + 1}/{arguments.runs}: {registered:,} plugins")
            costs.append(measure(registered))
    progress.end()
    costs = least(costs)
    print(summary(costs))
    code = printed(verdicts(costs))
    rows: list[Row] = [attrs.asdict(cost) | {"machine": machine()} for cost in costs]
    write_files(arguments, rows, plot(costs))
    return code


if __name__ == "__main__":
    sys.exit(main())
