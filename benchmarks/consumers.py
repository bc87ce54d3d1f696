"""What it costs to consume device plugins and CSI drivers, beside clients on grpcio's asyncio API.

    python -m benchmarks.consumers --case devices --plugins 100 --changed 0 1 10 1000 --seconds 20 --runs 3
    python -m benchmarks.consumers --case csi --drivers 1000 --runs 5
    python -m benchmarks.consumers --case hanging --healthy 500 --hanging 0 500 --runs 1

``devices``: the plugins are on grpcio, in one process, and each sends its whole list every second, in which some
devices have turned. The daemon and the client follow the same plugins one after the other, in each run. The kernel
reports the CPU of each process; what it used is divided by the lists that the plugins have sent meanwhile. ``restart``
is the time from a daemon's start, after another one was killed, until all plugins are registered and their lists have
come.

``csi``: new CSI drivers register at once, with a daemon that makes the four calls, with one whose handler only judges,
and with one that holds the connections too. The client makes the same four calls over connections of its own. A driver
costs plugind what it costs the first daemon, without what it costs the second one.

``hanging``: CSI drivers of which some answer all calls but Probe. The drivers note when they are asked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from plugind.benchmarks.csi_cases import (
    Asked,
    Checked,
    ask_in_turns,
    asking_summary,
    hanging_summary,
    measure_hanging,
)
from plugind.benchmarks.peers.daemon_process import DaemonProcess, plugind_run, plugind_started
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.device_server import socket_of
from plugind.benchmarks.plugins.server_process import scratch_directory
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

#: Seconds until all plugins must be followed.
_PATIENCE = 120.0
CONSUMERS = ("plugind", "grpcio-aio")


@attrs.frozen(kw_only=True)
class Load:
    """What the plugins do."""

    plugins: int
    devices: int
    changed: int
    period: float = 1.0


@attrs.frozen(kw_only=True)
class Measured:
    """The figures of one consumer."""

    consumer: str
    plugins: int
    devices: int
    changed: int
    lists: int
    cpu_ms_per_list: float
    cpu_percent: float
    rss_mib: float
    #: Seconds from the start of the daemon until it follows all plugins again; None for the client.
    restart_s: float | None = None


class DeviceServer:
    """The process of the plugins."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def counts(self) -> dict[str, int]:
        """Return what has happened so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.line()

    def line(self) -> dict[str, int]:
        """Return what the process prints next.

        Raises:
          RuntimeError: if it has ended.
        """
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError("the process of the device plugins has ended")
        said: dict[str, int] = json.loads(text)
        return said

    def wait(self, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Return the counts as soon as they meet ``condition``.

        Raises:
          RuntimeError: if that takes too long.
        """
        deadline = time.monotonic() + _PATIENCE
        while not condition(counts := self.counts()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {_PATIENCE:g} s the device plugins still say {counts}")
            time.sleep(0.01)
        return counts


@contextmanager
def device_server(directory: Path, load: Load) -> Iterator[DeviceServer]:
    """Run the plugins for the duration of the block."""
    options = {"plugins": load.plugins, "devices": load.devices, "changed": load.changed, "period": load.period}
    line = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "plugind.benchmarks.plugins.device_server", "--dir", str(directory), *line]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = DeviceServer(process)
            server.line()
            yield server
        finally:
            process.kill()


