"""The plugins of a storm: one process of cheap plugins, or several processes of grpcio servers, used as one."""

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

#: The kinds of servers, and their modules.
SERVERS = {"fake": "cheap_server", "grpcio": "grpcio_server"}
#: grpcio servers in one process. Each one has threads, pipes and an epoll of its own.
GRPCIO_SHARE = 250
#: Descriptors per cheap plugin: its listener, and a connection for half of them at the same time.
_DESCRIPTORS = 1.5


@attrs.frozen
class Plugins:
    """Processes with plugins; commands go to all of them at once."""

    processes: list[ServerProcess]

    def create(self) -> None:
        """Request all sockets without waiting for them."""
        for process in self.processes:
            process.ask("create")

    def created(self) -> None:
        """Wait until all requested sockets listen."""
        for process in self.processes:
            process.event("created")

    def remove(self) -> int:
        """Remove all sockets; return when the first one was removed, in nanoseconds of the monotonic clock."""
        for process in self.processes:
            process.ask("remove")
        return min(int(cast("int", process.event("removed")["started_ns"])) for process in self.processes)

    def reached(self, share: float, patience: float) -> int:
        """Wait until ``share`` of the healthy plugins were notified, or until the deadline; return how many were."""
        deadline = time.monotonic() + patience
        for process in self.processes:
            process.ask("await", math.ceil(share * healthy(process.options)), patience)
        notified = 0
        for process in self.processes:
            notified += int(cast("int", process.event("reached")["notified"]))
        assert time.monotonic() < deadline + 60, "the plugins' own deadline passed long ago"
        return notified

    def report(self) -> list[PluginReport]:
        """Return the events of each socket."""
        return [plugin for process in self.processes for plugin in process.report()]

    def failures(self) -> int:
        """Return the number of connections that servers could not take, or whose client broke the protocol."""
        counts = [process.counts() for process in self.processes]
        return int(sum(count["accept_errors"] + count["bad_clients"] for count in counts))


def healthy(options: ServerOptions) -> int:
    """Return how many of a server's plugins do not hang."""
    return sum(not options.hangs(index) for index in range(options.sockets))


@contextmanager
def plugins(options: ServerOptions, kind: str) -> Iterator[Plugins]:
    """Start the processes; no socket exists before ``create``."""
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
    """Return the number of sockets for each process; cheap plugins get more processes if descriptors are short."""
    room = int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] / _DESCRIPTORS) if kind == "fake" else GRPCIO_SHARE
    processes = math.ceil(sockets / room)
    return [sockets // processes + (number < sockets % processes) for number in range(processes)]
