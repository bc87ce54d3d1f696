"""The latency of one new plugin on an idle daemon, from listen() to NotifyRegistrationStatus.

    python -m benchmarks.latency --registered 0 1000 --runs 50

The daemon is ``plugind run`` with its default options; some plugins are registered already, and it is idle otherwise.
All plugins are in one other process, which sleeps between calls as real plugins do. Each run creates one socket and
waits until its plugin is notified. The plugins' process takes both times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import quantiles

from plugind.benchmarks.peers.daemon_process import plugind_run
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Progress, Row, Spread, machine, table

#: Seconds until plugins must be registered; the run fails after that.
_PATIENCE = 120.0


def measure(registered: int, runs: int, progress: Progress) -> list[float]:
    """Return the milliseconds of each run, with ``registered`` plugins registered before.

    Raises:
      RuntimeError: if a plugin is not registered in time.
    """
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=registered + runs, wait=True)
        with cheap_server(options) as server, plugind_run(root, scratch / "log"):
            if registered:
                server.create(0, registered)
                _wait_until_notified(server, registered)
                time.sleep(1.0)  # The daemon's remaining work for those plugins must not count for the new one.
            for index in range(registered, registered + runs):
                progress.step(f"{registered} registered")
                server.create(index, 1)
                _wait_until_notified(server, index + 1)
                # The pause differs from the period of any timer, so that the next run finds an idle daemon.
                time.sleep(0.02 + 0.0007 * (index % 40))
            return [
                (plugin["notified_ns"] - plugin["listening_ns"]) / 1e6
                for plugin in server.report()
                if plugin["index"] >= registered
            ]


def _wait_until_notified(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while server.counts()["notified"] < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} plugins were not registered in {_PATIENCE:g} s")
        time.sleep(0.005)


def row_of(registered: int, latencies: Sequence[float]) -> Row:
    """Return the figures of one measurement, in milliseconds."""
    spread = Spread.of(latencies)
    return {
        "registered": registered,
        "runs": len(latencies),
        "median_ms": spread.median,
        "p90_ms": quantiles(latencies, n=10)[-1] if len(latencies) > 1 else spread.median,
        "min_ms": spread.low,
        "max_ms": spread.high,
    }


def main() -> int:
    """Measure, print a table and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registered", type=int, nargs="+", default=[0], help="plugins that are registered before")
    parser.add_argument("--runs", type=int, default=50, help="the number of new plugins, one after the other")
    add_json_argument(parser)
    options = parser.parse_args()
    progress = Progress(options.runs * len(options.registered))
    rows = [row_of(registered, measure(registered, options.runs, progress)) for registered in options.registered]
    progress.end()
    print("One new plugin on an idle daemon, from listen() to NotifyRegistrationStatus")
    print(f"{machine()}\n")
    print(table(list(rows[0]), [[value for value in row.values() if isinstance(value, int | float)] for row in rows]))
    write_json(options, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
