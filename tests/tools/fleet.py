"""Runs daemons as the nodes of a fleet, watched by Debian's Prometheus and Alertmanager with the files of ``deploy``.

    python -m tests.tools.fleet                          50 nodes; the drivers of three are killed and started again
    python -m tests.tools.fleet --nodes 100 --broken 5
    python -m tests.tools.fleet --inventory              collect the inventories of 50 nodes, without these servers

It fails if an alert comes for another node than for one of these, or does not come, or does not end. It needs the
Debian packages prometheus and prometheus-alertmanager, whose servers it runs itself, in a scratch directory.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import trio

from plugind.tests.end_to_end.fleet import campaign, inventory


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50, help="how many daemons (default 50)")
    parser.add_argument("--broken", type=int, default=3, help="on how many nodes the driver is killed (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="which nodes these are (default 0)")
    parser.add_argument("--inventory", action="store_true", help="collect the inventories, and ask them")
    arguments = parser.parse_args()
    broken = random.Random(arguments.seed).sample(range(arguments.nodes), arguments.broken)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        if arguments.inventory:
            trio.run(inventory, Path(scratch), arguments.nodes, broken[0], say)
        else:
            trio.run(campaign, Path(scratch), arguments.nodes, broken, say)


if __name__ == "__main__":
    main()
