"""The plugin's side of a registration conversation, as a memoizing automaton.

The answer on a connection depends only on the bytes that were received before. So the state of a connection is a node,
and the effect of a chunk of bytes is a transition, which is computed once in full (frames, HPACK with its dynamic
table, gRPC messages) and remembered. Connections repeat the same chunks: after the first few connections a chunk costs
one dictionary lookup, whichever client sent it. The answer is still exact, since nothing is guessed.

A connection accepts 64 KiB of requests, since no WINDOW_UPDATE is ever sent. That is enough for the clients of a
benchmark; the server is not suited for anything else.
"""

from __future__ import annotations

import struct

import attrs
import hpack
from google.protobuf.message import DecodeError

from plugind.protocol.proto.pluginregistration_pb2 import PluginInfo, RegistrationStatus

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GET_INFO = "/pluginregistration.Registration/GetInfo"
#: What the methods at the endpoints of device plugins, CSI drivers and DRA drivers begin with.
_ENDPOINTS = ("/v1beta1.DevicePlugin/", "/csi.v1.Identity/", "/csi.v1.Node/", "/v1.DRAResourceHealth/")
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
#: Beyond this number all nodes are dropped and computed again, so that clients with random PINGs do not fill memory.
MOST_TRANSITIONS = 8192

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_HEADER = struct.Struct(">HBBBL")
_MESSAGE = struct.Struct(">BL")


class BadClient(Exception):  # noqa: N818 - named by whose fault it is
    """The client broke HTTP/2 or gRPC, or exceeded the bounds above; its connection is closed."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame (RFC 9113 section 4.1)."""
    return _HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field without indexing and with a literal name (RFC 7541 section 6.2.2), which uses no table."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


_STATUS_200 = b"\x88"
_CONTENT_TYPE = _literal(b"content-type", b"application/grpc")
SETTINGS = frame(_SETTINGS, 0, 0)
SETTINGS_ACK = frame(_SETTINGS, _ACK, 0)


def success(stream: int, message: bytes) -> bytes:
    """Return a whole unary answer: HEADERS, DATA and the trailers with ``grpc-status: 0``."""
    data = frame(_DATA, 0, stream, _MESSAGE.pack(0, len(message)) + message)
    return response_head(stream) + data + trailers(stream)


def response_head(stream: int) -> bytes:
    """Return the HEADERS of an answer that goes on."""
    return frame(_HEADERS, _END_HEADERS, stream, _STATUS_200 + _CONTENT_TYPE)


def trailers(stream: int) -> bytes:
    """Return the end of an answer that is a success."""
    return frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _literal(b"grpc-status", b"0"))


def failure(stream: int, status: int, message: str) -> bytes:
    """Return a trailers-only answer, with a message that needs no percent-encoding."""
    fields = _literal(b"grpc-status", str(status).encode()) + _literal(b"grpc-message", message.encode("ascii"))
    return frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _STATUS_200 + _CONTENT_TYPE + fields)


def not_implemented(stream: int) -> bytes:
    """Return the answer to a method that the plugin does not have."""
    return failure(stream, 12, "this plugin only registers")


def plugin_info(type_: str, name: str, endpoint: str, versions: tuple[str, ...]) -> bytes:
    """Return the message that GetInfo returns, encoded."""
    return PluginInfo(type=type_, name=name, endpoint=endpoint, supported_versions=versions).SerializeToString()


@attrs.frozen
class AskInfo:
    """GetInfo was called on ``stream``; the plugin fills in its answer."""

    stream: int


@attrs.frozen
class Notification:
    """NotifyRegistrationStatus was called on ``stream``; the plugin records the result."""

    stream: int
    registered: bool
    error: str


@attrs.frozen
class DeviceCall:
    """A method of a device plugin or of a driver was called on ``stream``."""

    stream: int
    method: str


Part = bytes | AskInfo | Notification | DeviceCall


@attrs.frozen
class _Call:
    """A stream whose request is not complete yet."""

    path: str
    body: bytes = b""


@attrs.frozen
class _History:
    """The part of a connection's history that determines later answers."""

    greeted: bool = False
    rest: bytes = b""
    blocks: tuple[bytes, ...] = ()
    calls: tuple[tuple[int, _Call], ...] = ()


class Node:
    """The state of a connection, and the transitions from it that were computed already."""

    __slots__ = ("history", "transitions")

    def __init__(self, history: _History) -> None:
        self.history = history
        self.transitions: dict[bytes, Transition] = {}


class Transition:
    """The node after a chunk, and the answer: ``parts`` in order, or ``fixed`` if no part depends on the plugin."""

    __slots__ = ("fixed", "node", "parts")

    def __init__(self, node: Node, parts: tuple[Part, ...]) -> None:
        self.node = node
        self.parts = _joined(parts)
        plain = [part for part in self.parts if isinstance(part, bytes)]
        self.fixed = b"".join(plain) if len(plain) == len(self.parts) else None


