"""The latency of one new plugin on an idle daemon, from listen() to NotifyRegistrationStatus.

    python -m benchmarks.latency --registered 0 1000 --runs 50

The daemon is ``plugind run`` with its default options, or another one of ``--daemon``; some plugins are registered
already, and it is idle otherwise. All plugins are in one other process, which sleeps between calls as real plugins do.
Each run creates one socket and waits until its plugin is notified. The plugins' process takes both times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import quantiles

import attrs

from plugind.benchmarks.peers.daemons import DAEMONS
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Progress, Row, Spread, cell, machine, table

#: Seconds until plugins must be registered, and until the daemon must be at rest then; the run fails after that.
_PATIENCE = 900.0


@attrs.frozen
class Latencies:
    """The milliseconds of each run, and the CPU milliseconds of the daemon in each on average."""

    wall_ms: Sequence[float]
    cpu_ms: float


def measure(registered: int, runs: int, daemon: str, progress: Progress) -> Latencies:
    """Let ``runs`` plugins appear one by one, with ``registered`` plugins registered before.

    Raises:
      RuntimeError: if a plugin is not registered in time, or the daemon is not at rest.
    """
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=registered + runs, wait=True)
        with cheap_server(options) as server, DAEMONS[daemon](root, scratch / "log") as process:
            process.wait_ready()
            if registered:
                server.create(0, registered)
                _wait_until_notified(server, registered)
                # The daemon's remaining work for those plugins must not count for the new one.
                time.sleep(1.0)
                process.wait_at_rest(_PATIENCE)
            cpu = process.cpu_seconds()
            for index in range(registered, registered + runs):
                progress.step(f"{daemon}, {registered} registered")
                server.create(index, 1)
                _wait_until_notified(server, index + 1)
                # The pause differs from the period of any timer, so that the next run finds an idle daemon.
                time.sleep(0.02 + 0.0007 * (index % 40))
            cpu = process.cpu_seconds() - cpu
            wall = [
                (plugin["notified_ns"] - plugin["listening_ns"]) / 1e6
                for plugin in server.report()
                if plugin["index"] >= registered
            ]
            return Latencies(wall, cpu / runs * 1000)


def _wait_until_notified(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while server.counts()["notified"] < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} plugins were not registered in {_PATIENCE:g} s")
        time.sleep(0.005)


def row_of(daemon: str, registered: int, latencies: Latencies) -> Row:
    """Return the figures of one measurement, in milliseconds."""
    wall = latencies.wall_ms
    spread = Spread.of(wall)
    return {
        "daemon": daemon,
        "registered": registered,
        "runs": len(wall),
        "median_ms": spread.median,
        "p90_ms": quantiles(wall, n=10)[-1] if len(wall) > 1 else spread.median,
        "min_ms": spread.low,
        "max_ms": spread.high,
        "cpu_ms": latencies.cpu_ms,
    }


def main() -> int:
    """Measure, print a table and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registered", type=int, nargs="+", default=[0], help="plugins that are registered before")
    parser.add_argument("--runs", type=int, default=50, help="the number of new plugins, one after the other")
    parser.add_argument("--daemon", nargs="+", choices=tuple(DAEMONS), default=["plugind"], help="what is measured")
    add_json_argument(parser)
    options = parser.parse_args()
    progress = Progress(options.runs * len(options.registered) * len(options.daemon))
    rows = [
        row_of(daemon, registered, measure(registered, options.runs, daemon, progress))
        for registered in options.registered
        for daemon in options.daemon
    ]
    progress.end()
    print("One new plugin on an idle daemon, from listen() to NotifyRegistrationStatus")
    print(f"{machine()}\n")
    print(table(list(rows[0]), [[*map(cell, row.values())] for row in rows]))
    write_json(options, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
