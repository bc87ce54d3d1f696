"""Registers cheap plugins with a simulated node in this process, and prints the cost as one line of JSON.

    python -m benchmarks.peers.simulated_node 100000

All is in this process: the node, its record of what each plugin was, the plugins, and the streams between them. Nothing
takes virtual time, so no deadline passes however slow the machine is. The garbage collector is set as that of a daemon.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import sys
import time
from pathlib import Path

import trio
import trio.testing

from plugind import Config, Root
from plugind.actors.console.run import tune_gc
from plugind.actors.io.unix_socket import Credentials
from plugind.actors.simulation.network import Listener
from plugind.actors.simulation.streams import ServerEnd
from plugind.benchmarks.peers.judging import handlers
from plugind.benchmarks.plugins.cheap_plugin import Plugin, ServerOptions, Tally
from plugind.benchmarks.plugins.cheap_protocol import Automaton
from plugind.testing import SimulatedNode

#: The most sockets of one root that a node keeps: half of all that it may know.
IN_ROOT = 50_000
#: Plugins that appear at once. More changes than a few thousand must not wait for one reader.
TOGETHER = 200
_PID = 1000


def resident_kib() -> float:
    """Return the resident memory of this process, once what nobody uses is freed."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


class CheapPlugins:
    """One simulated process with many plugins, which speak as those of ``benchmarks.plugins.cheap_server``."""

    def __init__(self, node: SimulatedNode, nursery: trio.Nursery) -> None:
        self.tally = Tally()
        self._node = node
        self._nursery = nursery
        self._options = [ServerOptions(directory=Path(root.path)) for root in node.config.roots]
        self._automaton = Automaton()
        self._process = node.network.start(Credentials(_PID, 0, 0))

    def create(self, index: int) -> None:
        """Bind a socket, and listen on it."""
        plugin = Plugin(self._options[index // IN_ROOT], index, self.tally)

        async def serve(stream: ServerEnd) -> None:
            at = self._automaton.start
            while chunk := bytes(await stream.receive_some()):
                step = at.transitions.get(chunk) or self._automaton.learn(at, chunk)
                at = step.node
                if reply := plugin.reply(step.parts):
                    await stream.send_all(reply)

        listener = Listener(lambda: serve, self._process)
        self._node.directory.bind(plugin.path)
        self._node.network.listen(plugin.path, listener)
        self._nursery.start_soon(listener.run)


async def register(count: int) -> dict[str, float]:
    """Let so many plugins appear, and return what they cost once all are registered.

    Raises:
      RuntimeError: if one is not registered.
    """
    roots = tuple(Root(f"/plugins-{number}") for number in range(math.ceil(count / IN_ROOT)))
    async with SimulatedNode(Config(roots=roots), handlers=handlers()) as node, trio.open_nursery() as nursery:
        await node.settled()
        tune_gc()
        plugins = CheapPlugins(node, nursery)
        empty = resident_kib()
        cpu, wall = time.process_time(), time.perf_counter()
        for first in range(0, count, TOGETHER):
            for index in range(first, min(first + TOGETHER, count)):
                plugins.create(index)
            await trio.testing.wait_all_tasks_blocked()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        registered = sum(status.state == "registered" for status in node.statuses.values())
        if (registered, plugins.tally.notified) != (count, count):
            raise RuntimeError(f"{registered} of {count} plugins were registered, {plugins.tally.notified} notified")
        kib = resident_kib() - empty
        nursery.cancel_scope.cancel()
    return {"registered": count, "cpu_s": cpu, "wall_s": wall, "kib": kib}


def main() -> int:
    """Measure and print."""
    figures = trio.run(register, int(sys.argv[1]), clock=trio.testing.MockClock(autojump_threshold=0))
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
