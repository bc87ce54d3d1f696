"""Whole responses, recognized by their bytes.

The answers of one gRPC library to one method differ in little but their message. The bytes before the message are a
``ResponsePrefix`` of one state of HPACK's dynamic table, and the bytes after it a ``ResponseSuffix`` of that prefix, so
a response of a known shape costs two look-ups and the parsing of the message's head. This is exact: a prefix and a
suffix mean what their frames and blocks meant when they were handled one by one without an error. Apart from the
table's state, that depends only on what ``ClientConnection`` checks each time: windows, budgets, limits, and the state
of the stream.
"""

import struct
from collections.abc import Iterator
from typing import Final

from .frames import ACK, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, MAX_FRAME, SETTING_BYTES, SETTINGS
from .hpack_cache import ResponsePrefix, ResponseSuffix, TableState
from .limits import WireLimits

#: How many responses one connection can add to the cache.
NEW_RESPONSES_PER_CONNECTION: Final = 2
#: Longer responses are not stored.
MAX_LEARNT_BYTES: Final = 2048

#: gRPC's prefix of a message: a byte for the compression, and the length.
PREFIX_BYTES: Final = 5

#: The largest message that fits into one frame.
_MAX_MESSAGE: Final = MAX_FRAME - PREFIX_BYTES
#: The head of a DATA frame, and gRPC's five bytes before the message in it.
_MESSAGE_HEAD: Final = struct.Struct(">HBBBIBI")
_MESSAGE_HEAD_BYTES: Final = _MESSAGE_HEAD.size


def match_response(
    state: TableState, data: bytes, first: int, limits: WireLimits
) -> tuple[ResponsePrefix, bytes, ResponseSuffix, int] | None:
    """Return the response at ``first`` if its shape is known in ``state``: prefix, message, suffix, and its end.

    The message includes gRPC's five bytes; it is uncompressed, whole, and within ``limits``. All checks of the bytes
    alone are made here; the caller makes those that depend on the connection.
    """
    for size in state.prefix_sizes:
        place = first + size
        prefix = state.prefixes.get(data[first:place])
        if prefix is None or len(data) - place <= _MESSAGE_HEAD_BYTES:
            continue
        high, low, kind, flags, stream_id, compressed, length = _MESSAGE_HEAD.unpack_from(data, place)
        start = place + 9
        end = start + PREFIX_BYTES + length
        suffix = prefix.suffixes.get(data[end:]) or prefix.suffixes.get(_frame(data, end))
        if (
            suffix is None
            or kind != DATA
            or flags
            or compressed
            or stream_id != prefix.stream_id
            or high << 8 | low != length + PREFIX_BYTES
            or length > _MAX_MESSAGE
            or length > limits.message_bytes
            or suffix.list_size > limits.header_list_bytes
        ):
            return None
        return prefix, data[start:end], suffix, end + len(suffix.data)
    return None


def _frame(data: bytes, start: int) -> bytes:
    """Return the frame at ``start``, or the part of it that has come."""
    return data[start : start + 9 + int.from_bytes(data[start : start + 3], "big")]


def split_responses(state: TableState, data: bytes) -> Iterator[tuple[ResponsePrefix, ResponseSuffix]]:
    """Yield the parts of the responses to store. ``data`` was handled as a whole in ``state``, without an error.

    These are the responses at its beginning that consist of any number of SETTINGS frames, then HEADERS, DATA and
    HEADERS of one stream in plain form.
    """
    while True:
        prefix = _prefix(state, data)
        if prefix is None or len(data) - prefix.size < _MESSAGE_HEAD_BYTES:
            return
        high, low, kind, flags, stream_id, *_ = _MESSAGE_HEAD.unpack_from(data, prefix.size)
        if kind != DATA or flags or stream_id != prefix.stream_id:
            return
        end = prefix.size + 9 + (high << 8 | low)
        suffix = _suffix(prefix, _frame(data, end))
        if suffix is None:
            return
        yield prefix, suffix
        state, data = suffix.state, data[end + len(suffix.data) :]


def _prefix(state: TableState, data: bytes) -> ResponsePrefix | None:
    """Return the frames before the message."""
    position, frames, settings = 0, 0, list[bytes]()
    while len(data) - position >= 9:
        high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
        start = position + 9
        position = start + (high << 8 | low)
        if kind == SETTINGS:
            frames += 1
            if not flags & ACK:
                settings.append(data[start:position])
            continue
        found = state.blocks.get(data[start:position])
        if kind != HEADERS or flags != END_HEADERS or found is None or not found[0].plain:
            return None
        entries = sum(len(payload) for payload in settings) // SETTING_BYTES
        return ResponsePrefix(data[:position], position, stream_id, frames, entries, tuple(settings), *found)
    return None


def _suffix(prefix: ResponsePrefix, data: bytes) -> ResponseSuffix | None:
    """Return the frame after the message."""
    if len(data) < 9:
        return None
    _, _, kind, flags, stream_id = HEAD.unpack_from(data)
    if kind != HEADERS or flags != END_HEADERS | END_STREAM:
        return None
    found = prefix.state.blocks.get(data[9:])
    if found is None or stream_id != prefix.stream_id or found[0].malformed or found[0].http_status is not None:
        return None
    return ResponseSuffix(data, found[0], found[1], max(prefix.head.size, found[0].size))
