"""CSI drivers in ``benchmarks.consumers``: what it costs to register them, and whether hanging ones delay the others.

The drivers are cheap servers in one process. A turn has new ones for each consumer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import attrs

from plugind.benchmarks.peers.daemon_process import CONSUMING, JUDGING, DaemonProcess, plugind_run
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.csi_server import DriverReport
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.table import Cell, Spread, machine, table

#: Seconds until all drivers must be registered.
_PATIENCE = 120.0
#: Seconds after the last notification in which the daemon finishes its work: it starts to follow, and logs.
_TAIL = 1.0
#: The calls that a node makes when it registers a driver.
CALLS = 4

#: The daemons, each with its module. The first two make none of the calls; the second one holds the connections.
DAEMONS = {
    "judges only": JUDGING,
    "judges, connects": ("plugind.benchmarks.peers.with_links",),
    "plugind": CONSUMING,
}
CLIENT = "grpcio-aio"
#: What each row counts.
COUNTED = {
    "judges only": "GetInfo, Notify, the rules",
    "judges, connects": "the same and a connection that is followed",
    "plugind": "the same, the four calls and the facts",
    CLIENT: "a connection and the four calls",
}


@attrs.frozen(kw_only=True)
class Asked:
    """What it cost one consumer to register drivers, or to ask them."""

    consumer: str
    drivers: int
    cpu_ms_per_driver: float
    seconds: float


@attrs.frozen(kw_only=True)
class Checked:
    """How the checks of healthy drivers went beside those of drivers that hang. Times are in seconds."""

    healthy: int
    hanging: int
    period: float
    seconds: float
    probes: int
    #: Of the healthy drivers.
    median_gap: float
    longest_gap: float
    #: Calls of Probe that were never answered.
    unanswered: int
    cpu_percent: float


class CSIClient:
    """The process of the client on grpcio."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.costs = DaemonProcess(process, None, Path("/dev/null"))

    def ask_all(self) -> None:
        """Have it ask all drivers; return once they have answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self.line()

    def line(self) -> None:
        """Wait for the next line that it prints.

        Raises:
          RuntimeError: if it has ended.
        """
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the client of the CSI drivers has ended")


@contextmanager
def csi_client(paths: Sequence[Path]) -> Iterator[CSIClient]:
    """Run the client for the duration of the block; it is ready to begin."""
    command = [sys.executable, "-m", "plugind.benchmarks.peers.csi_client", *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            client = CSIClient(process)
            client.line()
            yield client
        finally:
            process.kill()


def registered(server: ServerProcess) -> None:
    """Create all drivers, and wait until they are registered.

    Raises:
      RuntimeError: if some are not in time.
    """
    server.create()
    server.await_notified(server.options.sockets, _PATIENCE)


def driver_reports(server: ServerProcess) -> list[DriverReport]:
    """Return what has happened to each driver."""
    return cast("list[DriverReport]", server.report())


def measure_asking(consumer: str, drivers: int, tail: float = _TAIL) -> Asked:
    """Measure one consumer with new drivers, and for ``tail`` seconds after they have been registered.

    Raises:
      RuntimeError: if a driver was not asked what this consumer asks.
    """
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=drivers, wait=True)
        with cheap_server(options, "csi_server") as server:
            if consumer == CLIENT:
                server.create()
                with csi_client([options.path(index) for index in range(drivers)]) as client:
                    cost, seconds = _cost(client.costs, client.ask_all, tail)
            else:
                health_off = "--health", "CSIPlugin=off"
                with plugind_run(root, scratch / "log", health_off, module=DAEMONS[consumer]) as daemon:
                    cost, seconds = _cost(daemon, lambda: registered(server), tail)
            answered = sum(driver["answered"] for driver in driver_reports(server))
    wanted = CALLS * drivers if consumer in (CLIENT, "plugind") else 0
    if answered != wanted:
        raise RuntimeError(f"{consumer}: the drivers have answered {answered} calls, not {wanted}")
    return Asked(consumer=consumer, drivers=drivers, cpu_ms_per_driver=cost / drivers * 1000, seconds=seconds)


def _cost(process: DaemonProcess, work: Callable[[], None], tail: float) -> tuple[float, float]:
    """Return the CPU seconds of ``process`` for some work, and the seconds that this took."""
    cpu, began = process.cpu_seconds(), time.monotonic()
    work()
    seconds = time.monotonic() - began
    time.sleep(tail)
    return process.cpu_seconds() - cpu, seconds


def ask_in_turns(drivers: int) -> list[Asked]:
    """Measure all consumers, one after the other."""
    return [measure_asking(consumer, drivers) for consumer in (*DAEMONS, CLIENT)]


def asking_summary(results: Sequence[Asked]) -> str:
    """Return the table as text, and how many times cheaper plugind is."""
    costs = {name: _costs(results, name) for name in COUNTED}
    rows: list[list[Cell]] = [
        [name, what, costs[name].low, costs[name].median, costs[name].high] for name, what in COUNTED.items()
    ]
    head = ["consumer", "what is counted", "CPU ms per driver, least", "median", "most"]
    first = results[0]
    title = f"Registering {first.drivers:,} CSI drivers with their four calls; health checks are off"
    return "\n".join([title, machine(), "", table(head, rows), "", *_ratios(results)])


def _costs(results: Sequence[Asked], consumer: str) -> Spread:
    return Spread.of([one.cpu_ms_per_driver for one in results if one.consumer == consumer])


def _ratios(results: Sequence[Asked]) -> Iterator[str]:
    client, whole = _costs(results, CLIENT), _costs(results, "plugind")
    baseline = _costs(results, "judges only")
    for what, low, middle in (
        ("all that plugind does", whole.low, whole.median),
        ("without the registration (judges only)", whole.low - baseline.low, whole.median - baseline.median),
    ):
        yield (
            f"{what}: {low:.3f} ms (of the least), {middle:.3f} ms (of the medians); "
            f"{CLIENT} takes {client.low / low:.1f} and {client.median / middle:.1f} times that"
        )


def measure_hanging(healthy: int, hanging: int, period: float, seconds: float) -> Checked:
    """Measure the checks of healthy drivers beside ``hanging`` ones that never answer Probe."""
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        count = healthy + hanging
        options = ServerOptions(directory=root, sockets=count, wait=True, hang="probe", hang_fraction=hanging / count)
        health = "--health", f"CSIPlugin={period:g}"
        with (
            cheap_server(options, "csi_server") as server,
            plugind_run(root, scratch / "log", health, module=CONSUMING) as daemon,
        ):
            registered(server)
            cpu, began = daemon.cpu_seconds(), time.monotonic()
            time.sleep(seconds)
            cpu, passed = daemon.cpu_seconds() - cpu, time.monotonic() - began
            return _checked(_all_probed(server), period, passed, cpu)


def _all_probed(server: ServerProcess) -> list[DriverReport]:
    """Return what has happened, as soon as each driver was asked how it is.

    Raises:
      RuntimeError: if that takes too long.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        reports = driver_reports(server)
        if all(driver["probes"] for driver in reports):
            return reports
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {_PATIENCE:g} s some CSI drivers were never asked how they are")
        time.sleep(0.05)


