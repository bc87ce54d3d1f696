"""Good plugins beside hostile ones: how much later they are registered, and what the hostile ones cost the daemon.

    python -m benchmarks.hostile --kind silent chmod --peers 128
    python -m benchmarks.hostile --kind silent --peers 5000
    python -m benchmarks.hostile --peers 1000 --memory-limit 128
    python -m benchmarks.hostile --soak 30 --seed 7
    python -m benchmarks.hostile --list

For each kind there are two runs with 100 good plugins that are replaced at a steady rate: one with the hostile plugins
in the root, and one with the same processes and sockets where the daemon does not look. The daemon has a core of its
own, if there are two. The hostile plugins get what the good ones leave of the other one, so that the difference is what
the daemon does about them. Each limit gets a verdict, and the command fails if one is missed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

import attrs

from plugind.benchmarks import hostile_soak
from plugind.benchmarks.hostile_run import Conditions, measure
from plugind.benchmarks.peers.cores import two_cores
from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.hostile_tables import FLOODERS, LISTERS, Pair, rows, summary, verdicts
from plugind.benchmarks.report.table import Progress, machine, table


def peers_of(kind: str, asked: int | None) -> int:
    """Return how many plugins of a kind there are: by default as many as its limits are for."""
    return asked or (LISTERS if kind == "many-nodes" else FLOODERS)


def compare(kinds: Sequence[str], conditions: Conditions, asked: int | None) -> dict[str, Pair]:
    """Return both runs of each kind, with as many plugins as are ``asked`` for, if any are.

    Raises:
      RuntimeError: if a process did not start, or the good plugins alone were not registered.
    """
    progress = Progress(2 * len(kinds))
    pairs = {}
    for kind in kinds:
        conditions = attrs.evolve(conditions, peers=peers_of(kind, asked))
        progress.step(f"{conditions.peers:,} {kind}, undialed")
        undialed = measure(kind, conditions, dialed=False)
        progress.step(f"{conditions.peers:,} {kind}")
        pairs[kind] = Pair(measure(kind, conditions, dialed=True), undialed)
    progress.end()
    return pairs


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--kind", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="default: all kinds")
    parser.add_argument("--list", action="store_true", help="print what each kind does, and nothing else")
    parser.add_argument("--peers", type=int, help="hostile plugins of each kind (default 128, and 4 of many-nodes)")
    parser.add_argument("--good", type=int, default=100, help="good plugins at any time (default 100)")
    parser.add_argument("--rate", type=float, default=20.0, help="good plugins replaced each second (default 20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure (default 20)")
    parser.add_argument(
        "--settle", type=float, default=15.0, help="seconds after which the burst is over at the latest (default 15)"
    )
    parser.add_argument(
        "--memory-limit", type=int, metavar="MIB", help="run the daemon in a memory cgroup of this size"
    )
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="random mixtures of the kinds, with an oracle")
    parser.add_argument("--seed", type=int, help="the seed of a soak (default: a random one, which is printed)")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let the kernel choose cores")
    parser.add_argument("--run-option", action="append", default=[], metavar="OPTION", help="an option of plugind run")
    add_json_argument(parser)
    return parser.parse_args()


def _soak(arguments: argparse.Namespace, seed: int, daemon_core: int | None, peers_core: int | None) -> bool:
    print(f"soak of {arguments.soak:g} minutes, --seed {seed}; {machine()}", flush=True)
    conditions = hostile_soak.Conditions(
        seconds=arguments.soak * 60,
        seed=seed,
        kinds=arguments.kind,
        most_peers=arguments.peers or FLOODERS,
        good=arguments.good,
        mixture=(min(4.0, arguments.seconds), min(12.0, arguments.seconds)),
        daemon_core=daemon_core,
        peers_core=peers_core,
        daemon_options=tuple(arguments.run_option),
    )
    return hostile_soak.soak(conditions, lambda line: print(line, flush=True))


def main() -> int:
    """Measure, print and write. Return 1 if a limit is missed or a daemon failed."""
    arguments = _parse()
    if arguments.list:
        print(table(["kind", "what it does"], [[name, make().about] for name, make in KINDS.items()]))
        return 0
    raise_descriptor_limit(1 << 20)
    options, (daemon_core, peers_core) = tuple(arguments.run_option), two_cores(pin=arguments.pin)
    if arguments.soak:
        seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
        return 0 if _soak(arguments, seed, daemon_core, peers_core) else 1
    conditions = Conditions(
        good=arguments.good,
        rate=arguments.rate,
        seconds=arguments.seconds,
        settle=arguments.settle,
        daemon_core=daemon_core,
        peers_core=peers_core,
        daemon_options=options,
        memory_mib=arguments.memory_limit,
    )
    pairs = compare(arguments.kind, conditions, arguments.peers)
    found = list(verdicts(pairs))
    print(summary(pairs, found))
    write_json(arguments, rows(pairs))
    return 1 if any(not one.kept for one in found) or any(pair.dialed.failure for pair in pairs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
