"""The memory of a daemon at rest with so many registered plugins.

    python -m benchmarks.memory --registered 0 1000 10000

Resident memory (RSS) counts pages that are shared with other processes, such as those of the interpreter's libraries,
for each of them; PSS divides them among these. The peak is that of RSS since the start. What a plugin adds is told by
the difference to the first, smallest number of plugins. The plugins are cheap and in another process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
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
#: The most resident memory with so many registered plugins, in MiB: that of a daemon without any, and 80.
LIMITS: Final = {10_000: 41.0 + 80.0}


@attrs.frozen(kw_only=True)
class Memory:
    """The memory with so many plugins, in MiB, and the bytes of its objects that each plugin adds, in KiB."""

    registered: int
    rss_mib: float
    pss_mib: float
    peak_mib: float
    rss_kib_each: float | None = None
    pss_kib_each: float | None = None


def pss_kib(daemon: DaemonProcess) -> int:
    """Return its resident memory, with the pages that it shares divided among those who do."""
    for line in Path(f"/proc/{daemon.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise KeyError("Pss")


def measure(registered: int, settle: float) -> Memory:
    """Return the memory of a daemon, ``settle`` seconds after the last plugin was registered.

    Raises:
      RuntimeError: if not all are registered in time.
    """
    daemon_core, server_core = two_cores()
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=registered, wait=True, core=server_core)
        with cheap_server(options) as server, plugind_run(root, scratch / "log", core=daemon_core) as daemon:
            if registered:
                server.create()
                server.await_notified(registered, _PATIENCE)
            time.sleep(settle)
            return Memory(
                registered=registered,
                rss_mib=daemon.memory_kib() / 1024,
                pss_mib=pss_kib(daemon) / 1024,
                peak_mib=daemon.memory_kib("VmHWM") / 1024,
            )


def with_differences(found: Sequence[Memory]) -> list[Memory]:
    """Return the same with what each plugin adds, compared with the first of them."""
    first = found[0]
    return [
        attrs.evolve(
            one,
            rss_kib_each=(one.rss_mib - first.rss_mib) * 1024 / (one.registered - first.registered),
            pss_kib_each=(one.pss_mib - first.pss_mib) * 1024 / (one.registered - first.registered),
        )
        if one.registered > first.registered
        else one
        for one in found
    ]


def verdicts(found: Sequence[Memory]) -> Iterator[Verdict]:
    """Yield the verdict on each limit for which there is a figure."""
    for one in found:
        if one.registered in LIMITS:
            beside = f"PSS {one.pss_mib:.4g}, peak {one.peak_mib:.4g}"
            yield Verdict(
                "resident memory", f"{one.registered:,} registered", one.rss_mib, LIMITS[one.registered], "MiB", beside
            )


def summary(found: Sequence[Memory]) -> str:
    """Return the table as text."""
    head = ["registered", "RSS MiB", "PSS MiB", "peak MiB", "RSS KiB each", "PSS KiB each"]
    lines: list[list[Cell]] = [list(attrs.astuple(one)) for one in found]
    return "\n".join(["The memory of a daemon at rest", machine(), "", table(head, lines)])


def main() -> int:
    """Measure, print and write. Return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--registered", type=int, nargs="+", default=[0, 1000, 10000], help="the numbers of plugins")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds before the memory is read (default 3)")
    add_json_argument(parser)
    arguments = parser.parse_args()
    raise_descriptor_limit(1 << 20)
    progress = Progress(len(arguments.registered))
    found: list[Memory] = []
    for registered in sorted(arguments.registered):
        progress.step(f"{registered:,} registered")
        found.append(measure(registered, arguments.settle))
    progress.end()
    found = with_differences(found)
    print(summary(found))
    code = printed(verdicts(found))
    write_json(arguments, [attrs.asdict(one) | {"machine": machine()} for one in found])
    return code


if __name__ == "__main__":
    sys.exit(main())