class Automaton:
    """All nodes that any connection has reached, starting with the first one."""

    def __init__(self) -> None:
        self.start = Node(_History())
        self._nodes = {self.start.history: self.start}
        self._remembered = 0

    def learn(self, node: Node, chunk: bytes) -> Transition:
        """Compute the effect of ``chunk`` at ``node``, and remember it.

        Raises:
          BadClient: if the client breaks the protocol.
        """
        reading = _Reading(node.history, chunk)
        history, parts = reading.outcome()
        if self._remembered >= MOST_TRANSITIONS:
            self._forget()
        transition = Transition(self._nodes.setdefault(history, Node(history)), parts)
        node.transitions[chunk] = transition
        self._remembered += 1
        return transition

    def _forget(self) -> None:
        for node in self._nodes.values():
            node.transitions.clear()
        self._nodes = {self.start.history: self.start}
        self._remembered = 0


class _Reading:
    """The full computation for one chunk."""

    def __init__(self, history: _History, chunk: bytes) -> None:
        self._buffer = history.rest + chunk
        self._greeted = history.greeted
        self._blocks = list(history.blocks)
        self._calls = dict(history.calls)
        self._parts: list[Part] = []

    def outcome(self) -> tuple[_History, tuple[Part, ...]]:
        if not self._greeted:
            self._greet()
        while self._greeted and self._one_frame():
            pass
        history = _History(self._greeted, self._buffer, tuple(self._blocks), tuple(self._calls.items()))
        return history, tuple(self._parts)

    def _greet(self) -> None:
        if not PREFACE.startswith(self._buffer[: len(PREFACE)]):
            raise BadClient("no HTTP/2 preface")
        if len(self._buffer) >= len(PREFACE):
            self._buffer = self._buffer[len(PREFACE) :]
            self._greeted = True
            self._parts.append(SETTINGS)

    def _one_frame(self) -> bool:
        """Remove a frame (HEADERS with all its CONTINUATIONs) from the buffer; return False if it is incomplete."""
        taken = _split(self._buffer)
        if taken is None:
            return False
        kind, flags, stream, payload, rest = taken
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)[5 if flags & _PRIORITY else 0 :]
            ended = bool(flags & _END_HEADERS)
            while not ended:
                more = _split(rest)
                if more is None:
                    return False
                if more[0] != _CONTINUATION or more[2] != stream:
                    raise BadClient("a header block was interrupted")
                payload, ended, rest = payload + more[3], bool(more[1] & _END_HEADERS), more[4]
        self._buffer = rest
        self._act(kind, flags, stream, payload)
        return True

    def _act(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._parts.append(SETTINGS_ACK)
        elif kind == _PING and not flags & _ACK:
            self._parts.append(frame(_PING, _ACK, 0, payload))
        elif kind == _HEADERS:
            self._calls[stream] = _Call(self._path(payload))
        elif kind == _DATA and stream in self._calls:
            call = self._calls[stream]
            self._calls[stream] = attrs.evolve(call, body=call.body + _unpadded(flags, payload))
        elif kind == _RST_STREAM:
            self._calls.pop(stream, None)
        if kind in (_HEADERS, _DATA) and flags & _END_STREAM and stream in self._calls:
            self._answer(stream, self._calls.pop(stream))

    def _path(self, block: bytes) -> str:
        """Decode with the dynamic table as all earlier blocks of this connection left it."""
        decoder = hpack.Decoder()
        try:
            for earlier in self._blocks:
                decoder.decode(earlier, raw=True)
            fields = dict(decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            raise BadClient(f"a header block does not decode: {error}") from error
        self._blocks.append(block)
        path = fields.get(b":path")
        if path is None:
            raise BadClient("a request without :path")
        return path.decode("latin-1")

    def _answer(self, stream: int, call: _Call) -> None:
        if call.path == GET_INFO:
            self._parts.append(AskInfo(stream))
        elif call.path == NOTIFY:
            status = _status(call.body)
            self._parts += [Notification(stream, status.plugin_registered, status.error), success(stream, b"")]
        elif call.path.startswith(_ENDPOINTS):
            self._parts.append(DeviceCall(stream, call.path.rpartition("/")[2]))
        else:
            self._parts.append(not_implemented(stream))


def _split(buffer: bytes) -> tuple[int, int, int, bytes, bytes] | None:
    """Return the first frame's kind, flags, stream and payload, and the rest."""
    if len(buffer) < _HEADER.size:
        return None
    high, low, kind, flags, stream = _HEADER.unpack_from(buffer)
    end = _HEADER.size + (high << 8 | low)
    if len(buffer) < end:
        return None
    return kind, flags, stream & 0x7FFFFFFF, buffer[_HEADER.size : end], buffer[end:]


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload


def _status(body: bytes) -> RegistrationStatus:
    """Parse a request of NotifyRegistrationStatus."""
    if len(body) < _MESSAGE.size:
        raise BadClient("a request without a message")
    compressed, length = _MESSAGE.unpack_from(body)
    if compressed or length != len(body) - _MESSAGE.size:
        raise BadClient("not one uncompressed message")
    try:
        return RegistrationStatus.FromString(body[_MESSAGE.size :])
    except DecodeError as error:
        raise BadClient(f"the message does not decode: {error}") from error


def _joined(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Join neighbouring bytes."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)
