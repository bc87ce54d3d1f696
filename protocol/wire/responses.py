"""Whole responses, recognized by their bytes.

The answers of one gRPC library to one method differ in their message and in little else. The bytes before the message
are therefore a ``ResponsePrefix`` of one state of HPACK's dynamic table, and the bytes after it a ``ResponseSuffix`` of
that prefix: a response of a shape seen before costs two look-ups and the message's own head. This is exact. A prefix
and a suffix mean what their frames and blocks meant when they were handled one by one without an error, and apart from
the table's state that meaning depends only on what ``ClientConnection`` checks each time: windows, budgets, limits, and
the state of the stream.
"""

import struct
from typing import Final

from .frames import ACK, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, SETTINGS
from .hpack_cache import ResponsePrefix, ResponseSuffix, TableState

NEW_RESPONSES_PER_CONNECTION: Final = 2
MAX_LEARNT_BYTES: Final = 2048

MESSAGE_HEAD: Final = struct.Struct(">HBBBIBI")
"""The head of a DATA frame, and gRPC's prefix of the message in it."""


def split_response(state: TableState, data: bytes) -> tuple[ResponsePrefix | None, ResponseSuffix | None]:
    """The two parts of a response to remember; `data` was taken whole, and without a complaint, in `state`.

    None for what is not SETTINGS frames or none, HEADERS, DATA, HEADERS, in plain form and of one stream.
    """
    prefix = _prefix(state, data)
    if prefix is None or len(data) - prefix.size < MESSAGE_HEAD.size:
        return None, None
    high, low, kind, flags, stream_id, *_ = MESSAGE_HEAD.unpack_from(data, prefix.size)
    if kind != DATA or flags or stream_id != prefix.stream_id:
        return None, None
    return prefix, _suffix(prefix, data, prefix.size + 9 + (high << 8 | low))


def _prefix(state: TableState, data: bytes) -> ResponsePrefix | None:
    """The frames before the message."""
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
        return ResponsePrefix(data[:position], position, stream_id, frames, tuple(settings), found[0], found[1])
    return None


def _suffix(prefix: ResponsePrefix, data: bytes, position: int) -> ResponseSuffix | None:
    """The frame after the message, which must be the last."""
    if len(data) - position < 9:
        return None
    high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
    start = position + 9
    if start + (high << 8 | low) != len(data) or kind != HEADERS or flags != END_HEADERS | END_STREAM:
        return None
    found = prefix.state.blocks.get(data[start:])
    if found is None or stream_id != prefix.stream_id or found[0].malformed or found[0].http_status is not None:
        return None
    return ResponseSuffix(data[position:], found[0], found[1], max(prefix.head.size, found[0].size))
