"""A service manager of the test's own: the socket of NOTIFY_SOCKET, and what a daemon sends there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from plugind.tests.end_to_end.processes import DEADLINE


@attrs.define
class ServiceManager:
    """What was sent to ``NOTIFY_SOCKET``, by name and value."""

    _socket: trio.socket.SocketType
    environment: dict[str, str]
    #: Every message so far, each with its assignments.
    messages: list[dict[str, str]] = attrs.field(factory=list)

    async def next(self) -> dict[str, str]:
        """Return the assignments of the next message."""
        with trio.fail_after(DEADLINE):
            return await self._next()

    async def _next(self) -> dict[str, str]:
        message = (await self._socket.recv(4096)).decode()
        assignments = dict(line.split("=", 1) for line in message.splitlines())
        self.messages.append(assignments)
        return assignments

    async def until(self, name: str, value: str | None = None) -> dict[str, str]:
        """Read messages until one assigns ``name``, this ``value`` if it is given; return that one."""
        # Messages of the watchdog come for ever.
        with trio.fail_after(DEADLINE):
            while True:
                message = await self._next()
                if name in message and value in (None, message[name]):
                    return message


@contextmanager
def service_manager(directory: Path, *, watchdog: float | None = None) -> Iterator[ServiceManager]:
    """Listen at ``directory / "notify"``; ``watchdog`` is the time of its watchdog in seconds."""
    environment = {"NOTIFY_SOCKET": str(directory / "notify")}
    if watchdog is not None:
        environment["WATCHDOG_USEC"] = str(round(watchdog * 1e6))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(environment["NOTIFY_SOCKET"])
        yield ServiceManager(trio.socket.from_stdlib_socket(manager), environment)
