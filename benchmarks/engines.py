"""What plugind's parts for Slurm add to a job: Debian's Slurm with three nodes on this machine, with and without them.

    python -m benchmarks.engines                     both ways: 100 jobs in a row, and 20 at once, with and without
    python -m benchmarks.engines --empty-map         jobs of which the parts lease nothing

A job has one device and runs ``true``. Its time is that from the start of ``srun`` until Slurm no longer has it, so the
epilog counts. With and without the parts it is measured in turns, with the same daemons. With the way ``ids`` Slurm
chooses the devices; with ``count`` it only counts, and the prolog asks Slurm how many a job has.

It needs root and the Debian packages slurmctld, slurmd, slurm-client and munge. It runs in namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.peers.slurm.cluster import PATIENCE, Cluster, running_cluster, until
from plugind.benchmarks.peers.slurm.files import NODES, Way, call_parts
from plugind.benchmarks.peers.slurm.namespaces import TOO_LONG, lacking, run_isolated
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

_MODULE: Final = "plugind.benchmarks.engines"
_RESULT: Final = "result.json"
_WAYS: Final = tuple(way.value for way in Way)
#: How jobs come.
ROW, AT_ONCE = "in a row", "at once"


@attrs.frozen
class Turn:
    """Some jobs, with the parts or without."""

    way: str
    load: str
    parts: bool
    jobs: int
    #: The milliseconds of each job of a row; those of all jobs at once, divided by their number.
    ms: tuple[float, ...]


@attrs.frozen
class Added:
    """What the parts add to a job."""

    way: str
    load: str
    #: How many jobs were measured with the parts, and as many without.
    jobs: int
    #: Milliseconds for each job, medians.
    without_ms: float
    with_ms: float
    adds_ms: float
    ratio: float
    #: The load of the machine in the end: how many tasks were ready to run, averaged over a minute.
    machine_load: float


def added(turns: Sequence[Turn]) -> list[Added]:
    """Return what the parts add, for each way and load."""
    found = []
    for way, load in dict.fromkeys((turn.way, turn.load) for turn in turns):
        mine = [turn for turn in turns if (turn.way, turn.load) == (way, load)]
        times = {parts: [ms for turn in mine if turn.parts is parts for ms in turn.ms] for parts in (False, True)}
        bare, full = Spread.of(times[False]).median, Spread.of(times[True]).median
        jobs = sum(turn.jobs for turn in mine if turn.parts)
        found.append(Added(way, load, jobs, bare, full, full - bare, full / bare, os.getloadavg()[0]))
    return found


def added_table(results: Sequence[Added]) -> str:
    """Return the table of what the parts add."""
    lines: list[list[Cell]] = [
        [result.way, result.load, result.jobs, result.without_ms, result.with_ms, result.adds_ms, result.ratio]
        for result in results
    ]
    return table(["who chooses", "jobs", "number", "without, ms a job", "with", "adds", "times"], lines)


# --- inside of the namespaces -----------------------------------------------------------------------------------------


def turns(cluster: Cluster, options: argparse.Namespace) -> Iterator[Turn]:
    """Measure in turns, without the parts and with them."""
    progress = Progress(4 * options.rounds)
    mapped = (gres_map := cluster.directory / "etc" / "slurm-gres").read_text()
    for _ in range(options.rounds):
        for parts in (False, True):
            _switch(cluster, parts=parts)
            gres_map.write_text("" if options.empty_map else mapped)
            progress.step(f"{cluster.way.value}: {ROW}, {'with' if parts else 'without'} the parts")
            each = [_timed(cluster, 1, "-wn1") for _ in range(options.row // options.rounds)]
            yield Turn(cluster.way.value, ROW, parts, len(each), tuple(each))
            progress.step(f"{cluster.way.value}: {AT_ONCE}, {'with' if parts else 'without'} the parts")
            many = _timed(cluster, options.at_once) / options.at_once
            yield Turn(cluster.way.value, AT_ONCE, parts, options.at_once, (many,))
            gres_map.write_text(mapped)
    progress.end()


def _switch(cluster: Cluster, *, parts: bool) -> None:
    """Have Slurm call the parts or not; return once jobs on all nodes have leases accordingly."""
    call_parts(cluster.directory, called=parts)
    cluster.slurm("scontrol", "reconfigure")

    def is_so() -> bool:
        job = cluster.submit(1, 0, f"-N{len(NODES)}")
        until("the job has ended", lambda: not cluster.queued())
        return {bool(record.lease) for record in cluster.records(job)} == {parts}

    until(f"jobs have {'leases' if parts else 'none'}", is_so)


def _timed(cluster: Cluster, jobs: int, *options: str) -> float:
    """Return the milliseconds until so many jobs, which begin at once, have left Slurm."""
    command = ["srun", "--quiet", f"--gres={cluster.way.gres}:1", "--ntasks=1", "--chdir=/tmp", *options, "true"]
    began = time.monotonic()
    running = [subprocess.Popen(command, env=cluster.environment, stdin=subprocess.DEVNULL) for _ in range(jobs)]
    for process in running:
        if code := process.wait(PATIENCE):
            raise subprocess.CalledProcessError(code, command)
    until("the jobs have left", lambda: not cluster.queued(), pause=0.01)
    return (time.monotonic() - began) * 1000


def _inside(options: argparse.Namespace) -> int:
    with running_cluster(options.inside, Way(options.way), confined=False, parts=False) as cluster:
        found = [attrs.asdict(turn) for turn in turns(cluster, options)]
    (options.inside / _RESULT).write_text(json.dumps(found))
    return 0


# --- the command line -------------------------------------------------------------------------------------------------


def _measure(options: argparse.Namespace, way: str) -> list[Turn] | None:
    """Measure one way in namespaces of its own; None if that fails."""
    with tempfile.TemporaryDirectory(prefix="plugind-slurm-", ignore_cleanup_errors=True) as scratch:
        words = ["--inside", scratch, "--way", way]
        for name in ("row", "at_once", "rounds"):
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        words += ["--empty-map"] if options.empty_map else []
        code = run_isolated(_MODULE, words, options.within)
        if code == TOO_LONG:
            print(f"{way}: not done within {options.within:g} s", file=sys.stderr)
        if code:
            return None
        found = json.loads((Path(scratch) / _RESULT).read_text())
        return [Turn(**{**turn, "ms": tuple(turn["ms"])}) for turn in found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--way", choices=_WAYS, help="who chooses the devices (default: both ways, one after the other)"
    )
    parser.add_argument("--row", type=int, default=100, help="jobs in a row, with the parts and without (default 100)")
    parser.add_argument("--at-once", type=int, default=20, help="jobs at once (default 20)")
    parser.add_argument("--rounds", type=int, default=4, help="in how many turns (default 4)")
    parser.add_argument("--empty-map", action="store_true", help="measure with a map that has no GRES")
    parser.add_argument("--within", type=float, default=560.0, help="seconds for each way (default 560)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    add_json_argument(parser)
    # What the namespaces run: one way, in this directory.
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 0, 1 if it fails, or 2 if it cannot be measured here."""
    options = _parser().parse_args(arguments)
    if options.inside is not None:
        return _inside(options)
    if lacks := lacking():
        print(f"this needs root, and Debian's Slurm: {lacks}", file=sys.stderr)
        return 2
    found: list[Turn] = []
    for way in _WAYS if options.way is None else (options.way,):
        if (measured := _measure(options, way)) is None:
            return 1
        found += measured
    results = added(found)
    rows: list[Row] = [{**attrs.asdict(result), "machine": machine()} for result in results]
    print(json.dumps(rows, indent=2) if options.output == "json" else f"{machine()}\n\n{added_table(results)}")
    write_json(options, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
