"""Plays random scripts on a node in memory, in virtual time, against what must always hold.

    python -m tests.fuzz --seed 7                        one script of 200 events, all faults
    python -m tests.fuzz --seeds 0..999                  a thousand scripts, on all cores
    python -m tests.fuzz --seed 7 --faults files,events  no other faults than these
    python -m tests.fuzz --seed 7 --trace                everything that happens
    python -m tests.fuzz --seed 7 --shrink               the fewest events that still break the rule

A line for each seed: the seed, events, virtual seconds, the hash of the trace, violations. One seed gives one trace, in
every process, with one version of Python and of plugind. Exit codes: 0 nothing was violated, 1 something was, 2 usage,
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from plugind.tests.fuzz.observing import simulate_observing
from plugind.tests.fuzz.run import SeedResult, numbers, simulate
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.shrink import shrink


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: an object for each seed, a line each"
    )
    parser.add_argument("--jobs", type=_count, metavar="N", help="processes (one for each core)")
    return parser


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


def main(words: Sequence[str] | None = None) -> int:
    """Play the scripts and print what came of them; return the exit code."""
    parser = _parser()
    args = parser.parse_args(words)
    if args.output == "json" and args.trace:
        parser.error("--trace prints text: leave out -o json")
    seeds: range = args.seeds or range(args.seed or 0, (args.seed or 0) + 1)
    tell = _print_json if args.output == "json" else _print
    began, done, broken, interrupted = time.monotonic(), 0, 0, False
    try:
        with closing(_results(args, seeds)) as results:
            for result in results:
                done += 1
                broken += bool(result.violations)
                tell(args, result)
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        interrupted = True
    if len(seeds) > 1 and args.output == "text":
        counted = f"interrupted after {done} of {len(seeds)}" if interrupted else f"{len(seeds)}"
        print(f"{counted} seeds in {time.monotonic() - began:.1f} s, {broken} with violations")
    if interrupted:
        return 130
    return 1 if broken else 0


def _is_interrupt(error: BaseException) -> bool:
    """Return whether ``error`` is Ctrl-C, which a nursery wraps in a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _results(args: argparse.Namespace, seeds: range) -> Generator[SeedResult, None, None]:
    """Yield the results in the order of the seeds, whichever process played them."""
    play = partial(_play, args)
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


def _play(args: argparse.Namespace, seed: int, only: frozenset[int] | None = None) -> SeedResult:
    # Nothing is shown while a search for fewer events plays some of them.
    show = partial(print, flush=True) if args.trace and only is None else None
    only = args.only if only is None else only
    if args.observe:
        return simulate_observing(seed, events=args.events, only=only, show=show)
    return simulate(seed, events=args.events, faults=args.faults, only=only, show=show)


def _print(args: argparse.Namespace, result: SeedResult) -> None:
    print(
        f"seed {result.seed}  events {result.events}  virtual {result.virtual_seconds:.3f} s  "
        f"trace {result.trace_hash}  violations {len(result.violations)}",
        flush=True,
    )
    for violation in result.violations:
        print(f"  {violation.oracle} at {violation.time:.6f} s: {violation.text}")
    if result.violations:
        print(f"  repeat it: {_command(args, result.seed, args.only)}", flush=True)
        if args.shrink:
            kept, tries = _shrunk(args, result)
            print(f"  shrunk to {len(kept)} events in {tries} tries: {_command(args, result.seed, kept)}", flush=True)


def _print_json(args: argparse.Namespace, result: SeedResult) -> None:
    found: dict[str, object] = {
        "seed": result.seed,
        "events": result.events,
        "virtual_seconds": round(result.virtual_seconds, 6),
        "trace": result.trace_hash,
        "violations": [
            {"oracle": violation.oracle, "time": violation.time, "text": violation.text}
            for violation in result.violations
        ],
    }
    if result.violations:
        found["repeat"] = _command(args, result.seed, args.only)
        if args.shrink:
            kept, tries = _shrunk(args, result)
            found["shrunk"] = {"events": kept, "tries": tries, "repeat": _command(args, result.seed, kept)}
    print(json.dumps(found), flush=True)


def _shrunk(args: argparse.Namespace, result: SeedResult) -> tuple[list[int], int]:
    """Return the fewest events that still break the rule, and how many times they were played."""
    oracle = result.violations[0].oracle

    def breaks(left: Collection[int]) -> bool:
        print(f"shrinking seed {result.seed}: {len(left)} events", end="\r", file=sys.stderr)
        return any(violation.oracle == oracle for violation in _play(args, result.seed, frozenset(left)).violations)

    played_by_default = range(args.events) if args.observe else numbers(args.events)
    kept, tries = shrink(sorted(args.only if args.only is not None else played_by_default), breaks)
    return list(kept), tries


def _command(args: argparse.Namespace, seed: int, only: Collection[int] | None) -> str:
    words = ["python", "-m", "tests.fuzz", *["--observe"] * args.observe]
    words += ["--seed", str(seed), "--events", str(args.events)]
    if args.faults != frozenset(Fault):
        words += ["--faults", ",".join(fault.value for fault in Fault if fault in args.faults) or "none"]
    if only is not None:
        words += ["--only", ",".join(map(str, sorted(only)))]
    return " ".join(words)


if __name__ == "__main__":
    # A reader of the trace that has seen enough, such as ``head``, ends this.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # The processes of the pool do not import the module ``__main__`` of a package.
    from plugind.tests.fuzz.__main__ import main as importable

    sys.exit(importable())
