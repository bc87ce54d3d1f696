"""Runs thousands of plugins in one process as cheaply as possible, so that a benchmark measures their client.

    python -m benchmarks.plugins.cheap_server --dir D --sockets 2000 --type CSIPlugin

Each socket answers GetInfo with its own name and NotifyRegistrationStatus with success; see ``cheap_protocol``. Lines
on standard input are commands: ``create FIRST COUNT``, ``remove FIRST COUNT`` (without numbers: all of them), ``await
COUNT SECONDS`` (prints ``reached`` once that many sockets were notified, or at the deadline), ``counts``, ``report``,
``quit``. The server ends when its input ends. It prints events as JSON, one per line. Times are nanoseconds of
CLOCK_MONOTONIC (``time.monotonic_ns``), which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import sys
import time
from collections import deque
from pathlib import Path

import attrs

from plugind.benchmarks.plugins.cheap_plugin import HANGS, Plugin, ServerOptions, Tally
from plugind.benchmarks.plugins.cheap_protocol import Automaton, BadClient, Node

#: Sockets created or removed between two polls of the connections, so that the first is served before the last exists.
_BATCH = 32


class Connection:
    """An accepted connection and its state."""

    __slots__ = ("node", "plugin")

    def __init__(self, plugin: Plugin, node: Node) -> None:
        self.plugin = plugin
        self.node = node


class Server:
    """The event loop: one epoll for the listeners, the connections and the commands."""

    #: What serves each socket.
    kind: type[Plugin] = Plugin

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.plugins: dict[int, Plugin] = {}
        self.tally = Tally()
        # The plugins are created now, so that a command only needs to bind and listen.
        self._prepared = {index: self.kind(options, index, self.tally) for index in range(options.sockets)}
        self.replaced: list[Plugin] = []
        self._epoll = select.epoll()
        self._automaton = Automaton()
        self._listeners: dict[int, Plugin] = {}
        self._connections: dict[int, Connection] = {}
        self._work: deque[tuple[str, deque[int], dict[str, object]]] = deque()
        self._commands = b""
        self._awaited: tuple[int, float] | None = None
        self._running = True
        self.accepted = self.accept_errors = self.bad_clients = 0

    def run(self) -> None:
        """Serve until ``quit`` or the end of standard input."""
        os.chdir(self.options.directory)  # Relative names keep every path short enough to bind.
        self._epoll.register(0, select.EPOLLIN)
        if not self.options.wait:
            self._ask("create", range(self.options.sockets))
        _print({"event": "ready"})
        while self._running:
            # A server that sleeps costs its client a wake-up across cores for each call.
            self._turn(0 if self.options.spin or self._work else self._patience())
            if self._work:
                self._do_batch()
            if self._awaited is not None:
                self._check_awaited(*self._awaited)

    def _turn(self, timeout: float) -> None:
        connections, listeners = self._connections, self._listeners
        for descriptor, _ in self._epoll.poll(timeout, 1024):
            connection = connections.get(descriptor)
            if connection is not None:
                self._serve(descriptor, connection)
            elif descriptor in listeners:
                self._accept(listeners[descriptor])
            elif descriptor == 0:
                self._read_commands()

    def _patience(self) -> float:
        return -1 if self._awaited is None else max(0.0, self._awaited[1] - time.monotonic())

    def _check_awaited(self, count: int, deadline: float) -> None:
        if self.tally.notified >= count or time.monotonic() >= deadline:
            self._awaited = None
            _print({"event": "reached", "notified": self.tally.notified, "at_ns": time.monotonic_ns()})

    def _accept(self, plugin: Plugin) -> None:
        assert plugin.accept is not None
        try:
            descriptor, _ = plugin.accept()
        except OSError:
            if not plugin.error:  # Each turn tries again, but only one failure is counted for each socket.
                self.accept_errors += 1
                plugin.error = "its connection could not be accepted"
            return
        self.accepted += 1
        self._connections[descriptor] = Connection(plugin, self._automaton.start)
        self._epoll.register(descriptor, select.EPOLLIN)

    def _serve(self, descriptor: int, connection: Connection) -> None:
        try:
            chunk = os.read(descriptor, 16384)
            if not chunk:
                self._close(descriptor)
                return
            transition = connection.node.transitions.get(chunk) or self._automaton.learn(connection.node, chunk)
            connection.node = transition.node
            reply = transition.fixed
            if reply is None:
                reply = connection.plugin.reply(transition.parts)
            if reply:
                os.write(descriptor, reply)
        except OSError:  # The client may disconnect at any time.
            self._close(descriptor)
        except BadClient as error:
            self.bad_clients += 1
            print(f"{connection.plugin.path}: {error}", file=sys.stderr)
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        del self._connections[descriptor]
        os.close(descriptor)

    def _read_commands(self) -> None:
        chunk = os.read(0, 65536)
        self._running = bool(chunk)
        *lines, self._commands = (self._commands + chunk).split(b"\n")
        for line in lines:
            self._command(line.decode().split())

    def _command(self, words: list[str]) -> None:
        match words:
            case ["create"]:
                self._ask("create", range(self.options.sockets))
            case ["remove"]:
                self._ask("remove", list(self.plugins))
            case ["create" | "remove" as verb, first, count]:
                self._ask(verb, range(int(first), int(first) + int(count)))
            case ["await", count, seconds]:
                self._awaited = int(count), time.monotonic() + float(seconds)
            case ["counts"]:
                _print({"event": "counts"} | self._counts())
            case ["report"]:
                _print({"event": "report"} | self._counts() | {"plugins": [p.report() for p in self._all()]})
            case ["quit"]:
                self._running = False
            case _:
                _print({"event": "error", "reason": f"no such command: {' '.join(words)}"})

    def _all(self) -> list[Plugin]:
        return [*self.replaced, *self.plugins.values()]

    def _counts(self) -> dict[str, object]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        plugins = self._all()
        return {
            "sockets": sum(plugin.listener is not None for plugin in plugins),
            "accepted": self.accepted,
            "asked": sum(plugin.asked for plugin in plugins),
            "notified": sum(plugin.notified for plugin in plugins),
            "refused": sum(plugin.refused for plugin in plugins),
            "open": len(self._connections),
            "accept_errors": self.accept_errors,
            "bad_clients": self.bad_clients,
            "cpu_s": used.ru_utime + used.ru_stime,
        }

    def _ask(self, verb: str, indexes: range | list[int]) -> None:
        event: dict[str, object] = {"event": f"{verb}d", "count": len(indexes), "started_ns": time.monotonic_ns()}
        self._work.append((verb, deque(indexes), event))

    def _do_batch(self) -> None:
        verb, indexes, event = self._work[0]
        for _ in range(min(_BATCH, len(indexes))):
            if verb == "create":
                self._create(indexes.popleft())
            else:
                self._remove(indexes.popleft())
        if not indexes:
            self._work.popleft()
            _print(event | {"ended_ns": time.monotonic_ns()})

    def _create(self, index: int) -> None:
        plugin = self._prepared.pop(index, None) or self.kind(self.options, index, self.tally)
        if index in self.plugins:
            self.replaced.append(self.plugins[index])
        file = self.options.file.format(i=index)
        if "/" in file:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        listener = plugin.listen(file)
        self.plugins[index] = plugin
        if plugin.hang not in ("accept", "backlog"):
            self._listeners[listener.fileno()] = plugin
            self._epoll.register(listener, select.EPOLLIN)

    def _remove(self, index: int) -> None:
        plugin = self.plugins.get(index)
        if plugin is not None and plugin.listener is not None:
            self._listeners.pop(plugin.listener.fileno(), None)
            plugin.close()
            Path(self.options.file.format(i=index)).unlink(missing_ok=True)


def _print(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit of descriptors to ``wanted``, or up to the hard limit; return the new value."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now = max(soft, min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, hard))
    return now


def parse_options(program: str, about: str) -> ServerOptions:
    """Return the command line parser of a process with plugins."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=about.split("\n")[0])
    parser.add_argument("--dir", dest="directory", type=Path, required=True, help="the directory for the sockets")
    parser.add_argument("--sockets", type=int, default=2000)
    parser.add_argument("--type", default="CSIPlugin", help="the type of all plugins")
    parser.add_argument("--name", default="plugin-{i:05d}.example.com", help="pattern of the plugins' names")
    parser.add_argument("--file", default="plugin-{i:05d}.sock", help="pattern of the sockets' names under --dir")
    parser.add_argument("--endpoint", help="pattern of the endpoints (default: the socket's own path)")
    parser.add_argument("--version", dest="versions", action="append", default=[], help="a version; repeatable")
    parser.add_argument("--wait", action="store_true", help="create no socket before the command `create` arrives")
    parser.add_argument(
        "--existing", dest="wait", action="store_false", help="create the sockets at once (the default)"
    )
    parser.add_argument("--spin", action="store_true", help="never sleep, so that a client's cost includes no wake-ups")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--hang-fraction", type=float, default=0.0, help="how many of the sockets hang, 0 to 1")
    parser.add_argument("--hang", choices=HANGS, default="get-info", help="where they hang")
    parser.add_argument("--fail-first", type=int, default=0, help="fail this many GetInfo calls of each socket")
    arguments = vars(parser.parse_args())
    return ServerOptions(**arguments | {"versions": tuple(arguments["versions"])})


def main(program: str = "cheap_server", about: str = __doc__, server: type[Server] = Server) -> int:
    """Run the server until its standard input ends."""
    options = parse_options(program, about)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    wanted = options.sockets + 1024
    if (limit := raise_descriptor_limit(wanted)) < wanted:
        print(f"only {limit} descriptors are allowed where {wanted} are wanted", file=sys.stderr)
    options.directory.mkdir(parents=True, exist_ok=True)
    try:
        server(attrs.evolve(options, directory=options.directory.resolve())).run()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