def _checked(drivers: Sequence[DriverReport], period: float, seconds: float, cpu: float) -> Checked:
    healthy = [driver for driver in drivers if not driver["hang"]]
    gaps = Spread.of([driver["longest_gap_ns"] / 1e9 for driver in healthy])
    return Checked(
        healthy=len(healthy),
        hanging=len(drivers) - len(healthy),
        period=period,
        seconds=seconds,
        probes=sum(driver["probes"] for driver in healthy),
        median_gap=gaps.median,
        longest_gap=gaps.high,
        unanswered=sum(driver["probes"] for driver in drivers if driver["hang"]),
        cpu_percent=cpu / seconds * 100,
    )


def hanging_summary(results: Sequence[Checked]) -> str:
    """Return the table as text: of several turns the medians, and the longest gap of all."""
    rows: list[list[Cell]] = []
    for healthy, hanging in dict.fromkeys((one.healthy, one.hanging) for one in results):
        turns = [one for one in results if (one.healthy, one.hanging) == (healthy, hanging)]
        rows.append(
            [
                healthy,
                hanging,
                Spread.of([one.probes for one in turns]).median,
                Spread.of([one.median_gap for one in turns]).median,
                max(one.longest_gap for one in turns),
                turns[0].period * 1.2,
                Spread.of([one.unanswered for one in turns]).median,
                Spread.of([one.cpu_percent for one in turns]).median,
            ]
        )
    head = ["healthy", "hanging", "probes", "gap s, median", "longest", "longest period", "unanswered", "CPU %"]
    first = results[0]
    title = f"Checking CSI drivers each {first.period:g} s ± 20 %, for {first.seconds:.0f} s"
    note = "The gaps are of the healthy drivers: the longest time without a Probe of each, since it was registered."
    return "\n".join([title, machine(), "", table(head, rows), "", note])
