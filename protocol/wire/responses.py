"""Whole responses, found again by their bytes.

The answers to one method by one gRPC library differ in their message and in little else. So the bytes before the
message are an `Opening` of the state that HPACK's table was in, and those after it an `Ending` of that opening: a
response seen before costs two look-ups and the message's own head. This is exact, since an opening and an ending mean
what their frames and blocks meant when they were taken one by one without a complaint, and nothing of their meaning
depends on the connection but the table's state and what `ClientConnection` checks each time: windows, budgets, limits,
and how far the stream is.
"""

import struct
from typing import Final

from .frames import ACK, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, SETTINGS
from .hpack_cache import Ending, Opening, TableState

NEW_RESPONSES_PER_CONNECTION: Final = 2
MAX_LEARNT_BYTES: Final = 2048

MESSAGE_HEAD: Final = struct.Struct(">HBBBIBI")
"""The head of a DATA frame, and gRPC's prefix of the message in it."""


def split_response(state: TableState, data: bytes) -> tuple[Opening | None, Ending | None]:
    """The two parts of a response to remember; `data` was taken whole, and without a complaint, in `state`.

    None for what is not SETTINGS frames or none, HEADERS, DATA, HEADERS, in plain form and of one stream.
    """
    opening = _opening(state, data)
    if opening is None or len(data) - opening.size < MESSAGE_HEAD.size:
        return None, None
    high, low, kind, flags, stream_id, *_ = MESSAGE_HEAD.unpack_from(data, opening.size)
    if kind != DATA or flags or stream_id != opening.stream_id:
        return None, None
    return opening, _ending(opening, data, opening.size + 9 + (high << 8 | low))


def _opening(state: TableState, data: bytes) -> Opening | None:
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
        return Opening(data[:position], position, stream_id, frames, tuple(settings), found[0], found[1])
    return None


def _ending(opening: Opening, data: bytes, position: int) -> Ending | None:
    """The frame after the message, which must be the last."""
    if len(data) - position < 9:
        return None
    high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
    start = position + 9
    if start + (high << 8 | low) != len(data) or kind != HEADERS or flags != END_HEADERS | END_STREAM:
        return None
    found = opening.state.blocks.get(data[start:])
    if found is None or stream_id != opening.stream_id or found[0].malformed or found[0].http_status is not None:
        return None
    return Ending(data[position:], found[0], found[1], max(opening.head.size, found[0].size))
