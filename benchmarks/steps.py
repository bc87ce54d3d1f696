"""The cost of a registration, step by step: CPU microseconds of the daemon during a whole storm.

    python -m benchmarks.steps --sockets 5000 --runs 3

The daemon runs under ``benchmarks.report.sampler``. Each sample counts for the step to which the innermost function of
plugind belongs, either as its own time or as the time of Trio or another library that it called. The shares of the
samples are converted to microseconds with the total that the kernel reports.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.plots import Bars, Plot, Series
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table
from plugind.benchmarks.storm_run import Scenario, run_storm

STEPS = {
    "find the socket": (
        "actors.discovery.watcher",
        "actors.discovery.scanner",
        "actors.discovery.directory",
        "actors.discovery.roots",
        "actors.discovery.root_lock",
        "protocol.discovery.sockets",
        "protocol.discovery.watches",
    ),
    "decide what to do": (
        "actors.world.reconciler",
        "protocol.world.worlds",
        "protocol.world.claims",
        "protocol.world.effects",
    ),
    "start and end the actor": ("actors.node.node", "actors.node.supervision", "actors.registration.registrations"),
    "wait for a dial slot": ("actors.registration.dial_slots",),
    "dial": (
        "actors.grpc.client.dial",
        "actors.io.unix_socket",
        "actors.registration.conversation:Conversation.dial",
    ),
    "talk to the plugin": (
        "actors.registration.conversation",
        "actors.grpc.client",
        "protocol.wire",
        "protocol.proto",
    ),
    "check the answer": ("protocol.plugins.info", "protocol.text"),
    "call the handler": ("actors.handlers",),
    "show the state": (
        "actors.registration.reports",
        "actors.status.actor:",
        "actors.status.event_log:",
        "protocol.status.early",
        "protocol.status.view",
        "protocol.plugins.status",
        "protocol.status.metrics",
    ),
    "log": ("actors.logs.lines", "protocol.logs.lines"),
    "pass messages": ("actors.messaging.mailbox", "protocol.messages"),
    "run the actor: its phases and deadlines": ("actors.registration", "protocol.registration", "protocol.backoff"),
    "answer the status socket": ("actors.http.server", "actors.status.api", "actors.status.exposition"),
    "Trio's scheduler": ("the scheduler",),
}
_REST, _COLLECTOR = "the rest", "Python's garbage collector"
_KINDS = ("own code", "Trio", "libraries and builtins in Python")


@attrs.frozen
class Steps:
    """The microseconds of each step and kind, and the number of samples."""

    total_us: float
    parts: dict[tuple[str, str], float]
    samples: int
    functions: list[tuple[str, float]]

    def step(self, step: str) -> float:
        """Return the microseconds of one step."""
        return sum(us for (name, _), us in self.parts.items() if name == step)


def step_of(where: str) -> str:
    """Return the step to which a function belongs: that of the longest matching prefix."""
    fitting = [
        (len(prefix), step) for step, prefixes in STEPS.items() for prefix in prefixes if where.startswith(prefix)
    ]
    return max(fitting)[1] if fitting else _REST


def _kind_of(library: str) -> str:
    return {"own": _KINDS[0], "trio": _KINDS[1]}.get(library, _KINDS[2])


def measure(scenario: Scenario, runs: int) -> Steps:
    """Sample ``runs`` storms.

    Raises:
      RuntimeError: if a plugin was lost.
    """
    hits: Counter[tuple[str, str]] = Counter()
    functions: Counter[str] = Counter()
    collector = cpu = 0.0
    progress = Progress(runs)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(runs):
            progress.step(f"storm {number + 1} of {runs}")
            seen_in = Path(directory) / f"{number}.json"
            run = run_storm(attrs.evolve(scenario, profile=seen_in), idle=False)
            if run.lost or run.last_error:
                raise RuntimeError(f"{run.lost} plugins were lost; {run.last_error}")
            seen = json.loads(seen_in.read_text())
            collector += seen["collector_s"]
            cpu += (run.cpu_settled_ms or 0.0) * run.healthy / 1000
            for sample in seen["samples"]:
                if not sample["where"].startswith("benchmarks."):
                    hits[step_of(sample["where"]), _kind_of(sample["in"])] += sample["hits"]
                    functions[f"{sample['where']} ({sample['in']})"] += sample["hits"]
    progress.end()
    total_us = cpu / runs / scenario.sockets * 1e6
    collector_us = collector / runs / scenario.sockets * 1e6
    each = (total_us - collector_us) / hits.total()
    parts = {key: count * each for key, count in hits.items()} | {(_COLLECTOR, _KINDS[2]): collector_us}
    return Steps(total_us, parts, hits.total(), [(name, count * each) for name, count in functions.most_common(25)])


def summary(steps: Steps, scenario: Scenario, *, functions: bool) -> str:
    """Return the table as text, the most expensive step first."""
    names = sorted({step for step, _ in steps.parts}, key=steps.step, reverse=True)
    lines: list[list[Cell]] = []
    for name in names:
        kinds: list[Cell] = [steps.parts.get((name, kind)) for kind in _KINDS]
        lines.append([name, steps.step(name), f"{steps.step(name) / steps.total_us:.1%}", *kinds])
    lines.append(
        [
            "all",
            steps.total_us,
            "100%",
            *[sum(us for (_, k), us in steps.parts.items() if k == kind) for kind in _KINDS],
        ]
    )
    head = ["step", "µs per registration", "share", *_KINDS]
    title = f"What a registration costs, in a storm of {scenario.sockets:,} ({steps.samples:,} samples)"
    dearest = ["", table(["function", "µs per registration"], [[name, us] for name, us in steps.functions])]
    return "\n".join([title, machine(), "", table(head, lines), *dearest * functions])


def plot(steps: Steps, scenario: Scenario) -> Plot:
    """Return a plot with a bar for each of the most expensive steps."""
    names = sorted({step for step, _ in steps.parts}, key=steps.step, reverse=True)[:8]
    short = {name: name.partition(" (")[0] for name in names}
    colours = dict(zip(_KINDS, ("#0072b2", "#e69f00", "#8a94a0"), strict=True))
    bars = Bars(
        title="CPU microseconds of the daemon per registration, the dearest steps",
        groups=list(short.values()),
        values={(short[name], kind): Spread.of([us]) for (name, kind), us in steps.parts.items() if name in short},
    )
    series = [Series(name, colour) for name, colour in colours.items()]
    return Plot(f"What a registration costs, in a storm of {scenario.sockets:,}", machine(), series, [bars])


def rows(steps: Steps, scenario: Scenario) -> list[Row]:
    """Return one row for each step, for JSON."""
    names = sorted({step for step, _ in steps.parts}, key=steps.step, reverse=True)
    kinds = {name: {kind: steps.parts.get((name, kind), 0.0) for kind in _KINDS} for name in names}
    return [{"step": name, "us": steps.step(name), **kinds[name], "sockets": scenario.sockets} for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sockets", type=int, default=5000, help="how many at once (default 5000)")
    parser.add_argument("--runs", type=int, default=3, help="the number of storms to sample (default 3)")
    parser.add_argument("--functions", action="store_true", help="show the most expensive functions too")
    add_file_arguments(parser)
    options = parser.parse_args(arguments)
    raise_descriptor_limit(1 << 20)
    cores = sorted(os.sched_getaffinity(0))
    pinned = cores if len(cores) > 1 else [None, None]
    scenario = Scenario(
        sockets=options.sockets, daemon_core=pinned[0], server_core=pinned[1], idle_seconds=0, settle=0.5
    )
    steps = measure(scenario, options.runs)
    print(summary(steps, scenario, functions=options.functions))
    write_files(options, rows(steps, scenario), plot(steps, scenario))
    return 0


if __name__ == "__main__":
    sys.exit(main())
