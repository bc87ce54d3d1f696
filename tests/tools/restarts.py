"""Restarts a daemon many times beside a plugin that dials it at once: ``python -m tests.tools.restarts [TIMES]``.

The plugin is another process. It watches for IN_CREATE of ``kubelet.sock`` in the directory of device plugins, as real
ones do, and dials as soon as it has seen one. A dial that is refused would cost a real plugin half a minute. Each
daemon is killed once it was dialed, so that the next one finds the sockets of the one before. The command prints how
many dials failed, and the exit code is 0 if none did.

``python -m tests.tools.restarts --watch DIRECTORY TIMES`` is that plugin alone: it prints ``watching``, and for each
dial ``accepted`` or the error.
"""

from __future__ import annotations

import argparse
import collections
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from inotify_simple import INotify, flags

from plugind.protocol.discovery.device_directory import KUBELET_SOCKET

#: What the plugin prints of a dial that succeeded.
ACCEPTED = "accepted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="restarts", description="Restart a daemon beside a plugin that dials at once."
    )
    parser.add_argument("times", nargs="?", type=int, default=200, metavar="TIMES", help="how many restarts (200)")
    parser.add_argument("--watch", metavar="DIRECTORY", help="be the plugin, and dial so many times")
    options = parser.parse_args(arguments)
    if options.watch is not None:
        watch(options.watch, options.times)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        said = restart(Path(directory), options.times)
    print(f"{options.times} restarts: {', '.join(f'{count} {what}' for what, count in said.items())}")
    return 0 if said.keys() == {ACCEPTED} else 1


def watch(directory: str, times: int) -> None:
    """Dial each ``kubelet.sock`` that is created, and print what became of that."""
    with INotify() as events:
        events.add_watch(directory, flags.CREATE)
        print("watching", flush=True)
        while times:
            for event in events.read():
                if event.name == KUBELET_SOCKET:
                    times -= 1
                    print(_dial(directory), flush=True)


def _dial(directory: str) -> str:
    with socket.socket(socket.AF_UNIX) as plugin:
        try:
            plugin.connect(os.path.join(directory, KUBELET_SOCKET))
        except OSError as error:
            return str(error)
    return ACCEPTED


@contextmanager
def watching(directory: Path, times: int) -> Iterator[IO[str]]:
    """Run the plugin in a process of its own; yield its output, a line for each dial."""
    command = [sys.executable, "-m", "plugind.tests.tools.restarts", "--watch", str(directory), str(times)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as plugin:
        assert plugin.stdout is not None
        try:
            assert plugin.stdout.readline() == "watching\n"
            yield plugin.stdout
        finally:
            plugin.kill()


def restart(directory: Path, times: int) -> collections.Counter[str]:
    """Start a daemon so many times; return what became of the dials."""
    plugins = directory / "device-plugins"
    plugins.mkdir(0o755)
    said: collections.Counter[str] = collections.Counter()
    run = [
        sys.executable,
        "-m",
        "plugind",
        "run",
        "--root",
        str(directory / "root"),
        "--state",
        str(directory / "state"),
    ]
    run += ["--status", str(directory / "status.sock"), f"--device-plugins={plugins}", "--log-level", "error"]
    with watching(plugins, times) as dials:
        for _ in range(times):
            with subprocess.Popen(run) as node:
                while not select.select([dials], [], [], 1.0)[0]:
                    assert node.poll() is None, "the daemon ended before it was dialed"
                said[dials.readline().strip()] += 1
                node.kill()
    return said


if __name__ == "__main__":
    sys.exit(main())
