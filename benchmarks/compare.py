"""Two trees, or two daemons, in turns: storms, latency, the idle daemon, the start and the wire, in one table.

    python -m benchmarks.compare --base ../old --turns 8 --json compare.json
    python -m benchmarks.compare --base ../old --base-python ../old/.venv/bin/python --cases storm idle --quick
    python -m benchmarks.compare --json figures.json --turns 3
    python -m benchmarks.compare --from figures.json --plots docs
    python -m benchmarks.compare --daemons plugind kubelet --sockets 1000 --turns 3 --json kubelet-1000.json
    python -m benchmarks.compare --from kubelet-1.json kubelet-1000.json --markdown

A tree is a checkout with its interpreter, into which what plugind needs is installed; Python imports plugind from the
checkout. Each benchmark is that of its tree, and runs in a process of its own, with its roots in memory if the machine
has a file system for that. A figure that the benchmark of one tree does not have is left out there. In each turn, all
cases come in random order, and in each case both sides: runs that are next to each other have about the same load.
Compare the ratios, not the milliseconds. Without a second side the table has no ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.compare_cases import FULL, KINDS, QUICK, Case, Sizes, cases
from plugind.benchmarks.peers.daemons import DAEMONS
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import SCRATCH
from plugind.benchmarks.report.comparison import Comparison, Run, Side, markdown, plan, summary
from plugind.benchmarks.report.files import plot_directory
from plugind.benchmarks.report.page_plots import save_plots
from plugind.benchmarks.report.table import Progress, machine
from plugind.tests.tools import peers

_HERE: Final = Path(__file__).resolve().parents[1]
#: Seconds for one run of a benchmark, and for its processes to end once they are told to.
_PATIENCE, _GRACE = 1800.0, 10.0
#: What an interpreter says of itself, and of the plugind that it imports.
_FACTS: Final = (
    "import json, platform, sys, plugind;print(json.dumps([plugind.__file__, sys.prefix, platform.python_version()]))"
)


class NoTreeError(Exception):
    """A side cannot be measured; the text says why."""


@attrs.frozen
class Bench:
    """A side, and how its processes start. ``environment`` is the directory of its interpreter's environment."""

    side: Side
    environment: str
    scratch: Path | None = None

    def run(self, case: Case, turn: int) -> Run:
        """Run one benchmark to its end."""
        with tempfile.TemporaryDirectory(prefix="plugind-compare-") as directory:
            written = Path(directory) / "rows.json"
            line = [self.side.python, "-P", "-m", f"plugind.benchmarks.{case.benchmark}"]
            line += [*case.arguments(self.side.daemon, self.environment), "--json", str(written)]
            load, began, before = os.getloadavg()[0], time.monotonic(), _cpu_of_children()
            said = _run(line, self.side.tree, self.variables())
            run = Run(
                turn=turn,
                case=case.name,
                side=self.side.name,
                cpu_s=_cpu_of_children() - before,
                wall_s=time.monotonic() - began,
                load=load,
            )
            if not written.exists():
                return attrs.evolve(run, failed=said or "it wrote no figures")
            # A benchmark that misses a limit, or loses a plugin, has figures nevertheless.
            rows = json.loads(written.read_text())
            return attrs.evolve(run, rows=rows, figures=case.figures(rows))

    def variables(self) -> dict[str, str]:
        """Return the environment of its processes, in which plugind is that of the checkout."""
        scratch = {SCRATCH: str(self.scratch)} if self.scratch else {}
        return _variables(Path(self.side.tree)) | scratch


def bench_of(name: str, tree: Path, python: str, daemon: str, scratch: Path | None = None) -> Bench:
    """Return what measures a checkout.

    Raises:
      NoTreeError: if the interpreter does not import plugind from there.
    """
    tree = tree.resolve()
    if not (tree / ".links" / "plugind").is_dir():
        raise NoTreeError(f"{tree} is no checkout of plugind")
    try:
        asked = subprocess.run(
            [python, "-P", "-c", _FACTS], cwd=tree, env=_variables(tree), capture_output=True, text=True, check=True
        )
    except OSError as error:
        raise NoTreeError(f"{python}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise NoTreeError(f"{python}: {_last_line(error.stderr)}") from None
    file, environment, version = json.loads(asked.stdout)
    if file is None or Path(file).resolve().parent != tree:
        raise NoTreeError(f"{python} imports plugind from {file} and not from {tree}")
    side = Side(name=name, tree=str(tree), python=python, daemon=daemon, version=version, revision=_revision(tree))
    if daemon == "kubelet":
        side = attrs.evolve(side, made_of=_versions_of_the_kubelet())
    return Bench(side, environment, scratch)


def _versions_of_the_kubelet() -> str:
    try:
        program = peers.built(peers.PEERS / "kubelet-pm", lambda line: print(line, file=sys.stderr))
    except (peers.MissingError, peers.BuildError) as error:
        raise NoTreeError(str(error).rstrip()) from None
    return peers.versions(program)


def _variables(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / ".links")}


def _revision(tree: Path) -> str:
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:  # There is no git.
        return ""
    return done.stdout.strip()


