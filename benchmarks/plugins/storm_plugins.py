"""The plugins of a storm: one process of cheap ones, or several of grpcio's servers, commanded as one."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

import attrs

from plugind.benchmarks.plugins.cheap_plugin import PluginReport, ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server

SERVERS = {"fake": "cheap_server", "grpcio": "grpcio_server"}
"""What may serve, and the module that does."""
GRPCIO_SHARE = 250
"""Servers in one process of grpcio's: each has threads, pipes and an epoll of its own."""
_DESCRIPTORS = 1.5
"""Descriptors that a cheap plugin may need: its listener, and half of them a connection at the same time."""


@attrs.frozen
class Plugins:
    """Processes with plugins; commands go to all of them at once."""

    processes: list[ServerProcess]

    def create(self) -> None:
        """Asks for all sockets, and does not wait for them."""
        for process in self.processes:
            process.ask("create")

    def created(self) -> None:
        """Waits until all sockets that were asked for listen."""
        for process in self.processes:
            process.event("created")

    def remove(self) -> int:
        """Removes all sockets; returns when the first went, in nanoseconds of the monotonic clock."""
        for process in self.processes:
            process.ask("remove")
        return min(int(cast("int", process.event("removed")["started_ns"])) for process in self.processes)

    def reached(self, share: float, patience: float) -> int:
        """Waits until that share of the healthy plugins was notified, or so many seconds; returns how many were."""
        deadline = time.monotonic() + patience
        for process in self.processes:
            process.ask("await", math.ceil(share * healthy(process.options)), patience)
        notified = 0
        for process in self.processes:
            notified += int(cast("int", process.event("reached")["notified"]))
        assert time.monotonic() < deadline + 60, "the plugins' own deadline passed long ago"
        return notified

    def report(self) -> list[PluginReport]:
        """What each socket saw."""
        return [plugin for process in self.processes for plugin in process.report()]

    def failures(self) -> int:
        """Connections that the servers could not take, or whose client broke the protocol."""
        counts = [process.counts() for process in self.processes]
        return int(sum(count["accept_errors"] + count["bad_clients"] for count in counts))


def healthy(options: ServerOptions) -> int:
    """How many of a server's plugins do not hang."""
    return sum(not options.hangs(index) for index in range(options.sockets))


@contextmanager
def plugins(options: ServerOptions, kind: str) -> Iterator[Plugins]:
    """Starts the processes; no socket is there before `create`."""
    parts = shares(options.sockets, kind)
    with ExitStack() as stack:
        processes = []
        for number, sockets in enumerate(parts):
            prefix = f"p{number}-" if len(parts) > 1 else ""
            own = attrs.evolve(
                options, sockets=sockets, wait=True, name=prefix + options.name, file=prefix + options.file
            )
            processes.append(stack.enter_context(cheap_server(own, SERVERS[kind])))
        yield Plugins(processes)


def shares(sockets: int, kind: str) -> list[int]:
    """How many of the sockets each process serves: cheap ones get another where descriptors would not do."""
    room = int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] / _DESCRIPTORS) if kind == "fake" else GRPCIO_SHARE
    processes = math.ceil(sockets / room)
    return [sockets // processes + (number < sockets % processes) for number in range(processes)]
