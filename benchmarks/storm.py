"""Thousands of plugin sockets at once: how soon each is registered, and the cost for the daemon.

    python -m benchmarks.storm --sockets 1 100 1000 2000 5000 10000 --runs 3

The daemon is ``plugind run`` with its status socket, logs and metrics. The plugins are in other processes: they are
as cheap as possible (``--server fake``) or grpcio servers (``--server grpcio``). A storm lasts from the first listening
socket until the last plugin is notified. The sizes take turns, so that a temporary load on the machine affects all of
them equally.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from plugind.benchmarks.peers.cores import two_cores
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import cheap_server, scratch_directory
from plugind.benchmarks.plugins.storm_plugins import SERVERS, shares
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.storm_limits import verdicts
from plugind.benchmarks.report.storm_tables import StormResult, plot, rows, summary
from plugind.benchmarks.report.table import Progress
from plugind.benchmarks.storm_run import Scenario, run_storm
from plugind.benchmarks.wire import Bench, ClientFailed

#: More sockets than inotify's queue holds events (16,384), and fewer than 20,000, a common limit of descriptors.
_OVERFLOW = 18_000


def scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios to measure, one for each row."""
    daemon_core, server_core = two_cores(pin=arguments.pin)
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
        daemon_core=daemon_core,
        server_core=server_core,
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
    """Run all scenarios in turns. The idle daemon is measured in the first run of each."""
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
    """Return the CPU milliseconds of a bare conversation, which shows the present speed of the machine."""
    if scenario.daemon_core is None:
        return None
    with scratch_directory() as directory:
        options = ServerOptions(directory=directory, sockets=500, spin=True, core=scenario.server_core)
        with cheap_server(options) as server:
            return Bench(server, 0.3, scenario.daemon_core).run("floor", 64).cpu_ms


def limits(wanted: Sequence[Scenario]) -> Iterator[str]:
    """Raise the limit of descriptors, which child processes inherit, and yield a message if it is too low."""
    most = max(scenario.sockets for scenario in wanted)
    # The daemon may have a connection to each plugin, and a process of plugins also has a listener for each.
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
    parser.add_argument("--runs", type=int, default=3, help="the number of runs (default 3); medians are shown")
    parser.add_argument(
        "--daemon", nargs="+", choices=("plugind", "kubelet"), default=["plugind"], help="what is measured"
    )
    parser.add_argument("--server", choices=tuple(SERVERS), default="fake", help="the kind of plugins")
    parser.add_argument("--existing", action="store_true", help="create the sockets before the daemon starts")
    parser.add_argument(
        "--overflow", action="store_true", help="create the sockets while SIGSTOP has stopped the daemon"
    )
    parser.add_argument(
        "--hang-fraction", type=float, default=0.0, metavar="F", help="the share of plugins that hang, 0 to 1"
    )
    parser.add_argument(
        "--hang", choices=("accept", "get-info", "notify", "backlog"), default="get-info", help="where they hang"
    )
    parser.add_argument(
        "--fail-first", type=int, default=0, metavar="K", help="fail the first K GetInfo calls of each plugin"
    )
    parser.add_argument("--remove", action="store_true", help="remove all sockets at the end")
    parser.add_argument("--stop-midway", action="store_true", help="SIGTERM when half of the plugins were notified")
    parser.add_argument(
        "--spin", action="store_true", help="use a server that never sleeps, so that no wake-up crosses cores"
    )
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let the kernel choose cores")
    parser.add_argument(
        "--idle-seconds", type=float, default=20.0, help="how long to watch the idle daemon; 0 skips it"
    )
    parser.add_argument("--no-floor", dest="floor", action="store_false", help="do not measure the machine's speed")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds until a plugin counts as lost")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before the memory at rest is read")
    parser.add_argument(
        "--profile", type=Path, metavar="OUT", help="sample the daemon; the file is that of the last run"
    )
    add_file_arguments(parser)
    arguments = parser.parse_args()
    if arguments.server == "grpcio" and arguments.hang_fraction and arguments.hang in ("accept", "backlog"):
        parser.error("grpcio's servers cannot hang before they accept: use --hang get-info or notify")
    return arguments


def main() -> int:
    """Measure, print and write. Return 1 if a plugin was lost or a scenario failed."""
    arguments = _parse()
    wanted = scenarios(arguments)
    for line in limits(wanted):
        print(line, file=sys.stderr)
    outcome = measure(wanted, arguments.runs, floor=arguments.floor)
    print(summary(outcome))
    for verdict in verdicts(outcome):
        print(verdict)
    write_files(arguments, rows(outcome), plot(outcome))
    for scenario, reason in outcome.failed.items():
        print(f"{scenario.daemon} with {scenario.sockets:,} sockets was not measured: {reason}", file=sys.stderr)
    return 1 if outcome.failed or any(run.errors for run in outcome.all_runs()) else 0


if __name__ == "__main__":
    sys.exit(main())