@contextmanager
def client(paths: Sequence[Path]) -> Iterator[DaemonProcess]:
    """Run the client on grpcio for the duration of the block."""
    command = [sys.executable, "-m", "plugind.benchmarks.peers.device_client", *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield DaemonProcess(process, None, Path("/dev/null"))
        finally:
            process.kill()


@contextmanager
def consuming(consumer: str, server: DeviceServer, scratch: Path, load: Load) -> Iterator[DaemonProcess]:
    """Run a consumer, once it follows all plugins."""
    root = scratch / "root"
    if consumer == "plugind":
        with plugind_run(root, scratch / "log") as daemon:
            server.wait(lambda counts: counts["streams"] == load.plugins)
            yield daemon
    else:
        with client([socket_of(root, number) for number in range(load.plugins)]) as process:
            server.wait(lambda counts: counts["streams"] == load.plugins)
            yield process
    server.wait(lambda counts: counts["streams"] == 0)


def measure(consumer: str, server: DeviceServer, scratch: Path, load: Load, seconds: float) -> Measured:
    """Measure one consumer."""
    with consuming(consumer, server, scratch, load) as process:
        time.sleep(3 * load.period)
        cpu, sent, began = process.cpu_seconds(), server.counts()["sent"], time.monotonic()
        time.sleep(seconds)
        cpu, sent = process.cpu_seconds() - cpu, server.counts()["sent"] - sent
        return Measured(
            consumer=consumer,
            plugins=load.plugins,
            devices=load.devices,
            changed=load.changed,
            lists=sent,
            cpu_ms_per_list=cpu / sent * 1000,
            cpu_percent=cpu / (time.monotonic() - began) * 100,
            rss_mib=process.memory_kib() / 1024,
        )


def measure_restart(server: DeviceServer, scratch: Path, load: Load) -> float:
    """Return the seconds from the start of a daemon until all plugins are registered and their lists have come."""
    with consuming("plugind", server, scratch, load) as daemon:
        daemon.kill()
        server.wait(lambda counts: counts["streams"] == 0)
        before = server.counts()["registered"]
        began = time.monotonic()
        with plugind_started(scratch / "root", scratch / "log") as again:
            server.wait(lambda counts: counts["streams"] == load.plugins)
            while server.counts()["registered"] - before < load.plugins or not _all_listed(again, load):
                time.sleep(0.01)
            return time.monotonic() - began


def _all_listed(daemon: DaemonProcess, load: Load) -> bool:
    """Whether the daemon has a list of each plugin."""
    metrics = daemon.get("/metrics")[1].decode().splitlines()
    listed = sum(float(line.rpartition(" ")[2]) for line in metrics if line.startswith("plugind_devices{"))
    return listed == load.plugins * load.devices


def run(load: Load, seconds: float) -> list[Measured]:
    """Measure both consumers, and a restart of the daemon."""
    with scratch_directory() as scratch:
        (scratch / "root").mkdir()
        with device_server(scratch / "root", load) as server:
            found = [measure(consumer, server, scratch, load, seconds) for consumer in CONSUMERS]
            return [attrs.evolve(found[0], restart_s=measure_restart(server, scratch, load)), *found[1:]]


def summary(results: Sequence[Measured]) -> str:
    """Return the table as text, with the medians of several runs."""
    cases = dict.fromkeys((one.changed, one.consumer) for one in results)
    lines: list[list[Cell]] = []
    for changed, consumer in cases:
        runs = [one for one in results if (one.changed, one.consumer) == (changed, consumer)]
        cost = Spread.of([one.cpu_ms_per_list for one in runs])
        restarts = [one.restart_s for one in runs if one.restart_s is not None]
        lines.append(
            [
                changed,
                consumer,
                cost.median,
                f"{cost.low:.2f} to {cost.high:.2f}",
                Spread.of([one.cpu_percent for one in runs]).median,
                Spread.of([one.rss_mib for one in runs]).median,
                Spread.of(restarts).median if restarts else None,
            ]
        )
    head = ["changed", "consumer", "CPU ms per list", "range", "CPU %", "MiB", "restart s"]
    first = results[0]
    what = f"{first.plugins} device plugins with {first.devices:,} devices each"
    return "\n".join([f"Following {what}", machine(), "", table(head, lines)])


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES), help="what to measure (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="the number of runs (default 3); medians are shown")
    _add_device_arguments(parser)
    _add_csi_arguments(parser)
    add_json_argument(parser)
    arguments = parser.parse_args()
    raise_descriptor_limit(1 << 16)
    results: list[Measured | Asked | Checked] = []
    for case in arguments.case:
        results += CASES[case](arguments)
    rows: list[Row] = [attrs.asdict(one) | {"machine": machine()} for one in results]
    write_json(arguments, rows)
    return 0


def _add_device_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument("--plugins", type=int, default=100, help="the number of device plugins (default 100)")
    group.add_argument("--devices", type=int, default=1000, help="devices of each (default 1000)")
    group.add_argument(
        "--changed", type=int, nargs="+", default=[0, 1, 10, 1000], help="how many turn with each list, one case each"
    )
    group.add_argument("--period", type=float, default=1.0, help="seconds between two lists (default 1)")
    group.add_argument("--seconds", type=float, default=20.0, help="how long to measure (default 20)")


def _add_csi_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("csi and hanging")
    group.add_argument("--drivers", type=int, default=1000, help="the number of CSI drivers (default 1000)")
    group.add_argument("--healthy", type=int, default=500, help="CSI drivers that answer Probe (default 500)")
    group.add_argument(
        "--hanging", type=int, nargs="+", default=[0, 500], help="how many do not, one case each (default 0 500)"
    )
    group.add_argument(
        "--check-period", type=float, default=20.0, help="seconds between two checks of one driver (default 20)"
    )
    group.add_argument("--periods", type=float, default=2.5, help="how many of these to measure (default 2.5)")


def _devices(arguments: argparse.Namespace) -> Sequence[Measured]:
    progress = Progress(len(arguments.changed) * arguments.runs)
    results: list[Measured] = []
    for number in range(arguments.runs):
        for changed in arguments.changed:
            progress.step(f"run {number + 1}, {changed} changed")
            load = Load(plugins=arguments.plugins, devices=arguments.devices, changed=changed, period=arguments.period)
            results += run(load, arguments.seconds)
    progress.end()
    print(summary(results))
    return results


def _csi(arguments: argparse.Namespace) -> Sequence[Asked]:
    progress = Progress(arguments.runs)
    results: list[Asked] = []
    for number in range(arguments.runs):
        progress.step(f"run {number + 1}, {arguments.drivers} CSI drivers")
        results += ask_in_turns(arguments.drivers)
    progress.end()
    print(asking_summary(results))
    return results


def _hanging(arguments: argparse.Namespace) -> Sequence[Checked]:
    progress = Progress(len(arguments.hanging) * arguments.runs)
    period, seconds = arguments.check_period, arguments.check_period * arguments.periods
    results: list[Checked] = []
    for number in range(arguments.runs):
        for hanging in arguments.hanging:
            progress.step(f"run {number + 1}, {hanging} CSI drivers hang")
            results.append(measure_hanging(arguments.healthy, hanging, period, seconds))
    progress.end()
    print(hanging_summary(results))
    return results


#: What is measured, by the name of the case.
CASES: dict[str, Callable[[argparse.Namespace], Sequence[Measured | Asked | Checked]]] = {
    "devices": _devices,
    "csi": _csi,
    "hanging": _hanging,
}


if __name__ == "__main__":
    sys.exit(main())
