"""Frame budgets: limits of the frames that a client can send besides calls, counted before they are parsed.

HTTP/2 allows a peer to send any number of frames that cost it nothing, but cost the server a parse, an answer or a
stream that is set up and torn down: PING, SETTINGS, PRIORITY, empty DATA, unknown types, resets. h2 limits none of them
(faults 54 to 60). :class:`FrameBudget` reads only the nine-byte frame headers, so it recognizes a flood before the
frames are parsed.

A budget is a bucket of tokens for each kind. It is full at first and refilled by time, so years of keep-alive are
allowed and ten thousand PINGs in one write are not. Nothing here waits or reads a clock: the time is an argument.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

#: RFC 9113 section 3.4; the first frame follows it.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = 9


class FrameKind(enum.Enum):
    """The kinds of frames that are counted, each in its own bucket."""

    PING = "PING"
    SETTINGS = "SETTINGS"
    EMPTY_DATA = "empty DATA"
    FRAGMENT = "tiny DATA"
    PRIORITY = "PRIORITY"
    UNKNOWN = "unknown"
    RESET = "RST_STREAM"
    GOAWAY = "GOAWAY"
    WINDOW_UPDATE = "WINDOW_UPDATE"


@attrs.frozen
class Allowance:
    """How many frames of one kind can come at once (``burst``), and how many per second in the long run (``rate``)."""

    burst: float
    rate: float


#: Well above what grpc-go, grpc-core, grpc-js and grpclib send, which probe bandwidth with PINGs and cancel calls in
#: bulk; low enough that one client does not occupy a core.
DEFAULT_ALLOWANCES: Mapping[FrameKind, Allowance] = {
    FrameKind.PING: Allowance(200, 20),
    FrameKind.SETTINGS: Allowance(32, 1),
    FrameKind.EMPTY_DATA: Allowance(200, 50),
    FrameKind.FRAGMENT: Allowance(1000, 100),
    FrameKind.PRIORITY: Allowance(100, 10),
    FrameKind.UNKNOWN: Allowance(100, 10),
    FrameKind.RESET: Allowance(400, 50),
    # A client that leaves gracefully sends two.
    FrameKind.GOAWAY: Allowance(8, 0.1),
    FrameKind.WINDOW_UPDATE: Allowance(1000, 100),
}


class FloodError(Exception):
    """A client sent more frames of one kind than its budget allows; the connection ends with ENHANCE_YOUR_CALM."""

    def __init__(self, kind: FrameKind) -> None:
        super().__init__(f"more {kind.value} frames than the budget allows")
        self.kind = kind


class OverlongFrameError(Exception):
    """A frame announces more bytes than the limit; it is refused before its bytes are kept (fault 50)."""


class FrameBudget:
    """Walks the frame headers of one connection's inbound bytes and charges each frame to its bucket."""

    def __init__(self, allowances: Mapping[FrameKind, Allowance], *, max_frame_size: int, now: float) -> None:
        self._allowances = allowances
        self._max_frame_size = max_frame_size
        #: The tokens in the buckets that are not full.
        self._tokens: dict[FrameKind, float] = {}
        self._refilled_at = now
        self._skip = len(PREFACE)
        self._partial = b""

    def feed(self, data: bytes | bytearray, now: float) -> None:
        """Count the frames that begin in ``data``, which arrived at ``now``. Must not be called again after an error.

        Raises:
          FloodError: if there are more frames of a kind than its budget allows.
          OverlongFrameError: if a frame is too long.
        """
        self._refill(now)
        at = 0
        while True:
            step = min(self._skip, len(data) - at)
            self._skip -= step
            at += step
            need = _HEADER - len(self._partial)
            header = self._partial + bytes(data[at : at + need])
            at += need
            if len(header) < _HEADER:
                self._partial = header
                return
            self._partial = b""
            self._skip = self._charge_header(header)

    def charge(self, kind: FrameKind) -> None:
        """Take one token of ``kind``.

        Raises:
          FloodError: if there is none left.
        """
        left = self._tokens.get(kind, self._allowances[kind].burst) - 1
        self._tokens[kind] = left
        if left < 0:
            raise FloodError(kind)

    def credit(self, kind: FrameKind) -> None:
        """Return one token of ``kind``, up to the burst, because the client had a valid reason for such a frame."""
        if kind in self._tokens:
            self._set(kind, self._tokens[kind] + 1)

    def _refill(self, now: float) -> None:
        elapsed, self._refilled_at = now - self._refilled_at, now
        for kind, tokens in tuple(self._tokens.items()):
            self._set(kind, tokens + elapsed * self._allowances[kind].rate)

    def _set(self, kind: FrameKind, tokens: float) -> None:
        if tokens < self._allowances[kind].burst:
            self._tokens[kind] = tokens
        else:
            del self._tokens[kind]

    def _charge_header(self, header: bytes) -> int:
        length = int.from_bytes(header[:3], "big")
        if length > self._max_frame_size:
            raise OverlongFrameError(f"a frame announces {length} bytes, more than {self._max_frame_size}")
        kind = _kind(header[3], header[4], length)
        if kind is not None:
            self.charge(kind)
        return length


#: The frame types of RFC 9113 section 6. None marks the types that are limited elsewhere: DATA with content by flow
#: control, HEADERS by the number of calls, CONTINUATION by h2, and PUSH_PROMISE, which ends the connection.
_DATA = 0x0
_END_STREAM = 0x1
_KINDS: Mapping[int, FrameKind | None] = {
    _DATA: None,
    0x1: None,
    0x2: FrameKind.PRIORITY,
    0x3: FrameKind.RESET,
    0x4: FrameKind.SETTINGS,
    0x5: None,
    0x6: FrameKind.PING,
    0x7: FrameKind.GOAWAY,
    0x8: FrameKind.WINDOW_UPDATE,
    0x9: None,
}


def _kind(frame_type: int, flags: int, length: int) -> FrameKind | None:
    """Return the bucket that a frame is charged to; None if it is not counted."""
    if frame_type == _DATA and length == 0 and not flags & _END_STREAM:
        return FrameKind.EMPTY_DATA
    return _KINDS.get(frame_type, FrameKind.UNKNOWN)


@attrs.frozen
class ServerLimits:
    """The limits of one client; sizes in bytes, times in seconds."""

    max_message: int = 4 * 1024 * 1024
    max_header_list: int = 65536
    #: Concurrent calls on one connection; further ones are refused with REFUSED_STREAM, which clients retry.
    max_streams: int = 100
    #: Concurrent connections on one listener; further ones are closed at once.
    max_connections: int = 512
    #: Concurrent connections of one process that has a pid in our namespace; None for no limit.
    max_connections_per_process: int | None = None
    #: From the connection to the client's preface and SETTINGS, in total.
    handshake_timeout: float = 10.0
    #: Without a call in progress and without a PING. gRPC clients reconnect by themselves.
    idle_timeout: float = 3600.0
    #: Until a request message is complete.
    receive_timeout: float = 30.0
    #: Until the client's windows have taken one message.
    send_timeout: float = 60.0
    #: Until the client has read what is written to it.
    write_timeout: float = 30.0
    #: For the GOAWAY of a connection that ends.
    farewell: float = 1.0
    #: For calls in progress when the server stops.
    grace: float = 5.0
    allowances: Mapping[FrameKind, Allowance] = attrs.field(factory=lambda: DEFAULT_ALLOWANCES)
