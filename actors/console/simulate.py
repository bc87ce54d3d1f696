"""`plugind simulate`: random scripts against the oracles, a line for each seed, and the command that repeats it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..simulation.fuzz.script import Fault
from .ending import OutputError, say
from .output import add_output_argument

if TYPE_CHECKING:
    from ..simulation.fuzz.run import SeedResult

_EPILOG = """examples:
  plugind simulate --seed 7                        one script of 200 events, all faults
  plugind simulate --seeds 0..999                  a thousand scripts, on all cores
  plugind simulate --seed 7 --faults files,events  no other faults than these
  plugind simulate --seed 7 --trace                everything that happens
  plugind simulate --seed 7 --shrink               the fewest events that still break the rule

A line for each seed: the seed, events, virtual seconds, the hash of the trace, violations. One seed gives one trace,
in every process, with one version of Python and of plugind. Exit codes: 0 nothing was violated, 1 something was,
2 usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind simulate``."""
    parser.description = "Play random scripts on a node in memory, in virtual time, against what must always hold."
    parser.epilog = _EPILOG
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, metavar="N", help="play the script of this seed (0)")
    seeds.add_argument("--seeds", type=_range, metavar="A..B", help="play the scripts of all seeds from A to B")
    parser.add_argument("--events", type=_count, default=200, metavar="M", help="events in a script (200)")
    parser.add_argument(
        "--faults",
        type=_faults,
        default=frozenset(Fault),
        metavar="LIST",
        help=f"what may go wrong: all, none, or some of {','.join(fault.value for fault in Fault)} (all)",
    )
    parser.add_argument(
        "--observe",
        action="store_true",
        help="play other scripts: on a node that observes, which tells no plugin anything; --faults does not count",
    )
    parser.add_argument("--only", type=_numbers, metavar="LIST", help="play only these events of the script")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--shrink", action="store_true", help="search for the fewest events that break the same rule")
    add_output_argument(parser, "one object for each line, the result of a seed with its violations")
    parser.add_argument("--jobs", type=_count, metavar="N", help="processes (one for each core)")


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds, such as 0..999")


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")


def _numbers(text: str) -> frozenset[int]:
    parts = [part for part in text.split(",") if part]
    if all(part.isdecimal() for part in parts):
        return frozenset(map(int, parts))
    raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers, such as 3,17,42")


def _faults(text: str) -> frozenset[Fault]:
    if text in ("all", "none"):
        return frozenset(Fault if text == "all" else ())
    try:
        return frozenset(map(Fault, text.split(",")))
    except ValueError:
        names = ", ".join(fault.value for fault in Fault)
        raise argparse.ArgumentTypeError(f"{text!r} names faults that are not known: choose from {names}") from None


def run(args: argparse.Namespace) -> int:
    """Play the scripts; return the exit code."""
    if args.output == "json" and args.trace:
        args.parser.error("--trace prints text: leave out -o json")
    seeds: range = args.seeds or range(args.seed or 0, (args.seed or 0) + 1)
    began = time.monotonic()
    done = broken = 0
    interrupted = False
    try:
        with _Bar(len(seeds)) as bar, closing(_outcomes(args, seeds)) as outcomes:
            for outcome in outcomes:
                done += 1
                broken += bool(outcome.violations)
                if args.output == "json":
                    _print_json(args, outcome, bar)
                else:
                    _print(outcome)
                    if outcome.violations:
                        _explain(args, outcome, bar)
                bar.show(done, broken)
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        interrupted = True
    if len(seeds) > 1 and args.output == "text":
        counted = f"interrupted after {done} of {len(seeds)}" if interrupted else f"{len(seeds)}"
        say(f"{counted} seeds in {time.monotonic() - began:.1f} s, {broken} with violations\n")
    if interrupted:
        return 130
    return 1 if broken else 0


class _Bar:
    """A progress bar on standard error, with the results above it; it is shown on a terminal only."""

    def __init__(self, seeds: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[broken]} violated"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            # Results that go to a file or a pipe must not pass through standard error.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._seeds = seeds
        self._task = self._progress.add_task("seeds", total=seeds, broken=0, visible=seeds > 1)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, broken: int) -> None:
        """Show how many seeds are done, and how many of them violated a rule."""
        self._progress.update(self._task, completed=done, broken=broken, description="seeds", visible=self._seeds > 1)

    def say(self, text: str) -> None:
        """Show ``text`` before the bar."""
        self._progress.update(self._task, description=text, visible=True)


def _is_interrupt(error: BaseException) -> bool:
    """Return whether ``error`` is Ctrl-C, which a nursery wraps in a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _outcomes(args: argparse.Namespace, seeds: range) -> Generator[SeedResult, None, None]:
    """Yield the results in the order of the seeds, whichever process played them."""
    play = partial(
        _play, events=args.events, faults=args.faults, only=args.only, trace=args.trace, observe=args.observe
    )
    jobs = min(args.jobs or len(os.sched_getaffinity(0)), len(seeds))
    if jobs == 1 or args.trace:
        yield from map(play, seeds)
        return
    # Processes are spawned, so that each is as fresh as one that plays a single seed. Leaving the block ends them.
    with _ignoring_interrupts():
        pool = multiprocessing.get_context("spawn").Pool(jobs)
    with pool:
        yield from pool.imap(play, seeds)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started here ignore Ctrl-C, which a terminal sends to all of them; this process ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _play(
    seed: int,
    *,
    events: int,
    faults: frozenset[Fault],
    only: frozenset[int] | None = None,
    trace: bool = False,
    observe: bool = False,
) -> SeedResult:
    # The import is late, since the other commands do not need the simulation, and their help must be fast.
    if observe:
        from ..simulation.fuzz.observing import simulate_observing

        return simulate_observing(seed, events=events, only=only, show=_show if trace else None)
    from ..simulation.fuzz.run import simulate

    return simulate(seed, events=events, faults=faults, only=only, show=_show if trace else None)


