"""Bytecodes and messages of one registration and one removal on the simulated node, where each run gives the same ones.

Only the functions of plugind itself count. ``python -m benchmarks.counts --record`` writes the figures to
:data:`RECORDED`, and a test compares those with what it measures.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.benchmarks.tracer import ROOT, Tracer, is_own
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode

#: The figures that were recorded, by the minor version of Python: each has bytecodes of its own.
RECORDED = ROOT / "tests" / "benchmarks" / "recorded_counts.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TYPE = "Counted"
#: How many plugins are registered and removed before those that count: what is done once is done by then.
_FIRST, _COUNTED = 3, 10


@contextmanager
def _messages_counted(counts: Counter[str]) -> Iterator[None]:
    send = trio.MemorySendChannel.send_nowait

    def sending(channel: trio.MemorySendChannel[object], value: object) -> None:
        counts["messages"] += is_own(sys._getframe(1).f_code)
        send(channel, value)

    with patch.object(trio.MemorySendChannel, "send_nowait", sending):
        yield


async def _measure(counts: Counter[str]) -> dict[str, float]:
    figures: dict[str, float] = {}

    @contextmanager
    def counted(doing: str) -> Iterator[None]:
        tracer, before = Tracer(), counts["messages"]
        with tracer.tracing():
            yield
        own = sum(bytecodes for code, bytecodes in tracer.codes.items() if is_own(code))
        figures[f"{doing}: bytecodes"] = own / _COUNTED
        figures[f"{doing}: messages through channels"] = (counts["messages"] - before) / _COUNTED

    async with SimulatedNode(handlers={TYPE: FakeHandler()}) as node:

        async def register(first: int, count: int) -> list[str]:
            for number in range(first, first + count):
                node.plug(f"{number}.sock", FakePlugin(type=TYPE, name=f"{number}.example.com"))
                await trio.sleep(1)
            return [f"{number}.sock" for number in range(first, first + count)]

        async def remove(sockets: list[str]) -> None:
            for socket in sockets:
                node.directory.unlink(node.path(socket))
                await trio.sleep(1)

        await remove(await register(0, _FIRST))
        with counted("registration"):
            sockets = await register(_FIRST, _COUNTED)
        assert {node.state(socket) for socket in sockets} == {"registered"}
        with counted("removal"):
            await remove(sockets)
        await wait_all_tasks_blocked()
        assert {node.state(socket) for socket in sockets} <= {None, "gone"}
    return figures


def measure() -> dict[str, float]:
    """Return the figures of one registration and of one removal."""
    counts: Counter[str] = Counter()
    with _messages_counted(counts):
        return trio.run(_measure, counts, clock=MockClock(autojump_threshold=0))


def recorded() -> dict[str, dict[str, float]]:
    """Return the figures that were recorded, by the version of Python."""
    found: dict[str, dict[str, float]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def record() -> str:
    """Measure, and record that for this version of Python; return what was written."""
    figures = recorded() | {PYTHON: measure()}
    RECORDED.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    return RECORDED.read_text()
