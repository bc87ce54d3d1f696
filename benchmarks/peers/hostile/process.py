"""Hostile plugins of one kind as a child process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess


@contextmanager
def hostile_peers(
    kind: str, directory: Path, peers: int, *, core: int | None = None, idle: bool = False, wait: bool = True
) -> Iterator[ServerProcess]:
    """Run ``peers`` plugins of ``kind`` for the duration of the block, once all of their sockets are there.

    With ``idle`` they only get what is left of their core, so that they do not delay good plugins by themselves.
    Without ``wait`` the block begins before there is any socket.
    """
    command = [sys.executable, "-m", "plugind.benchmarks.peers.hostile", "--kind", kind, "--dir", str(directory)]
    command += ["--peers", str(peers)] + ["--idle"] * idle + (["--core", str(core)] if core is not None else [])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = ServerProcess(ServerOptions(directory=directory, sockets=peers), process)
            if wait:
                server.event("ready")
            yield server
        finally:
            # It ends with its input; one that floods may be slow to read that.
            process.kill()
