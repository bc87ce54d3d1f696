"""A TCP port that listens."""

from __future__ import annotations

import contextlib
import math
import socket
from typing import Final

import attrs
import trio

from ...protocol.status.metrics_config import TcpAddress
from ...protocol.values import record, value
from .accepting import OnExhausted, accept

#: Connections accepted in a second, and at once after a pause. Each costs a fraction of a millisecond of the loop.
RATE: Final = 250.0
BURST: Final = 64
#: Connections that wait in the kernel: the last one for four seconds, and Prometheus waits ten.
BACKLOG: Final = 1024


@record
class RateLimit:
    """Allows ``rate`` turns in a second, and up to ``burst`` at once after a pause."""

    rate: float
    burst: int
    _used: float = attrs.field(init=False, default=-math.inf)

    async def turn(self) -> None:
        """Wait for the next turn."""
        now = trio.current_time()
        self._used = max(self._used, now - self.burst / self.rate) + 1 / self.rate
        if self._used > now:
            await trio.sleep_until(self._used)


@value
class TcpListener:
    """A socket that listens at ``address``, which has the actual port."""

    address: TcpAddress
    socket: trio.socket.SocketType
    _pace: RateLimit = attrs.field(init=False, factory=lambda: RateLimit(RATE, BURST))

    async def accept(self, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
        """Wait for the next connection, as :func:`.accepting.accept` does, at most :data:`RATE` times a second."""
        await self._pace.turn()
        connection = await accept(self.socket, on_exhausted)
        # Send data at once. The connection of a client that has left may not have this option.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Stop listening. May be repeated."""
        self.socket.close()


def listen(address: TcpAddress, *, backlog: int = BACKLOG) -> TcpListener:
    """Listen at ``address``, even while connections of an earlier process are left.

    Raises:
      OSError: as bind(2) and listen(2) do.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with contextlib.ExitStack() as undo:
        made = undo.enter_context(
            socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        )
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(backlog)
        listener = TcpListener(TcpAddress(address.host, made.getsockname()[1]), trio.socket.from_stdlib_socket(made))
        undo.pop_all()
        return listener