def _show(line: str) -> None:
    # Inside of the node this error would be a crash; printing the outcome raises it again.
    with suppress(OutputError):
        say(f"{line}\n")


def _print(outcome: SeedResult) -> None:
    say(
        f"seed {outcome.seed}  events {outcome.events}  virtual {outcome.virtual_seconds:.3f} s  "
        f"trace {outcome.trace_hash}  violations {len(outcome.violations)}\n",
        now=True,
    )


def _print_json(args: argparse.Namespace, outcome: SeedResult, bar: _Bar) -> None:
    """Print all that is said of a seed as one object."""
    found: dict[str, object] = {
        "seed": outcome.seed,
        "events": outcome.events,
        "virtual_seconds": round(outcome.virtual_seconds, 6),
        "trace": outcome.trace_hash,
        "violations": [{"oracle": it.oracle, "time": it.time, "text": it.text} for it in outcome.violations],
    }
    if outcome.violations:
        found["repeat"] = _command(args, outcome.seed, args.only)
        if args.shrink:
            kept, tries = _shrunk(args, outcome, bar)
            found["shrunk"] = {"events": kept, "tries": tries, "repeat": _command(args, outcome.seed, tuple(kept))}
    say(json.dumps(found) + "\n", now=True)


def _explain(args: argparse.Namespace, outcome: SeedResult, bar: _Bar) -> None:
    for violation in outcome.violations:
        say(f"  {violation.oracle} at {violation.time:.6f} s: {violation.text}\n")
    say(f"  repeat it: {_command(args, outcome.seed, args.only)}\n", now=True)
    if args.shrink:
        _shrink(args, outcome, bar)


def _shrink(args: argparse.Namespace, outcome: SeedResult, bar: _Bar) -> None:
    kept, tries = _shrunk(args, outcome, bar)
    say(f"  shrunk to {len(kept)} events in {tries} tries: {_command(args, outcome.seed, tuple(kept))}\n")


def _shrunk(args: argparse.Namespace, outcome: SeedResult, bar: _Bar) -> tuple[list[int], int]:
    """Return the fewest events that still break the rule, and how many times they were played."""
    from ..simulation.fuzz.run import numbers
    from ..simulation.fuzz.shrink import shrink

    oracle = outcome.violations[0].oracle

    def breaks(left: object) -> bool:
        assert isinstance(left, tuple)
        bar.say(f"shrinking seed {outcome.seed}: {len(left)} events")
        only = frozenset(left)
        played = _play(outcome.seed, events=args.events, faults=args.faults, only=only, observe=args.observe)
        return any(violation.oracle == oracle for violation in played.violations)

    played_by_default = range(args.events) if args.observe else numbers(args.events)
    kept, tries = shrink(sorted(args.only if args.only is not None else played_by_default), breaks)
    return list(kept), tries


def _command(args: argparse.Namespace, seed: int, only: object) -> str:
    words = ["plugind", "simulate", *["--observe"] * args.observe, "--seed", str(seed), "--events", str(args.events)]
    if args.faults != frozenset(Fault):
        words += ["--faults", ",".join(fault.value for fault in Fault if fault in args.faults) or "none"]
    if isinstance(only, tuple | frozenset):
        words += ["--only", ",".join(map(str, sorted(only)))]
    return " ".join(words)
