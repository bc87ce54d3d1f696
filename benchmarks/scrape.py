"""The cost of a scrape of a daemon with so many registered plugins, and of a client that asks without a pause.

    python -m benchmarks.scrape --registered 0 1000 10000
    python -m benchmarks.scrape --registered 10000 --path-labels

Bytes and series are those of one scrape. CPU is that of the daemon alone, as the kernel counts it: for a scrape over
the status socket, where each text is made anew; for one over the port of ``--metrics``, where all who ask within a
second get one text; and in per cent of a core while one client opens connections to the port for three seconds as fast
as it can. ``at 15 s`` is what a Prometheus that scrapes every 15 s costs.
"""

from __future__ import annotations

import argparse
import http.client
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from plugind.benchmarks.peers.cores import two_cores
from plugind.benchmarks.peers.daemon_process import DaemonProcess, plugind_run
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.limits import Verdict, printed
from plugind.benchmarks.report.table import Cell, Progress, machine, table

#: Seconds until all plugins must be registered.
_PATIENCE: Final = 400.0
#: For how many seconds the client asks without a pause.
_FLOOD: Final = 3.0
_INTERVAL: Final = 15.0
#: The most CPU of a scrape with so many registered plugins, in ms, and the most per cent of a core of such a client.
LIMITS: Final = {10_000: 50.0}
FLOOD_LIMIT: Final = 30.0


@attrs.frozen(kw_only=True)
class Scrape:
    """The figures for one number of plugins."""

    registered: int
    series: int
    kib: float
    ms_socket: float
    ms_port: float
    percent_at_15_s: float
    flood_per_s: float
    flood_percent: float


def _port(daemon: DaemonProcess) -> int:
    """Return the port that the log names."""
    found = re.search(r'msg="metrics are served" address=127\.0\.0\.1:(\d+)', daemon.log.read_text())
    if found is None:
        raise RuntimeError("the log names no port for metrics")
    return int(found[1])


def _get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    finally:
        connection.close()


def _cost(daemon: DaemonProcess, ask: Callable[[], object], times: int) -> float:
    """Return the median of the milliseconds of CPU that the daemon needs for a call of ``ask``."""
    costs = []
    for _ in range(times):
        before = daemon.cpu_seconds()
        ask()
        time.sleep(0.01)  # Until the connection is closed.
        costs.append((daemon.cpu_seconds() - before) * 1000)
    return statistics.median(costs)


def _flood(daemon: DaemonProcess, port: int) -> tuple[float, float]:
    """Ask without a pause; return the number of answers in a second, and the CPU of the daemon in per cent."""
    answers, before, began = 0, daemon.cpu_seconds(), time.monotonic()
    while time.monotonic() - began < _FLOOD:
        _get(port)
        answers += 1
    seconds = time.monotonic() - began
    return answers / seconds, (daemon.cpu_seconds() - before) / seconds * 100


def measure(registered: int, *, path_labels: bool, times: int) -> Scrape:
    """Return the figures for so many plugins.

    Raises:
      RuntimeError: if not all are registered in time.
    """
    daemon_core, server_core = two_cores()
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=registered, wait=True, core=server_core)
        run = ["--metrics", "0", *(["--metrics-path-labels"] if path_labels else [])]
        with cheap_server(options) as server, plugind_run(root, scratch / "log", run, core=daemon_core) as daemon:
            if registered:
                server.create()
                server.await_notified(registered, _PATIENCE)
            return _figures(daemon, registered, times)


def _figures(daemon: DaemonProcess, registered: int, times: int) -> Scrape:
    port = _port(daemon)
    _, text = daemon.get("/metrics")  # It loads what renders it.
    ms_socket = _cost(daemon, lambda: daemon.get("/metrics"), times)
    _get(port)
    ms_port = _cost(daemon, lambda: _get(port), times)
    flood_per_s, flood_percent = _flood(daemon, port)
    return Scrape(
        registered=registered,
        series=sum(not line.startswith(b"#") for line in text.splitlines()),
        kib=len(text) / 1024,
        ms_socket=ms_socket,
        ms_port=ms_port,
        percent_at_15_s=ms_socket / _INTERVAL / 10,
        flood_per_s=flood_per_s,
        flood_percent=flood_percent,
    )


def verdicts(found: Sequence[Scrape]) -> Iterator[Verdict]:
    """Yield the verdict on each limit for which there is a figure."""
    for one in found:
        kind = f"{one.registered:,} registered"
        if one.registered in LIMITS:
            beside = f"{one.series} series, {one.kib:.4g} KiB"
            yield Verdict("CPU of a scrape", kind, one.ms_socket, LIMITS[one.registered], "ms", beside)
        yield Verdict(
            "CPU while one client asks without a pause", kind, one.flood_percent, FLOOD_LIMIT, "% of a core",
            f"{one.flood_per_s:.4g} answers a second",
        )  # fmt: skip


def summary(found: Sequence[Scrape]) -> str:
    """Return the table as text."""
    head = ["registered", "series", "KiB", "ms socket", "ms port", "% at 15 s", "asked/s", "% asked"]
    lines: list[list[Cell]] = [list(attrs.astuple(one)) for one in found]
    return "\n".join(["The cost of a scrape", machine(), "", table(head, lines)])


def main() -> int:
    """Measure, print and write. Return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scrape", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--registered", type=int, nargs="+", default=[0, 1000, 10000], help="the numbers of plugins")
    parser.add_argument("--path-labels", action="store_true", help="with --metrics-path-labels")
    parser.add_argument("--times", type=int, default=20, help="how often each way is scraped (default 20)")
    add_json_argument(parser)
    arguments = parser.parse_args()
    raise_descriptor_limit(1 << 20)
    progress = Progress(len(arguments.registered))
    found: list[Scrape] = []
    for registered in sorted(arguments.registered):
        progress.step(f"{registered:,} registered")
        found.append(measure(registered, path_labels=arguments.path_labels, times=arguments.times))
    progress.end()
    print(summary(found))
    code = printed(verdicts(found))
    write_json(arguments, [attrs.asdict(one) | {"machine": machine()} for one in found])
    return code


if __name__ == "__main__":
    sys.exit(main())
