"""Thousands of plugin sockets at once: how soon each is registered, and what the daemon spends on it.

    python -m benchmarks.storm --sockets 1 100 1000 2000 5000 10000 --runs 3

The daemon is `plugind run` as users run it, with its status socket, logs and metrics; the plugins live in a process of
their own, as cheap as can be (`--server fake`), or are grpcio's servers (`--server grpcio`). A storm lasts from the
first socket that listens to the last plugin that was notified. Sizes take turns, so that what
disturbs the machine for a while disturbs each of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import cheap_server, scratch_directory
from plugind.benchmarks.plugins.storm_plugins import SERVERS, shares
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.storm_tables import StormResult, plot, rows, summary
from plugind.benchmarks.report.table import Progress
from plugind.benchmarks.storm_run import Scenario, run_storm
from plugind.benchmarks.wire import Bench, ClientFailed

_OVERFLOW = 18_000
"""More sockets than inotify's queue holds events (16,384), fewer than the 20,000 descriptors of many a container."""


def scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    """What is measured, one for each row."""
    cores = sorted(os.sched_getaffinity(0))
    pinned = arguments.pin and len(cores) > 1
    base = Scenario(
        sockets=1,
        server=arguments.server,
        existing=arguments.existing,
        overflow=arguments.overflow,
        remove=arguments.remove,
        stop_midway=arguments.stop_midway,
        hang=arguments.hang,
        fail_first=arguments.fail_first,
        spin=arguments.spin,
        idle_seconds=arguments.idle_seconds,
        patience=arguments.patience,
        settle=arguments.settle,
        daemon_core=cores[0] if pinned else None,
        server_core=cores[1] if pinned else None,
        profile=arguments.profile,
    )
    sizes = arguments.sockets or ([_OVERFLOW] if arguments.overflow else [1, 100, 1000, 2000, 5000, 10000])
    fractions = [0.0, arguments.hang_fraction] if arguments.hang_fraction else [0.0]
    return [
        attrs.evolve(base, sockets=size, daemon=daemon, hang_fraction=fraction)
        for size in sizes
        for fraction in fractions
        for daemon in arguments.daemon
    ]


def measure(wanted: Sequence[Scenario], runs: int, *, floor: bool) -> StormResult:
    """All scenarios by turns; the idle daemon is watched in the first run of each."""
    outcome = StormResult({scenario: [] for scenario in wanted}, {})
    progress = Progress(len(wanted) * runs)
    for number in range(runs):
        for scenario in wanted:
            what = f"run {number + 1}/{runs}: {scenario.daemon}, {scenario.sockets:,} sockets"
            progress.step(f"{what}, {scenario.hang_fraction:.0%} hang" if scenario.hang_fraction else what)
            if scenario in outcome.failed:
                continue
            try:
                floor_ms = bare_conversation(scenario) if floor else None
                run = run_storm(scenario, idle=number == 0)
                run.floor_ms = floor_ms
                outcome.runs[scenario].append(run)
            except (RuntimeError, OSError, ClientFailed) as error:
                outcome.failed[scenario] = str(error)
    progress.end()
    return outcome


def bare_conversation(scenario: Scenario) -> float | None:
    """CPU milliseconds of a conversation in the wire benchmark's cheapest client: how fast the machine is just now."""
    if scenario.daemon_core is None:
        return None
    with scratch_directory() as directory:
        options = ServerOptions(directory=directory, sockets=500, spin=True, core=scenario.server_core)
        with cheap_server(options) as server:
            return Bench(server, 0.3, scenario.daemon_core).run("floor", 64).cpu_ms


def limits(wanted: Sequence[Scenario]) -> Iterator[str]:
    """Raises the limit of descriptors, which the children inherit, and says what could not be had."""
    most = max(scenario.sockets for scenario in wanted)
    # The daemon might hold a connection to each, and a process of plugins has a listener for each besides.
    needed = 2 * most + 1024
    if (have := raise_descriptor_limit(needed)) < needed:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        yield (
            f"descriptors: {needed:,} were wanted, the hard limit allows {hard:,}; so {most:,} plugins share "
            f"{len(shares(most, wanted[0].server))} process(es), and the daemon has to do with {have:,}"
        )
    queue = Path("/proc/sys/fs/inotify/max_queued_events")
    if queue.exists() and any(scenario.overflow for scenario in wanted):
        yield f"inotify: a queue holds {int(queue.read_text()):,} events"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm", description=__doc__.split("\n")[0])
    parser.add_argument("--sockets", type=int, nargs="+", metavar="N", help="default: 1 100 1000 2000 5000 10000")
    parser.add_argument("--runs", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument(
        "--daemon", nargs="+", choices=("plugind", "peer"), default=["plugind"], help="what is measured"
    )
    parser.add_argument("--server", choices=tuple(SERVERS), default="fake", help="what the plugins are")
    parser.add_argument("--existing", action="store_true", help="the sockets are there before the daemon starts")
    parser.add_argument("--overflow", action="store_true", help="they appear while the daemon is stopped by SIGSTOP")
    parser.add_argument("--hang-fraction", type=float, default=0.0, metavar="F", help="so many hang, 0 to 1")
    parser.add_argument("--hang", choices=("accept", "get-info", "notify", "backlog"), default="get-info", help="where")
    parser.add_argument("--fail-first", type=int, default=0, metavar="K", help="each fails its first K GetInfo calls")
    parser.add_argument("--remove", action="store_true", help="at last all sockets are removed")
    parser.add_argument("--stop-midway", action="store_true", help="SIGTERM when half of the plugins were notified")
    parser.add_argument("--spin", action="store_true", help="a server that never sleeps: no wake-ups across cores")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let the kernel choose cores")
    parser.add_argument("--idle-seconds", type=float, default=20.0, help="how long to watch the idle daemon; 0: not")
    parser.add_argument("--no-floor", dest="floor", action="store_false", help="do not measure the machine's speed")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds until a plugin counts as lost")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before the memory at rest is read")
    parser.add_argument("--profile", type=Path, metavar="OUT", help="sample the daemon; the last run's file stays")
    add_file_arguments(parser)
    arguments = parser.parse_args()
    if arguments.server == "grpcio" and arguments.hang_fraction and arguments.hang in ("accept", "backlog"):
        parser.error("grpcio's servers cannot hang before they accept: use --hang get-info or notify")
    return arguments


def main() -> int:
    """Measures, prints, writes; exit code 1 when a plugin was lost, or anything else went wrong."""
    arguments = _parse()
    wanted = scenarios(arguments)
    for line in limits(wanted):
        print(line, file=sys.stderr)
    outcome = measure(wanted, arguments.runs, floor=arguments.floor)
    print(summary(outcome))
    write_files(arguments, rows(outcome), plot(outcome))
    for scenario, reason in outcome.failed.items():
        print(f"{scenario.daemon} with {scenario.sockets:,} sockets was not measured: {reason}", file=sys.stderr)
    return 1 if outcome.failed or any(run.errors for run in outcome.all_runs()) else 0


if __name__ == "__main__":
    sys.exit(main())
