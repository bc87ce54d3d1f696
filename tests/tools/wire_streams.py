"""Random but valid byte streams of an HTTP/2 server, and their meaning: h2 writes them, and h2 reads them back.

One seed gives one stream. The fuzzer ``tests.tools.fuzz_wire`` and the property tests of the wire both use this.
"""

import random
import struct
from collections.abc import Iterator
from typing import Final

import attrs
import h2.config
import h2.connection
import h2.events

from plugind.protocol.wire.errors import WireError
from plugind.protocol.wire.frames import DATA, HEADERS, PING, PRIORITY, SETTINGS, frame
from plugind.protocol.wire.grpc import request_head
from plugind.protocol.wire.hpack_cache import HeaderCache, ResponseBlock
from plugind.protocol.wire.http2 import ClientConnection
from plugind.protocol.wire.limits import WireLimits
from plugind.protocol.wire.sending import Sender, Stream

Event = tuple[str, object]

REQUEST: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/pluginregistration.Registration/GetInfo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
HEAD: Final = request_head("/pluginregistration.Registration/GetInfo", "localhost")

_NAMES: Final = ("x-plugin", "date", "server", "grpc-encoding", "x-trace-bin", "accept-encoding", "set-cookie")


class Recorder(Stream):
    """A stream that records its events, with consecutive data joined."""

    __slots__ = ("_sender", "events")

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self._sender = sender
        self.events: list[Event] = []

    def on_headers(self, block: ResponseBlock, *, end: bool) -> None:
        """See ``Stream``."""
        self.events.append(("headers", block.fields))
        if end:
            self.events.append(("end", None))

    def on_data(self, data: bytes, *, end: bool) -> None:
        """See ``Stream``."""
        add_data(self.events, data)
        self._sender.used(self, len(data))
        if end:
            self.events.append(("end", None))

    def on_reset(self, code: int) -> None:
        """See ``Stream``."""
        self.events.append(("reset", code))

    def on_failed(self, error: WireError) -> None:
        """See ``Stream``."""
        self.events.append(("failed", str(error)))


def add_data(events: list[Event], data: bytes) -> None:
    """Record a piece of a body, joined to the piece before it."""
    if not data:
        return
    if events and events[-1][0] == "data":
        before = events.pop()[1]
        assert isinstance(before, bytes)
        data = before + data
    events.append(("data", data))


@attrs.frozen
class Generated:
    """The bytes of a server that got ``requests`` requests, and the events of each stream as h2 reads them."""

    requests: int
    data: bytes
    expected: dict[int, list[Event]]


@attrs.frozen
class ReadByUs:
    """The result of reading a server's bytes with our client."""

    events: dict[int, list[Event]]
    failure: WireError | None
    buffered: int


def read_by_us(data: bytes, cuts: Iterator[int], requests: int, limits: WireLimits, cache: HeaderCache) -> ReadByUs:
    """Pass a server's bytes to our client in pieces of the sizes that ``cuts`` yields."""
    connection = ClientConnection(limits, cache)
    streams = [Recorder(connection.sender) for _ in range(requests)]
    for stream in streams:
        connection.sender.open(stream, HEAD, end=True)
    position, most = 0, 0
    while position < len(data):
        size = next(cuts)
        connection.receive(data[position : position + size])
        connection.touched.clear()
        most = max(most, connection.buffered)
        position += size
    return ReadByUs({stream.id: stream.events for stream in streams}, connection.failure, most)


_GREETINGS: Final = (
    frame(SETTINGS, 0, 0),
    frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0),
    frame(SETTINGS, 0, 0, struct.pack(">HIHI", 3, 100, 4, 1 << 20)) + frame(SETTINGS, 1, 0),
)
_HEADS: Final = (b"\x88\x5f\x10application/grpc", b"\x88\0\x0ccontent-type\x10application/grpc")
_TRAILERS: Final = (b"\0\x0bgrpc-status\x010", b"\x40\x0bgrpc-status\x010", b"\0\x0bgrpc-status\x015")


def plain_response(chance: random.Random, stream_id: int, *, greeting: bool) -> bytes:
    """Return a unary response in one of a few forms in which servers write it, with a random message."""
    message = chance.randbytes(chance.choice((0, 1, 5, 100)))
    return b"".join(
        (
            chance.choice(_GREETINGS) if greeting else b"",
            frame(HEADERS, 4, stream_id, chance.choice(_HEADS)),
            frame(DATA, 0, stream_id, struct.pack(">BI", 0, len(message)) + message),
            frame(HEADERS, 5, stream_id, chance.choice(_TRAILERS)),
        )
    )