def _run(line: Sequence[str], tree: str, variables: Mapping[str, str]) -> str:
    """Run a benchmark with all of its processes to their end; return the last line of its errors."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            line, cwd=tree, env=dict(variables), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        ) as process,
    ):
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return f"it did not end in {_PATIENCE:g} s"
        finally:
            _end(process)
        errors.seek(0)
        return _last_line(errors.read())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a benchmark: it removes what it has made, if there is time for that."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _cpu_of_children() -> float:
    used = os.times()
    return used.children_user + used.children_system


def measure(
    benches: Sequence[Bench], wanted: Sequence[Case], turns: int, seed: int, done: Callable[[Run], None]
) -> Iterator[Run]:
    """Yield all runs. A case that failed on one side is not tried there again."""
    by_name = {bench.side.name: bench for bench in benches}
    of_case = {case.name: case for case in wanted}
    failed: set[tuple[str, str]] = set()
    steps = list(plan(list(of_case), list(by_name), turns, seed))
    progress = Progress(len(steps))
    try:
        for turn, name, side in steps:
            progress.step(f"turn {turn + 1}/{turns}: {name}, {side}")
            if (name, side) in failed:
                continue
            run = by_name[side].run(of_case[name], turn)
            if run.failed:
                failed.add((name, side))
            done(run)
            yield run
    finally:
        progress.end()


def left_out(wanted: Sequence[Case], benches: Sequence[Bench]) -> dict[str, str]:
    """Return the cases that one side cannot run, with the reason."""
    return {
        case.name: f"{case.name} is left out: it does not start {bench.side.daemon}"
        for case in wanted
        for bench in benches
        if bench.side.daemon not in case.daemons
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; those that contradict each other end the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, metavar="DIR", help="the checkout to compare this one with")
    parser.add_argument("--base-python", metavar="PATH", help="its interpreter (default: DIR/.venv/bin/python)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter of this checkout")
    parser.add_argument(
        "--daemons", nargs=2, choices=DAEMONS, metavar="DAEMON", help=f"compare two of {', '.join(DAEMONS)}"
    )
    parser.add_argument("--cases", nargs="+", choices=KINDS, default=list(KINDS), help="what to measure")
    parser.add_argument("--sockets", type=int, nargs="+", metavar="N", help="the numbers of plugins, in each case")
    parser.add_argument("--turns", type=int, help="how often each case runs on each side (default 8, quick: 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes, and few turns")
    parser.add_argument("--seed", type=int, help="the seed of the order (default: a random one, which is printed)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where roots are made (default: in memory)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures, after each run")
    parser.add_argument(
        "--from", dest="source", type=Path, nargs="+", metavar="FILE", help="measure nothing; show such files together"
    )
    parser.add_argument("--markdown", action="store_true", help="print the medians as a table for docs/performance.md")
    parser.add_argument(
        "--plots", type=plot_directory, metavar="DIR", help="draw the plots of docs/performance.md, of the last side"
    )
    parser.add_argument("--plot-format", choices=("svg", "png"), default="svg", help="of the plots (default svg)")
    chosen = parser.parse_args(arguments)
    if chosen.base and chosen.daemons:
        parser.error("--base compares trees and --daemons compares daemons: choose one")
    if chosen.base_python and not chosen.base:
        parser.error("--base-python needs --base")
    if chosen.turns is not None and chosen.turns < 1:
        parser.error("--turns must be at least 1")
    return chosen


def benches_of(arguments: argparse.Namespace) -> list[Bench]:
    """Return the sides that the options name, what others are compared with first.

    Raises:
      NoTreeError: if one cannot be measured.
    """
    scratch, python = arguments.scratch, arguments.python
    if arguments.daemons:
        return [bench_of(daemon, _HERE, python, daemon, scratch) for daemon in arguments.daemons]
    this = bench_of("this", _HERE, python, "plugind", scratch)
    if arguments.base is None:
        return [this]
    theirs = arguments.base_python or str((arguments.base / ".venv" / "bin" / "python").absolute())
    return [bench_of("base", arguments.base, theirs, "plugind", scratch), this]


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    """Return how much the options ask for."""
    sizes = QUICK if arguments.quick else FULL
    if arguments.sockets:
        chosen = tuple(arguments.sockets)
        sizes = attrs.evolve(sizes, storms=chosen, existing=chosen, latency=chosen, idle=chosen)
    return sizes


def _measured(arguments: argparse.Namespace) -> Comparison:
    raise_descriptor_limit(1 << 20)
    benches = benches_of(arguments)
    wanted = list(cases(arguments.cases, sizes_of(arguments)))
    without = left_out(wanted, benches)
    for reason in without.values():
        print(reason, file=sys.stderr)
    wanted = [case for case in wanted if case.name not in without]
    found = Comparison(
        sides=[bench.side for bench in benches],
        cases=[case.name for case in wanted],
        turns=arguments.turns or (2 if arguments.quick else 8),
        seed=secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed,
        machine=machine(),
    )
    runs: list[Run] = []

    def done(run: Run) -> None:
        # After each run, so that the figures of hours are not lost with the last one.
        runs.append(run)
        if arguments.json:
            arguments.json.write_text(json.dumps(attrs.evolve(found, runs=runs).to_json(), indent=1) + "\n")

    for _ in measure(benches, wanted, found.turns, found.seed, done):
        pass
    return attrs.evolve(found, runs=runs)


def _read(files: Sequence[Path]) -> Comparison:
    return Comparison.joined([Comparison.from_json(json.loads(file.read_text())) for file in files])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, print, write and draw. Return 1 if a benchmark failed, and 2 if a side cannot be measured."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        found = _read(options.source) if options.source else _measured(options)
    except (NoTreeError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(markdown(found) if options.markdown else summary(found))
    if options.plots:
        for path in save_plots(found, options.plots, options.plot_format):
            print(f"wrote {path}")
    return 1 if any(run.failed for run in found.runs) else 0


if __name__ == "__main__":
    sys.exit(main())
