"""Processes that own leases: they do nothing, until all are killed at once.

    python -m benchmarks.plugins.owners 1000

It prints their pids as a line of JSON. With a line on its standard input it kills all of them, and prints when that was
done, by the monotonic clock. It ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main(number: int) -> None:
    """Fork, print, wait, kill."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps them.
    pids = []
    for _ in range(number):
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            while True:
                signal.pause()
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    try:
        if sys.stdin.readline():
            _kill(pids)
            pids = []
            print(json.dumps(time.monotonic()), flush=True)
    finally:
        _kill(pids)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
