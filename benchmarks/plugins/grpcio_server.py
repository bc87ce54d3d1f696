"""Runs many plugins that are grpcio servers in one process, so that the daemon talks to code that we did not write.

    python -m benchmarks.plugins.grpcio_server --dir D --sockets 200

Options, commands and answers are those of ``cheap_server``, except that these plugins cannot hang before they accept.
Each server costs some hundred KiB and a handful of descriptors, so a storm spreads them over several processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs
import grpc
import grpc.aio

from plugind.benchmarks.plugins.cheap_plugin import Plugin, ServerOptions, Tally
from plugind.benchmarks.plugins.cheap_protocol import Notification
from plugind.benchmarks.plugins.cheap_server import parse_options, raise_descriptor_limit
from plugind.protocol.proto.pluginregistration_pb2 import RegistrationStatus

_FOREVER = 3600.0


class GrpcioPlugin:
    """One plugin with its server."""

    def __init__(self, options: ServerOptions, index: int, tally: Tally, changed: Callable[[], None]) -> None:
        self.plugin = Plugin(options, index, tally)
        self._changed = changed
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(self._notify),
        }
        service = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self.plugin.path}")
        # grpcio binds and listens in one step when the port is added.
        self.plugin.bound_ns = self.plugin.listening_ns = time.monotonic_ns()
        await self._server.start()

    async def stop(self) -> None:
        """Stop at once; grpcio removes the socket's file."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _get_info(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        plugin = self.plugin
        plugin.asked += 1
        plugin.asked_ns = plugin.asked_ns or time.monotonic_ns()
        if plugin.hang == "get-info":
            await asyncio.sleep(_FOREVER)
        if plugin.failures_left:
            plugin.failures_left -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready yet")
        return plugin.message

    async def _notify(self, request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self.plugin.hang == "notify":
            await asyncio.sleep(_FOREVER)
        status = RegistrationStatus.FromString(request)
        self.plugin.note(Notification(0, registered=status.plugin_registered, error=status.error))
        self._changed()
        return b""


class Server:
    """Carries out the commands, one after the other."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._tally = Tally()
        self._changed = asyncio.Event()
        self._plugins = [GrpcioPlugin(options, i, self._tally, self._changed.set) for i in range(options.sockets)]
        self._lines: deque[list[str]] = deque()
        self._arrived = asyncio.Event()
        self._unfinished = b""
        self._running = True
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until ``quit`` or the end of standard input."""
        loop = asyncio.get_running_loop()
        loop.add_reader(0, self._read)
        if not self._options.wait:
            await self._create()
        _print({"event": "ready"})
        while self._running:
            while self._lines:
                await self._command(self._lines.popleft())
            self._arrived.clear()
            if self._running:
                await self._arrived.wait()

    def _read(self) -> None:
        chunk = os.read(0, 65536)
        self._running = bool(chunk)
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        self._lines += [line.decode().split() for line in lines]
        self._arrived.set()

    async def _command(self, words: list[str]) -> None:
        match words:
            case ["create"]:
                await self._create()
            case ["remove"]:
                started_ns = time.monotonic_ns()
                await asyncio.gather(*(plugin.stop() for plugin in self._plugins))
                _print({"event": "removed", "started_ns": started_ns, "ended_ns": time.monotonic_ns()})
            case ["await", count, seconds]:
                task = asyncio.create_task(self._await(int(count), float(seconds)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case ["counts"]:
                _print({"event": "counts"} | self._counts())
            case ["report"]:
                plugins = [plugin.plugin.report() for plugin in self._plugins]
                _print({"event": "report"} | self._counts() | {"plugins": plugins})
            case ["quit"]:
                self._running = False
            case _:
                _print({"event": "error", "reason": f"no such command: {' '.join(words)}"})

    async def _create(self) -> None:
        started_ns = time.monotonic_ns()
        for plugin in self._plugins:
            await plugin.start()
        _print({"event": "created", "started_ns": started_ns, "ended_ns": time.monotonic_ns()})

    async def _await(self, count: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self._tally.notified < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass  # The count so far is the answer.
        _print({"event": "reached", "notified": self._tally.notified, "at_ns": time.monotonic_ns()})

    def _counts(self) -> dict[str, object]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        plugins = [plugin.plugin for plugin in self._plugins]
        return {
            "asked": sum(plugin.asked for plugin in plugins),
            "notified": sum(plugin.notified for plugin in plugins),
            "refused": sum(plugin.refused for plugin in plugins),
            "accept_errors": 0,
            "bad_clients": 0,
            "cpu_s": used.ru_utime + used.ru_stime,
        }


def _print(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def main() -> int:
    """Run the server until its standard input ends."""
    options = parse_options("grpcio_server", __doc__)
    if options.hang in ("accept", "backlog") and options.hang_fraction:
        print("grpcio's servers cannot hang before they accept: use --hang get-info or notify", file=sys.stderr)
        return 2
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    raise_descriptor_limit(1 << 20)
    options.directory.mkdir(parents=True, exist_ok=True)
    resolved = attrs.evolve(options, directory=Path(options.directory).resolve())

    async def serve() -> None:
        await Server(resolved).run()

    asyncio.run(serve())
    sys.stdout.flush()
    # Stopping thousands of servers properly would take time without any use.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
