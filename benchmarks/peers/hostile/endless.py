"""A stream of messages that goes on as long as the client lets it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

import attrs

from plugind.benchmarks.peers.hostile.server import Connection, HostileServer
from plugind.benchmarks.peers.hostile.speaking import Speaking
from plugind.benchmarks.plugins.cheap_protocol import frame
from plugind.protocol.wire.limits import ENDPOINT_LIMITS

_DATA = 0
#: A frame of a client that lets a stream send more; the number of the stream follows.
_WINDOW_UPDATE = b"\x00\x00\x04\x08\x00"
#: Bytes of a frame.
_PIECE = 16_000


def framed(message: bytes) -> bytes:
    """Return a message as it is sent on a stream of gRPC."""
    return struct.pack(">BI", 0, len(message)) + message


@attrs.define
class _Flow:
    """The stream, its frames, how many bytes the client allows, and what is to be sent next."""

    stream: int
    frames: Iterator[bytes]
    room: int = ENDPOINT_LIMITS.stream_window
    waiting: bytes = b""

    def allow(self, data: bytes) -> None:
        """Look for frames that allow more in what the client has sent."""
        _, *updates = data.split(_WINDOW_UPDATE + struct.pack(">I", self.stream))
        self.room += sum(int.from_bytes(update[:4], "big") for update in updates)

    def fill(self) -> None:
        """Have as much wait as the client allows."""
        pieces = list(islice(self.frames, self.room // _PIECE))
        self.room -= len(pieces) * _PIECE
        self.waiting += b"".join(pieces)


def _frames(stream: int, messages: bytes) -> Iterator[bytes]:
    while True:
        for start in range(0, len(messages), _PIECE):
            yield frame(_DATA, 0, stream, messages[start : start + _PIECE])


class EndlessStream(Speaking):
    """Sends the same messages again and again, as fast as the client's window allows."""

    def begin(self, connection: Connection, stream: int, messages: bytes) -> None:
        """Send ``messages`` without end, after what is sent now."""
        connection.state = _Flow(stream, _frames(stream, messages))

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Send messages once they are asked for, and more of them for each frame that allows it."""
        if isinstance(connection.state, _Flow):
            connection.state.allow(data)
        else:
            super().received(server, connection, data)
        if isinstance(connection.state, _Flow):
            connection.state.fill()
            self.writable(server, connection)

    def writable(self, server: HostileServer, connection: Connection) -> None:
        """Send what the socket takes."""
        flow = connection.state
        assert isinstance(flow, _Flow)
        if flow.waiting:
            flow.waiting = flow.waiting[server.send(connection, flow.waiting) :]
        server.want_room(connection, wanted=bool(flow.waiting))
