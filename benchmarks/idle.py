"""The cost of an idle daemon with a given number of registered plugins.

    python -m benchmarks.idle --registered 0 100 1000 10000 --seconds 30
    python -m benchmarks.idle --registered 1000 --daemon plugind without-liveness
    python -m benchmarks.idle --registered 10000 --seconds 60 --daemon plugind without-rescans
    python -m benchmarks.idle --registered 0 1000 --daemon plugind with-links
    python -m benchmarks.idle --registered 1000 --settle 60 --seconds 60 --daemon csi dra absent-dra
    python -m benchmarks.idle --registered 0 --stale 5000 --settle 150 --daemon plugind without-liveness

CPU is in per cent of one core and includes rescans, one every 10 s. Memory is resident memory; the figure per plugin is
what each plugin adds to a daemon without plugins. The number of wake-ups shows timers that fire without need. Stale
sockets are dialed with backoff, too, and it takes two minutes until that is rare: give them as long to settle.
``with-links`` is plugind with a handler that holds a connection to each plugin. That of ``with-checks`` checks it, too,
as device plugins are checked. ``csi`` and ``dra`` are plugind as it is, with drivers that answer its checks, and
``absent-dra`` is that with drivers at whose endpoints nothing is.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import attrs

from plugind.benchmarks.peers.daemon_process import CONSUMING, DaemonProcess, plugind_started
from plugind.benchmarks.peers.daemons import DAEMONS
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.limits import Verdict
from plugind.benchmarks.report.plots import Lines, Plot, Series
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

#: Seconds until plugins must be registered: the kubelet asks a plugin again after up to two minutes.
_PATIENCE = 900.0
#: The most that rescans of so many registered plugins may cost, in per cent of a core.
RESCANS_AT, RESCANS_PERCENT = 10_000, 0.2
_COLOURS = {
    "plugind": "#0072b2",
    "without-liveness": "#009e73",
    "without-rescans": "#d55e00",
    "with-links": "#cc79a7",
    "with-checks": "#56b4e9",
    "csi": "#661100",
    "dra": "#f0e442",
    "absent-dra": "#000000",
    "kubelet": "#8a94a0",
}
#: The daemons that are measured: also plugind as it is, which calls drivers.
_STARTED: dict[str, Callable[[Path, Path], AbstractContextManager[DaemonProcess]]] = {
    **DAEMONS,
    "csi": partial(plugind_started, module=CONSUMING),
    "dra": partial(plugind_started, module=CONSUMING),
    "absent-dra": partial(plugind_started, module=CONSUMING),
}
#: The plugins for those.
_PLUGINS: dict[str, Callable[[ServerOptions], ServerOptions]] = {
    "csi": lambda options: options,
    "dra": lambda options: attrs.evolve(options, type="DRAPlugin"),
    "absent-dra": lambda options: attrs.evolve(
        options, type="DRAPlugin", endpoint=str(options.directory / "absent-{i}")
    ),
}


@attrs.frozen(kw_only=True)
class Idle:
    """The figures of one measurement."""

    daemon: str
    registered: int
    stale: int
    cpu_percent: float
    wakeups_per_s: float
    rss_mib: float
    kib_per_plugin: float | None
    descriptors: int
    threads: int


def measure(
    daemon: str, registered: int, *, stale: int = 0, seconds: float, settle: float, empty_kib: int | None
) -> tuple[Idle, int]:
    """Measure the idle daemon, and return its memory in KiB too.

    Raises:
      RuntimeError: if it did not register all plugins, or is not at rest then.
    """
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=registered, wait=True)
        serves = "cheap_server"
        if daemon in _PLUGINS:
            options, serves = _PLUGINS[daemon](options), "csi_server"
        with cheap_server(options, serves) as server, _STARTED[daemon](root, scratch / "log") as process:
            process.wait_ready()
            if registered:
                server.create()
                server.await_notified(registered, _PATIENCE)
                process.wait_at_rest(_PATIENCE)
            make_stale(root, stale)
            time.sleep(settle)
            cpu, wakeups = process.cpu_seconds(), _wakeups(process)
            time.sleep(seconds)
            cpu, wakeups = process.cpu_seconds() - cpu, _wakeups(process) - wakeups
            kib = process.memory_kib()
            each = (kib - empty_kib) / registered if empty_kib is not None and registered else None
            idle = Idle(
                daemon=daemon,
                registered=registered,
                stale=stale,
                cpu_percent=cpu / seconds * 100,
                wakeups_per_s=wakeups / seconds,
                rss_mib=kib / 1024,
                kib_per_plugin=each,
                descriptors=process.descriptors(),
                threads=len(os.listdir(f"/proc/{process.pid}/task")),
            )
            return idle, kib


def make_stale(root: Path, count: int) -> None:
    """Make so many sockets on which nobody listens."""
    for number in range(count):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(root / f"stale-{number}.sock"))


def _wakeups(process: DaemonProcess) -> int:
    """Return how often the daemon's threads blocked voluntarily and were woken."""
    lines = (
        line
        for status in Path(f"/proc/{process.pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
    )
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def summary(results: Sequence[Idle]) -> str:
    """Return the table as text."""
    head = [field.name.replace("_", " ") for field in attrs.fields(Idle)]
    lines: list[list[Cell]] = [list(attrs.astuple(one)) for one in results]
    return "\n".join(["The idle daemon", machine(), "", table(head, lines)])


def verdicts(results: Sequence[Idle]) -> Iterator[Verdict]:
    """Yield the verdict on what rescans cost, if there are figures with and without them."""
    cpu = {one.daemon: one.cpu_percent for one in results if (one.registered, one.stale) == (RESCANS_AT, 0)}
    if "plugind" in cpu and "without-rescans" in cpu:
        with_them, without = cpu["plugind"], cpu["without-rescans"]
        beside = f"{with_them:.3g} with, {without:.3g} without"
        kind = f"{RESCANS_AT:,} registered"
        yield Verdict("more than without rescans", kind, with_them - without, RESCANS_PERCENT, "% of a core", beside)


def plot(results: Sequence[Idle], seconds: float) -> Plot:
    """Return a plot of CPU and memory over the number of plugins."""
    daemons = [*dict.fromkeys(one.daemon for one in results)]
    cpu = {
        name: [(one.registered, Spread.of([one.cpu_percent])) for one in results if one.daemon == name]
        for name in daemons
    }
    memory = {
        name: [(one.registered, Spread.of([one.rss_mib])) for one in results if one.daemon == name] for name in daemons
    }
    panels = [
        Lines(
            title="Per cent of one core while nothing happens, logarithmic: less is better",
            x_title="plugins registered",
            values=cpu,
            log=True,
        ),
        Lines(title="Resident memory, MiB", x_title="plugins registered", values=memory),
    ]
    return Plot(
        "The idle daemon", f"over {seconds:g} s; {machine()}", [Series(name, _COLOURS[name]) for name in cpu], panels
    )


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--registered", type=int, nargs="+", default=[0, 100, 1000, 10000], help="the number of registered plugins"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch (default 30)")
    parser.add_argument("--daemon", nargs="+", choices=tuple(_STARTED), default=["plugind"], help="what is measured")
    parser.add_argument("--stale", type=int, default=0, help="the number of sockets on which nobody listens")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds between the last plugin and the measurement")
    add_file_arguments(parser)
    arguments = parser.parse_args()
    raise_descriptor_limit(1 << 20)
    progress = Progress(len(arguments.registered) * len(arguments.daemon))
    results: list[Idle] = []
    for daemon in arguments.daemon:
        empty_kib: int | None = None
        for registered in sorted(arguments.registered):
            progress.step(f"{daemon}, {registered:,} registered")
            idle, kib = measure(
                daemon,
                registered,
                stale=arguments.stale,
                seconds=arguments.seconds,
                settle=arguments.settle,
                empty_kib=empty_kib,
            )
            empty_kib = kib if not registered else empty_kib
            results.append(idle)
    progress.end()
    print(summary(results))
    for verdict in verdicts(results):
        print(verdict)
    rows: list[Row] = [attrs.asdict(one) | {"machine": machine()} for one in results]
    write_files(arguments, rows, plot(results, arguments.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