class Server:
    """A server on h2 that writes a random valid conversation."""

    def __init__(self, chance: random.Random, requests: int, limits: WireLimits) -> None:
        self._chance = chance
        self._limits = limits
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        # We announce no other table size, so h2's encoder uses at most 4096 bytes.
        self._out = bytearray()
        client = ClientConnection(limits, HeaderCache())
        for _ in range(requests):
            client.sender.open(Recorder(client.sender), HEAD, end=True)
        self._h2.initiate_connection()
        self._h2.receive_data(bytes(client.outgoing))
        #: How many more frames that cost budget may be sent before the stream exceeds a limit.
        self._budget = 60

    def write(self, requests: int) -> bytes:
        """Return everything that the server sends."""
        open_streams = list(range(1, 2 * requests, 2))
        heads: set[int] = set()
        self._noise()
        while open_streams:
            stream = self._chance.choice(open_streams)
            if self._step(stream, heads):
                open_streams.remove(stream)
            self._noise()
        if self._chance.random() < 0.2:
            self._h2.close_connection(self._chance.choice((0, 0, 2, 11)), self._text(20).encode())
        self._flush()
        return bytes(self._out)

    def _step(self, stream: int, heads: set[int]) -> bool:
        """Send something on one stream; return True when the stream is over."""
        chance = self._chance.random()
        if chance < 0.05:
            self._h2.reset_stream(stream, self._chance.choice((0, 1, 2, 7, 8, 11)))
            return True
        if stream not in heads:
            if chance < 0.12 and self._budget > 50:
                self._h2.send_headers(stream, [(":status", "103"), ("link", self._text(10))])
                return False
            only = chance > 0.8
            fields = [(":status", "200"), ("content-type", "application/grpc"), *self._fields()]
            self._h2.send_headers(stream, fields + ([("grpc-status", "5")] if only else []), end_stream=only)
            heads.add(stream)
            return only
        if chance < 0.6:
            self._data(stream)
            return False
        self._h2.send_headers(stream, [("grpc-status", "0"), *self._fields()], end_stream=True)
        return True

    def _data(self, stream: int) -> None:
        size = self._chance.choice((0, 1, 5, 100, 1000, 16_000, 16_384))
        padding = self._chance.choice((None, None, 0, 1, 255))
        if padding is not None:
            size = max(0, min(size, 16_384 - 1 - padding))
        if size == 0:
            self._budget -= 1
        if size + 256 <= self._h2.local_flow_control_window(stream) and self._budget > 0:
            self._h2.send_data(stream, self._chance.randbytes(size), pad_length=padding)

    def _fields(self) -> list[tuple[str, str]]:
        count = self._chance.choice((0, 0, 1, 2, 5))
        fields = [(self._chance.choice(_NAMES), self._text(30)) for _ in range(count)]
        if self._chance.random() < 0.05:
            # The block is larger than a frame even with Huffman coding, so h2 sends CONTINUATION frames.
            fields.append(("x-large", "".join(self._chance.choices("0123456789&*{}", k=20_000))))
        return fields

    def _text(self, most: int) -> str:
        return "".join(self._chance.choices("abcdefXYZ0189 %-_/é", k=self._chance.randint(0, most))).strip()

    def _noise(self) -> None:
        """Send frames that any server may send at any time."""
        for _ in range(self._chance.choice((0, 0, 1, 3))):
            if self._budget <= 0:
                break
            self._budget -= 1
            match self._chance.randrange(5):
                case 0:
                    self._h2.ping(self._chance.randbytes(8))
                case 1:
                    self._h2.increment_flow_control_window(self._chance.randint(1, 60_000))
                case 2:
                    self._raw(frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 16)))
                case 3:
                    kind = self._chance.randint(0xD, 255)
                    self._raw(frame(kind, self._chance.randrange(256), 0, self._chance.randbytes(5)))
                case _:
                    self._raw(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, self._chance.randint(0, 100_000))))
        if self._chance.random() < 0.3:
            self._raw(frame(PING, 1, 0, bytes(8)))

    def _raw(self, data: bytes) -> None:
        """Send bytes that h2 does not write itself."""
        self._flush()
        self._out += data

    def _flush(self) -> None:
        self._out += self._h2.data_to_send()


def generate(seed: int, limits: WireLimits) -> Generated:
    """Return a valid conversation, and its events as h2's client reads them."""
    chance = random.Random(seed)
    requests = chance.choice((1, 1, 2, 3, 8))
    data = Server(chance, requests, limits).write(requests)
    return Generated(requests, data, read_by_h2(data, requests, limits))


def read_by_h2(data: bytes, requests: int, limits: WireLimits) -> dict[int, list[Event]]:
    """Return the events of each stream as h2's client reads them. Errors of h2 pass through."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window})
    client.increment_flow_control_window(limits.connection_window - 65_535)
    events: dict[int, list[Event]] = {}
    for stream in range(1, 2 * requests, 2):
        client.send_headers(stream, REQUEST, end_stream=True)
        events[stream] = []
    for event in client.receive_data(data):
        _translate(event, events)
    return events


def _translate(event: h2.events.Event, events: dict[int, list[Event]]) -> None:
    match event:
        case h2.events.ResponseReceived() | h2.events.TrailersReceived():
            found = tuple((str(name), str(value)) for name, value in event.headers)
            events[event.stream_id].append(("headers", found))
        case h2.events.DataReceived():
            add_data(events[event.stream_id], event.data)
        case h2.events.StreamEnded():
            events[event.stream_id].append(("end", None))
        case h2.events.StreamReset():
            events[event.stream_id].append(("reset", int(event.error_code)))
        case _:
            pass
