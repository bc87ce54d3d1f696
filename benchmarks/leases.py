"""The cost of leases: what the daemon takes for each, and how it behaves with many.

    python -m benchmarks.leases --case turns parts queue held died slow-disk command

- ``turns``: the CPU of the daemon to allocate a device and release it, in turns with a bare call of Allocate to the
  same plugin by a client in a process of its own. The state is in memory, and then on a disk. Each request has a
  connection of its own, as the commands and ``plugind.client`` make them; the client of the bare call keeps its channel
  open, as a consumer does.
- ``parts``: how that CPU divides, by sampling the daemon.
- ``queue``: 50 callers for 4 devices, and whether one of them is overtaken in line.
- ``held``: what many leases that are held cost, and a restart with them.
- ``died``: how long it takes until the devices of many owners are free that were killed at once.
- ``slow-disk``: how long the loop is blocked while each commit takes long.
- ``command``: ``plugind allocate R=1 -- true`` from exec to exit, in turns with ``python -c pass``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import attrs

from plugind.benchmarks.lease_cases import (
    DAEMON,
    Command,
    Died,
    Held,
    Part,
    Queued,
    SlowDisk,
    Turn,
    be_slow,
    commands,
    die,
    hold,
    parts,
    places,
    queue,
    turns,
)
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

#: Where the state is: in memory, or on a disk.
STORES = {"memory": False, "disk": True}
#: The CPU of the daemon is at most so many bare calls.
MOST = 12
_DEVICES = 64
_PARTS_TURNS = 4

Result = Turn | Part | Queued | Held | Died | SlowDisk | Command


def measure_turns(options: argparse.Namespace) -> list[Turn]:
    """Measure with both stores."""
    found: list[Turn] = []
    for store, disk in STORES.items():
        with places(_DEVICES, disk=disk) as place:
            found += turns(store, place, options.rounds, options.number)
    return found


def measure_parts(options: argparse.Namespace, measured: Sequence[Turn]) -> list[Part]:
    """Divide what the cheapest turns of the daemon have cost."""
    found: list[Part] = []
    for store, disk in STORES.items():
        cost = min((turn for turn in measured if (turn.store, turn.who) == (store, DAEMON)), key=lambda turn: turn.ms)
        with places(_DEVICES, disk=disk) as place:
            found += parts(store, place, cost, options.number * _PARTS_TURNS)
    return found


def measure_queue(options: argparse.Namespace) -> list[Queued]:
    """Measure the line with both stores."""
    found = []
    for disk in STORES.values():
        with places(options.few, disk=disk) as place:
            found.append(queue(place, options.callers, options.rounds))
    return found


def measure_held(options: argparse.Namespace) -> list[Held]:
    """Measure many leases, with the state in memory."""
    # A plugin has 10,000 devices at most.
    with places(options.held // 2 + _DEVICES, plugins=2) as place:
        return [hold(place, options.held, options.rounds, options.number)]


def measure_died(options: argparse.Namespace) -> list[Died]:
    """Measure owners that die, with both stores."""
    found = []
    for disk in STORES.values():
        with places(options.owners, disk=disk) as place:
            found.append(die(place, options.owners))
    return found


def measure_slow_disk(options: argparse.Namespace) -> list[SlowDisk]:
    """Measure a disk that takes long."""
    with places(_DEVICES, slow_disk=options.commit) as place:
        return [be_slow(place, 8, 3)]


def measure_command(options: argparse.Namespace) -> list[Command]:
    """Measure the command, with the state on a disk."""
    with places(_DEVICES, disk=True) as place:
        return list(commands(place, options.runs))


# --- tables -----------------------------------------------------------------------------------------------------------


def turns_table(results: Sequence[Turn]) -> str:
    """Return the table of turns: the least and the median of each, and the ratios of the least."""
    lines: list[list[Cell]] = []
    for store in dict.fromkeys(turn.store for turn in results):
        runs = {who: [turn for turn in results if (turn.store, turn.who) == (store, who)] for who in _whos(results)}
        least = {who: min(turn.ms for turn in found) for who, found in runs.items()}
        for who, found in runs.items():
            best = min(found, key=lambda turn: turn.ms)
            of = [least[DAEMON] / least[who] if who != DAEMON else None]
            middle = Spread.of([turn.ms for turn in found]).median
            lines.append([store, who, best.ms, middle, best.loop_ms, best.threads_ms, *of])
    head = ["state in", "who", "CPU ms, least", "median", "loop", "threads", "times dearer is a lease"]
    return table(head, lines)


def _whos(results: Sequence[Turn]) -> list[str]:
    return list(dict.fromkeys(turn.who for turn in results))


def parts_table(results: Sequence[Part]) -> str:
    """Return the table of parts, the dearest first."""
    lines: list[list[Cell]] = []
    for store in dict.fromkeys(cost.store for cost in results):
        mine = [cost for cost in results if cost.store == store]
        total = sum(cost.us for cost in mine)
        lines += [[store, cost.part, cost.us, f"{cost.us / total:.0%}"] for cost in mine]
        lines.append([store, "all", total, "100%"])
    return table(["state in", "part of allocate + release", "µs", "share"], lines)


def figures_table(results: Sequence[Queued | Held | Died | SlowDisk]) -> str:
    """Return a table with a line for each figure, and a column for each result."""
    rows = [attrs.asdict(result) for result in results]
    return table(
        ["", *[f"run {number + 1}" for number in range(len(rows))]],
        [[_words(name), *[row[name] for row in rows]] for name in rows[0]],
    )


_UNITS = ("ms", "s", "mib")


def _words(name: str) -> str:
    """Return the name of a figure with its unit at the end: ``freed, s``."""
    *words, unit = name.split("_")
    return f"{' '.join(words)}, {unit}" if words and unit in _UNITS else name.replace("_", " ")


def commands_table(results: Sequence[Command]) -> str:
    """Return the table of programs, and how many empty programs each takes."""
    first = results[0].what
    lines: list[list[Cell]] = []
    least = {what: _least_of(results, what) for what in dict.fromkeys(command.what for command in results)}
    for what, (ms, cpu) in least.items():
        middle = Spread.of([command.ms for command in results if command.what == what]).median
        lines.append([what, ms, middle, cpu, ms / least[first][0], cpu / least[first][1]])
    return table(["program", "ms, least", "median", "CPU ms, least", "times", "times the CPU"], lines)


def _least_of(results: Sequence[Command], what: str) -> tuple[float, float]:
    mine = [command for command in results if command.what == what]
    return min(command.ms for command in mine), min(command.cpu_ms for command in mine)


# --- the command line -------------------------------------------------------------------------------------------------

TITLES = {
    "turns": "Allocate and release, in turns with a bare call",
    "parts": "What allocate + release costs the daemon",
    "queue": "Many callers for few devices (state in memory, on a disk)",
    "held": "Leases that are held (state in memory)",
    "died": "Owners that are killed at once (state in memory, on a disk)",
    "slow-disk": "A disk that takes long for each commit",
    "command": "From exec to exit",
}


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Sequence[Result], str]]:
    """Measure what was asked for; yield the results and the table of each case."""
    progress = Progress(len(options.case))
    costs: list[Turn] = []
    for case in options.case:
        progress.step(case)
        match case:
            case "turns":
                costs = measure_turns(options)
                yield case, costs, turns_table(costs)
            case "parts":
                shares = measure_parts(options, costs or measure_turns(options))
                yield case, shares, parts_table(shares)
            case "command":
                programs = measure_command(options)
                yield case, programs, commands_table(programs)
            case _:
                figures = _FIGURES[case](options)
                yield case, figures, figures_table(figures)
    progress.end()


_FIGURES: dict[str, Callable[[argparse.Namespace], Sequence[Queued | Held | Died | SlowDisk]]] = {
    "queue": measure_queue,
    "held": measure_held,
    "died": measure_died,
    "slow-disk": measure_slow_disk,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=TITLES, nargs="+", default=list(TITLES), help="what to measure (default all)")
    parser.add_argument("--rounds", type=int, default=7, help="how many times each is measured in turn (default 7)")
    parser.add_argument("--number", type=int, default=200, help="leases and calls in each round (default 200)")
    parser.add_argument("--callers", type=int, default=50, help="callers in line (default 50)")
    parser.add_argument("--few", type=int, default=4, help="devices for them (default 4)")
    parser.add_argument("--held", type=int, default=10_000, help="leases that are held (default 10000)")
    parser.add_argument("--owners", type=int, default=1000, help="owners that are killed (default 1000)")
    parser.add_argument("--commit", type=float, default=0.25, help="seconds of each commit (default 0.25)")
    parser.add_argument("--runs", type=int, default=20, help="runs of each program (default 20)")
    add_json_argument(parser)
    options = parser.parse_args(arguments)
    raise_descriptor_limit(1 << 16)
    rows: list[Row] = []
    print(machine())
    for case, results, text in cases(options):
        print("\n".join(["", TITLES[case], "", text]), flush=True)
        rows += [{"case": case, **attrs.asdict(result), "machine": machine()} for result in results]
    write_json(options, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
