"""What flooders send after a call: bytes that cost their reader far more than their writer.

Everything is built once and shared by all connections. The bytes obey flow control, as a reader would otherwise end the
connection at once.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import cycle, islice

import attrs
import hpack

from plugind.benchmarks.plugins.cheap_protocol import SETTINGS, frame, plugin_info, success

_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 6, 8, 9
_END_HEADERS = 0x4
_INITIAL_WINDOW_SIZE = 4
_SETTING = struct.Struct(">HL")
_FRAME = struct.Struct(">HBBBL")
#: The largest frame that a client must take (RFC 9113 section 4.2).
_LARGEST = 16_384
#: The window of a stream until its SETTINGS say otherwise, and that of a connection.
_WINDOW = 65_535
#: The stream of the first call of a connection.
FIRST_STREAM = 1
#: Bytes of the largest messages: what gRPC's implementations accept by default.
LARGE = 4 * 1024 * 1024


class Windows:
    """What a client allows a connection to send on its first stream, read from the client's own frames."""

    __slots__ = ("_connection", "_initial", "_rest", "_stream")

    def __init__(self) -> None:
        self._connection = self._stream = self._initial = _WINDOW
        self._rest = b""

    @property
    def room(self) -> int:
        """The bytes of DATA that may be sent now."""
        return min(self._connection, self._stream)

    def spend(self, count: int) -> None:
        """Count bytes of DATA that were sent."""
        self._connection -= count
        self._stream -= count

    def read(self, data: bytes) -> None:
        """Read whole frames of the client, after its preface; an incomplete one waits for the next call."""
        data = self._rest + data
        at = 0
        while at + _FRAME.size <= len(data):
            high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + (high << 8 | low)
            if end > len(data):
                break
            self._take(kind, flags, stream & 0x7FFFFFFF, data[at + _FRAME.size : end])
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self._connection += more
            elif stream == FIRST_STREAM:
                self._stream += more
        elif kind == _SETTINGS and not flags:
            for key, value in _SETTING.iter_unpack(payload):
                if key == _INITIAL_WINDOW_SIZE:
                    self._stream += value - self._initial
                    self._initial = value


@attrs.frozen
class Answer:
    """A whole answer to the first call. Each of its DATA frames has ``size`` bytes; the last one may have less."""

    begin: bytes
    frames: memoryview
    size: int
    end: bytes = b""

    def allowed(self, room: int) -> int:
        """Return how many bytes of whole frames fit in a window of ``room`` bytes of DATA."""
        return room // self.size * (self.size + _FRAME.size)

    def data_in(self, first: int, last: int) -> int:
        """Return the bytes of DATA in ``frames[first:last]``; both are where a frame begins or the last one ends."""
        frames = -(-(last - first) // (self.size + _FRAME.size))
        return last - first - frames * _FRAME.size


@attrs.frozen
class Endless:
    """Frames that no window limits, sent again and again once the first call has begun."""

    begin: bytes
    frames: memoryview


Flood = Answer | Endless


def _framed(message: bytes, size: int) -> memoryview:
    """Return DATA frames of the first stream with ``size`` bytes each."""
    header = frame(_DATA, 0, FIRST_STREAM, bytes(size))[: _FRAME.size]
    whole, rest = divmod(len(message), size)
    wire = bytearray(whole * (size + _FRAME.size))
    for at, byte in enumerate(header):
        wire[at :: size + _FRAME.size] = bytes([byte]) * whole
    for at in range(size):
        wire[_FRAME.size + at :: size + _FRAME.size] = message[at : whole * size : size]
    if rest:
        wire += frame(_DATA, 0, FIRST_STREAM, message[-rest:])
    return memoryview(wire)


def _answer(message: bytes, size: int) -> Answer:
    prefixed = b"\0" + len(message).to_bytes(4, "big") + message
    parts = success(FIRST_STREAM, b"")
    head = 9 + int.from_bytes(parts[:3], "big")
    tail = head + _FRAME.size + 5
    return Answer(SETTINGS + parts[:head], _framed(prefixed, size), size, parts[tail:])


def _named(size: int) -> bytes:
    """Return a PluginInfo of about ``size`` bytes, nearly all of them its name."""
    return plugin_info("CSIPlugin", "a" * (size - 64), "", ("1.0.0",))


@cache
def tiny_data(message: int = LARGE) -> Flood:
    """Return a valid answer of ``message`` bytes in DATA frames of one byte: ten bytes on the wire for each."""
    return _answer(_named(message), 1)


@cache
def big_info() -> Flood:
    """Return an answer of nearly 4 MiB, in the largest frames."""
    return _answer(_named(LARGE), _LARGEST)


@cache
def held_back() -> Flood:
    """Return an answer of nearly 64 KiB without its last frame: its reader keeps the rest for as long as it waits."""
    whole = _answer(_named(1 << 16), 1024)
    return Answer(whole.begin, whole.frames[: len(whole.frames) // (1024 + _FRAME.size) * (1024 + _FRAME.size)], 1024)


@cache
def empty_versions() -> Flood:
    """Return an answer of nearly 4 MiB that consists of 2.1 million empty versions."""
    identity = plugin_info("CSIPlugin", "empty-versions.example.com", "", ())
    return _answer(identity + b"\x22\x00" * ((LARGE - 128) // 2), _LARGEST)


@cache
def settings() -> Flood:
    """Return SETTINGS frames of 2,730 entries: as many as the largest frame holds."""
    entries = b"".join(_SETTING.pack(3, 100 + at % 2) for at in range(_LARGEST // _SETTING.size))
    return Endless(SETTINGS, memoryview(frame(_SETTINGS, 0, 0, entries)))


@cache
def informational() -> Flood:
    """Return 103 answers, each with 60,000 bytes of Huffman codes in as many fields as a list of 64 KiB holds."""
    value = "".join(islice(cycle("acehilnorst0129 -/"), 1000))
    fields = [(":status", "103"), *((f"link-{at}", value) for at in range(60))]
    # Without indexing, each block must be decoded in full again.
    block = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields])
    pieces = [block[at : at + _LARGEST] for at in range(0, len(block), _LARGEST)]
    frames = b"".join(
        frame(_CONTINUATION if at else _HEADERS, _END_HEADERS if at == len(pieces) - 1 else 0, FIRST_STREAM, piece)
        for at, piece in enumerate(pieces)
    )
    return Endless(SETTINGS, memoryview(frames))


@cache
def pings() -> Flood:
    """Return PING frames, each of which asks for an answer."""
    return Endless(SETTINGS, memoryview(frame(_PING, 0, 0, bytes(8)) * 256))
