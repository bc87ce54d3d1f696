"""Makes one measurement of one client in a separate process, and prints one line of JSON.

``cpu_s`` is the user and system time of the whole process around the work, without imports and a warm-up.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import cast

from plugind.benchmarks.peers.wire_clients import CLIENTS, Client, Target, Work
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit

_WARM_UP = 128


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _timed(client: Client, work: Work, concurrency: int) -> dict[str, float]:
    conversations = len(work)
    cpu, wall = _cpu(), time.perf_counter()
    client.converse(work, concurrency)
    return {
        "conversations": conversations,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": _cpu() - cpu,
    }


def _measure(client: Client, targets: list[Target], concurrency: int, seconds: float) -> dict[str, float]:
    """Use the sockets in turn until ``seconds`` have passed, and each at least once."""
    warm = _timed(client, Work(targets[:_WARM_UP]), concurrency)
    passes = max(1, math.ceil(seconds / (warm["wall_s"] / warm["conversations"] * len(targets))))
    gc.collect()
    measured = _timed(client, Work(targets * passes), concurrency)
    return measured | {"before": warm["conversations"]}


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def _hold(client: Client, targets: list[Target]) -> dict[str, float]:
    """Return the KiB of resident memory for each open idle channel, not counting the growth by the first few."""
    client.hold(targets[:_WARM_UP], _resident_kib)
    gc.collect()
    few = min(len(targets) // 10, _WARM_UP)
    before = client.hold(targets[:few], _resident_kib)
    gc.collect()
    return {"rss_per_idle_channel_kib": (client.hold(targets, _resident_kib) - before) / (len(targets) - few)}


def main() -> int:
    """Measure as the options require. If the client's package is missing, print ``missing`` and return 3."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--sockets", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--core", type=int)
    parser.add_argument("--hold", action="store_true", help="measure memory instead")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    raise_descriptor_limit(arguments.sockets * 4 + 1024)
    try:
        module = importlib.import_module(f"plugind.benchmarks.peers.wire_clients.{CLIENTS[arguments.client]}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return 3
    client = cast(Client, module)
    options = ServerOptions(directory=arguments.dir)
    targets = [Target(str(options.path(i)), options.plugin_name(i)) for i in range(arguments.sockets)]
    if arguments.hold:
        print(json.dumps(_hold(client, targets)))
    else:
        print(json.dumps(_measure(client, targets, arguments.concurrency, arguments.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
