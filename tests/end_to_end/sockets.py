"""Sockets for tests, with running plugins or without a listener."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.testing import FakePlugin
from plugind.tests.end_to_end.foreign import GRPCLIB
from plugind.tests.end_to_end.processes import Daemon, PluginProcess, plugin_process

#: The names of plugins that use grpclib; they do not depend on the names of their sockets.
NAME = "grpclib.example.com/n{}"


def bound(path: Path) -> socket.socket:
    """Return a socket that is bound and does not listen."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def stale(*paths: Path) -> None:
    """Create sockets without a listener, as a killed process leaves them."""
    for path in paths:
        bound(path).close()


@asynccontextmanager
async def plugins_at(*paths: Path, name: str = NAME) -> AsyncIterator[PluginProcess]:
    """Run a process with a device plugin at each of ``paths``, ready to answer."""
    pairs = [text for index, path in enumerate(paths) for text in (str(path), name.format(index))]
    command = [*GRPCLIB.command(paths[0], "", paths[0])[:2], *pairs]
    async with plugin_process(command) as plugin:
        await plugin.line(listening=[str(path) for path in paths])
        yield plugin


async def place(shared: Daemon, name: str) -> Path:
    """Return a directory in the shared root for one test."""
    await shared.ready()
    directory = shared.root / name
    directory.mkdir()
    return directory


@asynccontextmanager
async def serving(path: Path, plugin: FakePlugin) -> AsyncIterator[None]:
    """Serve a plugin of the test kit from this process."""
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_fake, FakeSpec(str(path), plugin), on_call=lambda _: None))
        yield
        nursery.cancel_scope.cancel()
