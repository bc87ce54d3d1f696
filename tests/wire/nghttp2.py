"""nghttp2's tools as processes, with bridges between TCP, which they require, and unix sockets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs
import trio

from plugind.actors.io.unix_socket import listen
from plugind.tests.end_to_end.packages import program

DEADLINE = 60.0


@attrs.frozen
class Done:
    """The exit code of a tool, and everything that it printed."""

    code: int
    out: str


async def run_tool(name: str, *arguments: str) -> Done:
    """Run a tool to its end."""
    command = [program(name), *arguments]
    with trio.fail_after(DEADLINE):
        done = await trio.run_process(command, check=False, capture_stdout=True, stderr=subprocess.STDOUT)
    return Done(done.returncode, done.stdout.decode("utf-8", "replace"))


@attrs.frozen
class Nghttpd:
    """An nghttpd that serves the files of a directory on a unix socket."""

    path: str
    process: trio.Process
    log: Path

    def logged(self) -> str:
        """Return its log of the frames that it received and sent."""
        return self.log.read_text(errors="replace")


@asynccontextmanager
async def nghttpd(directory: Path, *options: str) -> AsyncIterator[Nghttpd]:
    """Serve ``directory/files``. Names that end in ``.grpc`` have gRPC's content type; ``options`` may add trailers."""
    types = directory / "types"
    types.write_text("application/grpc grpc\n")
    log, port = directory / "log", free_port()
    command = [program("nghttpd"), "-v", "--no-tls", "-a", "127.0.0.1", "-d", str(directory / "files")]
    command += [f"--mime-types-file={types}", *options, str(port)]
    with trio.fail_after(DEADLINE), log.open("wb") as file:
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, command, stdout=file, stderr=file, check=False)
            process: trio.Process = await nursery.start(start)
            listener = trio.SocketListener(listen(str(directory / "s")).socket)
            await nursery.start(trio.serve_listeners, partial(_bridge, partial(_when_it_listens, port)), [listener])
            yield Nghttpd(str(directory / "s"), process, log)
            nursery.cancel_scope.cancel()


def free_port() -> int:
    """Return a free TCP port of this host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


async def _when_it_listens(port: int) -> trio.SocketStream:
    while True:
        try:
            return await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            # nghttpd does not report when it listens.
            await trio.sleep(0.005)


@asynccontextmanager
async def tcp_to(path: str) -> AsyncIterator[int]:
    """Forward a TCP port of this host to the unix socket at ``path``; the value is the port."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        dial = partial(trio.open_unix_socket, path)
        await nursery.start(trio.serve_listeners, partial(_bridge, dial), listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


class _Dial(Protocol):
    async def __call__(self) -> trio.SocketStream: ...


async def _bridge(dial: _Dial, near: trio.SocketStream) -> None:
    """Copy bytes in both directions until one side closes."""
    async with near, await dial() as far, trio.open_nursery() as nursery:

        async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in source:
                    await sink.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(copy, near, far)
        await copy(far, near)
