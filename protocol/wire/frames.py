"""HTTP/2 frames as bytes, and the parts of HPACK that our own requests need (RFC 9113 section 4, RFC 7541)."""

import struct
from collections.abc import Iterator
from typing import Final

from .errors import WireError, WireProblem, shown
from .limits import MAX_WINDOW

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

#: The settings of a server that affect what we send (RFC 9113 section 6.5.2).
MAX_STREAMS, INITIAL_WINDOW, FRAME_BYTES = 0x3, 0x4, 0x5

#: The largest frame that we accept, which is the default (RFC 9113 section 4.2).
MAX_FRAME: Final = 16_384
MAX_STREAM_ID: Final = 2**31 - 1

#: A frame's first nine bytes: length in two parts, type, flags, stream.
HEAD: Final = struct.Struct(">HBBBI")
WORD: Final = struct.Struct(">I")
SETTINGS_ACK: Final = HEAD.pack(0, 0, SETTINGS, ACK, 0)
#: Sets the size of the dynamic table for our header blocks to zero (RFC 7541 section 6.3).
NO_DYNAMIC_TABLE: Final = b"\x20"

_SETTING: Final = struct.Struct(">HI")
#: The size of one entry of a SETTINGS frame.
SETTING_BYTES: Final = _SETTING.size


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame (RFC 9113 section 4.1)."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def literal_field(name: bytes, value: bytes) -> bytes:
    """Return a header field that no table keeps (RFC 7541 section 6.2.2)."""
    return b"\0" + literal_string(name) + literal_string(value)


def literal_string(data: bytes) -> bytes:
    """Return a string without Huffman coding (RFC 7541 section 5.2)."""
    size = len(data)
    if size < 127:
        return bytes((size,)) + data
    prefix = bytearray(b"\x7f")
    size -= 127
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data


def unpadded(payload: bytes, kind: str) -> bytes:
    """Return the payload without its padding (RFC 9113 section 6.1)."""
    if not payload or payload[0] >= len(payload):
        raise WireError(WireProblem.PROTOCOL, f"{kind} with more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def not_http2(start: bytes) -> WireError:
    """Return the error for a first frame that is not SETTINGS (fault 66)."""
    return other_protocol(start) or WireError(
        WireProblem.NOT_HTTP2, f'the peer does not speak HTTP/2: it began with "{shown(start)}"'
    )


def other_protocol(start: bytes) -> WireError | None:
    """Return an error if a peer begins like one of another well-known protocol; otherwise None (fault 66).

    A TLS alert is shorter than the head of a frame, and some HTTP/1 servers answer with a bare page.
    """
    if start.startswith((b"HTTP/", b"<!", b"<html", b"<HTML")):
        return WireError(WireProblem.NOT_HTTP2, "the peer answers in HTTP/1, not in HTTP/2 as gRPC does")
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return WireError(WireProblem.NOT_HTTP2, "the peer speaks TLS, not plain HTTP/2")
    return None


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Check a server's settings, and yield those that affect us (RFC 9113 section 6.5.2).

    The header table size belongs to a table that we do not use. The rest is advice or unknown.
    """
    for key, value in _SETTING.iter_unpack(payload):
        match key:
            case 0x2 if value:
                raise WireError(WireProblem.PROTOCOL, "a server may not announce SETTINGS_ENABLE_PUSH")
            case 0x4 if value > MAX_WINDOW:
                raise WireError(WireProblem.FLOW_CONTROL, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}")
            case 0x5 if not MAX_FRAME <= value < 2**24:
                raise WireError(WireProblem.PROTOCOL, f"SETTINGS_MAX_FRAME_SIZE of {value}")
            case 0x3 | 0x4 | 0x5:
                yield key, value
            case _:
                continue
