"""Programs on @grpc/grpc-js as processes. They read orders and write answers, each as a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio

from plugind.tests.end_to_end.foreign import GRPC_JS, install_grpc_js

PROGRAMS = Path(__file__).parent / "grpc_js"
DEADLINE = 60.0


@attrs.frozen
class Node:
    """A running program."""

    process: subprocess.Popen[bytes]

    def order(self, what: object) -> None:
        """Send an order to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, object]:
        """Return the next answer of the program; block the calling thread until it comes."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "the program ended"
        line: dict[str, object] = json.loads(text)
        return line

    async def answer(self) -> dict[str, object]:
        """Return the next answer of the program."""
        with trio.fail_after(DEADLINE):
            return await trio.to_thread.run_sync(self.line, abandon_on_cancel=True)


@contextlib.contextmanager
def node(program: str, *arguments: str) -> Iterator[Node]:
    """Run ``program``; skip the test if npm or node is missing."""
    install_grpc_js()
    process = subprocess.Popen(
        ["node", str(PROGRAMS / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NODE_PATH": str(GRPC_JS / "node_modules")},
    )
    try:
        yield Node(process)
    finally:
        process.kill()
        process.communicate()
