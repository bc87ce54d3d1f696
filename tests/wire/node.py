"""Programs on @grpc/grpc-js as processes: orders go in and answers come out as lines of JSON."""

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
DEADLINE = 20.0


@attrs.frozen
class Node:
    """A program that runs, for the tests of one module."""

    process: subprocess.Popen[bytes]

    def order(self, what: object) -> None:
        """Tell it what to do."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, object]:
        """The next that it says; waits in the thread that asks."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, "the program ended"
        answer: dict[str, object] = json.loads(said)
        return answer

    async def said(self) -> dict[str, object]:
        """The next that it says."""
        with trio.fail_after(DEADLINE):
            return await trio.to_thread.run_sync(self.line, abandon_on_cancel=True)

    async def result(self, *what: object) -> object:
        """Have it do one thing, and return what came of it."""
        self.order(what)
        return (await self.said())["result"]


@contextlib.contextmanager
def node(program: str, *arguments: str) -> Iterator[Node]:
    """Run ``program``; skips the test where npm or node is not there."""
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
