"""A TCP port that listens.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import socket

import attrs
import trio

from ...protocol.metrics_config import TcpAddress
from .accepting import OnExhausted, accept


@attrs.frozen
class TcpListener:
    """A socket that listens at ``address``, whose port is the one that it has."""

    address: TcpAddress
    socket: trio.socket.SocketType

    async def accept(self, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
        """Wait for the next connection, as :func:`.accepting.accept` does. What is sent on it leaves at once."""
        connection = await accept(self.socket, on_exhausted)
        # The connection of a client that has left already may have no such option.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Stop listening. May be repeated."""
        self.socket.close()


def listen(address: TcpAddress, *, backlog: int = 128) -> TcpListener:
    """Listen at ``address``, also while connections of an earlier process there are not over.

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
