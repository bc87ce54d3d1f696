"""Kinds that never say a word that makes sense."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from plugind.benchmarks.peers.hostile.server import BACKLOG, Connection, HostileServer, Kind
from plugind.benchmarks.plugins.cheap_protocol import SETTINGS, frame

_SETTINGS, _GOAWAY = 4, 7


class Silent(Kind):
    """Accepts each connection, and never answers."""


class FullBacklog(Kind):
    """Never accepts, and fills its own backlog, so that connect() fails with EAGAIN."""

    accepts = False

    def appear(self, server: HostileServer, index: int) -> None:
        """Listen without any place, and take the one that there is."""
        peer = server.listen(index, backlog=0)
        while True:
            filler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if filler.connect_ex(peer.path):
                filler.close()
                return
            peer.fillers.append(filler)


class Closing(Kind):
    """Accepts each connection and closes it at once."""

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Close it."""
        server.close(connection)


class Unlistened(Kind):
    """Leaves sockets behind on which nobody listens."""

    accepts = False

    def appear(self, server: HostileServer, index: int) -> None:
        """Bind, and close."""
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(server.file(index))


class Garbage(Kind):
    """Sends random bytes to each client."""

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Send them, as far as there is room."""
        server.send(connection, os.urandom(16384))


class NoWindow(Kind):
    """Sends SETTINGS that leave no room for any request."""

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Set the window of each stream to 0."""
        server.send(connection, frame(_SETTINGS, 0, 0, b"\x00\x04" + bytes(4)))


class Goaway(Kind):
    """Says that it takes no calls, and keeps the connection open."""

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Send GOAWAY."""
        server.send(connection, SETTINGS + frame(_GOAWAY, 0, 0, bytes(8)))


class Trickle(Kind):
    """Sends a byte of an unknown frame to each client ten times a second."""

    rate = 10

    def connected(self, server: HostileServer, connection: Connection) -> None:
        """Begin."""
        server.send(connection, SETTINGS)

    def act(self, server: HostileServer, number: int) -> None:
        """Send the next byte of a frame of 16 KiB, which never ends."""
        header = frame(0xAA, 0, 0, bytes(16384))[:9]
        for connection in server.connections():
            at = connection.state if isinstance(connection.state, int) else 0
            connection.state = at + server.send(connection, header[at : at + 1] or b"x")


class OddNames(Kind):
    """Has file names of 200 bytes, full of line breaks, escapes and bytes that are no text."""

    def appear(self, server: HostileServer, index: int) -> None:
        """Bind under a short name, since longer ones cannot be bound, and rename."""
        peer = server.listen(index, backlog=BACKLOG)
        odd = b"\n\x1b[31m\xff level=error msg=".ljust(180, b"\\") + peer.path.encode()
        Path(peer.path).rename(os.fsdecode(odd))
        peer.path = os.fsdecode(odd)
