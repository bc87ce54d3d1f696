"""Hostile plugins of one kind, in one process.

python -m benchmarks.peers.hostile --kind silent --dir D --peers 128
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.peers.hostile.server import HostileServer
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit


def main() -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=tuple(KINDS), required=True, help="what the plugins do")
    parser.add_argument("--dir", dest="directory", type=Path, required=True, help="the directory for the sockets")
    parser.add_argument("--peers", type=int, default=128, help="how many plugins (default 128)")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--idle", action="store_true", help="run only when nothing else wants the core")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    if arguments.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    raise_descriptor_limit(1 << 20)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    kind = KINDS[arguments.kind]()
    try:
        HostileServer(arguments.kind, kind, arguments.directory.resolve(), arguments.peers).run()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
