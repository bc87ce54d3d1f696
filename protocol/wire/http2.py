"""The client half of HTTP/2 by prior knowledge, as gRPC uses it (RFC 9113): bytes in, events out.

Everything that decides what a frame means is here; nothing here waits, logs or reads a clock. Bytes go in by
`ClientConnection.receive`, in any pieces, and the `Stream` that a frame belongs to is called: `on_headers`, `on_data`,
`on_reset`, `on_failed`. What must be sent gathers in `outgoing`. `receive` raises nothing: whatever the peer does, the
connection either goes on or has a `failure`, a `WireError` with the rule or limit that was broken, and then every open
stream has been told and a GOAWAY is in `outgoing`.

Data is credited to the connection when it arrives and to its stream when the stream says that it was used, so that one
slow reader stops its own stream only.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from .budgets import EMPTY_DATA, INFORMATIONAL, LATE_FRAMES, SETTINGS_FRAMES, UNKNOWN_FRAMES
from .control import Control
from .errors import WireError, WireProblem, over_limit, shown
from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    MAX_FRAME,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    WORD,
    frame,
    not_http2,
    unpadded,
)
from .hpack_cache import CACHE, HeaderCache, HeaderReader, ResponseBlock, ResponsePrefix
from .limits import DEFAULT_LIMITS, Limits
from .responses import MAX_LEARNT_BYTES, MESSAGE_HEAD, NEW_RESPONSES_PER_CONNECTION, split_response
from .sending import Stream


class ClientConnection(Control):
    """One connection, from its first byte to its last."""

    __slots__ = (
        "_block",
        "_block_end",
        "_block_parts",
        "_block_stream",
        "_buffer",
        "_headers",
        "_may_learn",
        "_receive_window",
        "_received",
        "_wanted",
    )

    def __init__(self, limits: Limits = DEFAULT_LIMITS, cache: HeaderCache = CACHE) -> None:
        super().__init__(limits)
        self.settled = False
        self._received = 0
        self._receive_window = limits.connection_window
        self._owed = 0
        self._buffer: bytearray | None = None
        self._wanted = 9
        self._headers = HeaderReader(limits.header_list_bytes, cache)
        self._may_learn = NEW_RESPONSES_PER_CONNECTION
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_end = False
        self._block_parts = 0

    @property
    def buffered(self) -> int:
        """Bytes of unfinished frames and header blocks."""
        return len(self._buffer or b"") + len(self._block or b"")

    def fail(self, error: WireError) -> None:
        """End the connection: every stream is told, and the peer is told why. The first cause is kept."""
        if self.failure is not None:
            return
        self.failure = error
        self._buffer = self._block = None
        self.outgoing += frame(GOAWAY, 0, 0, WORD.pack(0) + WORD.pack(error.code))
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.local_open = stream.remote_open = False
            self.touched.append(stream)
            stream.on_failed(error)

    def receive(self, data: bytes) -> None:
        """Take the next bytes of the peer."""
        if self.failure is not None:
            return
        try:
            self._received += len(data)
            total = self.limits.total_bytes
            if total is not None and self._received > total:
                raise over_limit(WireProblem.TOTAL_BYTES, total, "bytes received on this connection")
            if self._buffer is None:
                if not self._take_known(data):
                    self._take_new(data)
            else:
                self._buffer += data
                if len(self._buffer) >= self._wanted:
                    data, self._buffer = bytes(self._buffer), None
                    self._take_frames(data)
        except WireError as error:
            self.fail(error)

    def receive_end(self) -> None:
        """The peer closed the connection, or its half of it (faults 33, 34, 37)."""
        if self.goaway is not None:
            self.fail(WireError(WireProblem.CLOSED, f"the peer closed the connection: {self.goaway}"))
        elif not self.settled:
            rest = bytes(self._buffer or b"")
            said = f' after "{shown(rest)}"' if rest else " without a byte"
            self.fail(WireError(WireProblem.CLOSED, f"the peer closed the connection{said}"))
        else:
            self.fail(WireError(WireProblem.CLOSED, "the peer closed the connection"))

    def _take_known(self, data: bytes) -> bool:
        """Take a whole response that means what one before it meant. False, with nothing changed, if it is none."""
        state = self._headers.state
        for size in state.prefix_sizes:
            prefix = state.prefixes.get(data[:size])
            if prefix is not None and self._block is None and len(data) - size > MESSAGE_HEAD.size:
                return self._take_response(prefix, data)
        return False

    def _take_response(self, prefix: ResponsePrefix, data: bytes) -> bool:
        """See `_take_known`. Whatever is out of the ordinary goes the long way, which does the same and explains."""
        start = prefix.size
        high, low, kind, flags, stream_id, compressed, length = MESSAGE_HEAD.unpack_from(data, start)
        size = high << 8 | low
        start += 9
        suffix = prefix.suffixes.get(data[start + size :])
        limits, stream = self.limits, self.streams.get(stream_id)
        window = self._receive_window - size
        settings = self.budgets.spent[SETTINGS_FRAMES] + prefix.settings_frames
        if (
            suffix is None
            or stream is None
            or kind != DATA
            or flags
            or compressed
            or stream_id != prefix.stream_id
            or size != length + 5
            or size > MAX_FRAME
            or length > limits.message_bytes
            or window * 2 < limits.connection_window
            or stream.local_open
            or stream.head_done
            or not stream.remote_open
            or suffix.list_size > limits.header_list_bytes
            or settings > limits.settings
            or not (self.settled or prefix.settings_frames)
        ):
            return False
        if prefix.settings_frames:
            self._take_settings(prefix, settings)
        self._headers.state = suffix.state
        self._receive_window = window
        stream.head_done, stream.remote_open = True, False
        del self.streams[stream_id]
        self.touched.append(stream)
        stream.on_response(prefix.head, data[start : start + size], suffix.trailers)
        return True

    def _take_settings(self, prefix: ResponsePrefix, spent: int) -> None:
        """The SETTINGS that a prefix begins with."""
        self.budgets.spent[SETTINGS_FRAMES] = spent
        self.budgets.counted += prefix.settings_frames
        if not self.settled:
            self.settled = True
            self.max_streams = None
        for payload in prefix.settings:
            self._apply_settings(payload)

    def _take_new(self, data: bytes) -> None:
        """Take frames one by one, and remember them if they are a whole response as most servers send it."""
        state, whole = self._headers.state, self._block is None
        self._take_frames(data)
        if self._may_learn and whole and self._buffer is None and len(data) <= MAX_LEARNT_BYTES:
            prefix, suffix = split_response(state, data)
            if prefix is not None and suffix is not None:
                self._may_learn -= 1
                self._headers.learn(state, prefix, suffix)

    def _take_frames(self, data: bytes) -> None:
        """Handle the whole frames of `data`, and keep the rest. At most one frame is ever kept (fault 65)."""
        position, size = 0, len(data)
        while size - position >= 9:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
            length = high << 8 | low
            start = position + 9
            end = start + length
            if not self.settled or length > MAX_FRAME:
                self._check_frame(data[position:start], kind, flags, length)
            if end > size:
                self._wanted = 9 + length
                break
            if self._block is not None and (kind != CONTINUATION or stream_id & MAX_STREAM_ID != self._block_stream):
                raise WireError(WireProblem.PROTOCOL, "a header block was interrupted by another frame")
            if kind == HEADERS and flags & ~END_STREAM == END_HEADERS:
                # Nearly all header blocks come so: whole, and without padding or priority.
                self._on_block(stream_id & MAX_STREAM_ID, data[start:end], end=flags & END_STREAM != 0)
            else:
                handler = _HANDLERS.get(kind)
                if handler is None:
                    self.budgets.spend(UNKNOWN_FRAMES)
                else:
                    handler(self, flags, stream_id & MAX_STREAM_ID, data[start:end])
            position = end
        else:
            self._wanted = 9
        if position < size:
            self._buffer = bytearray(data[position:] if position else data)

    def _check_frame(self, head: bytes, kind: int, flags: int, length: int) -> None:
        """Refuse a frame that is too large, or a first frame that no HTTP/2 server sends (section 3.4)."""
        if not self.settled and (kind != SETTINGS or flags & ACK or length > MAX_FRAME):
            raise not_http2(head)
        if length > MAX_FRAME:
            raise WireError(WireProblem.FRAME_SIZE, f"a frame of {length} bytes, over the {MAX_FRAME} announced")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self.streams.get(stream_id) or self._stream(stream_id, "DATA")
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise WireError(WireProblem.FLOW_CONTROL, "more data than the connection's window")
        if self._receive_window * 2 < self.limits.connection_window:
            more = self.limits.connection_window - self._receive_window
            self.outgoing += frame(WINDOW_UPDATE, 0, 0, WORD.pack(more))
            self._receive_window += more
        data = unpadded(payload, "DATA") if flags & PADDED else payload
        end = flags & END_STREAM != 0
        if not data and not end:
            self.budgets.spend(EMPTY_DATA)
        if stream is None or not stream.remote_open:
            self.budgets.spend(LATE_FRAMES)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._break_stream(stream, WireError(WireProblem.FLOW_CONTROL, "more data than the stream's window"))
        elif not stream.head_done:
            self._break_stream(stream, WireError(WireProblem.PROTOCOL, "DATA before the response headers"))
        else:
            if size != len(data):
                self.used(stream, size - len(data))
            stream.remote_open = not end
            self.touched.append(stream)
            stream.on_data(data, end=end)
            if end:
                if stream.local_open:
                    self.reset(stream)
                else:
                    self.streams.pop(stream_id, None)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload, "HEADERS")
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise WireError(WireProblem.FRAME_SIZE, "HEADERS too short for their priority fields")
            payload = payload[5:]
        end = flags & END_STREAM != 0
        if flags & END_HEADERS:
            self._on_block(stream_id, payload, end=end)
            return
        self._block, self._block_stream, self._block_end = bytearray(payload), stream_id, end
        self._block_parts = 0

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None:
            raise WireError(WireProblem.PROTOCOL, "CONTINUATION without HEADERS before it")
        self._block_parts += 1
        if self._block_parts > self.limits.continuations:
            raise over_limit(WireProblem.CONTINUATIONS, self.limits.continuations, "CONTINUATION frames of one block")
        self._block += payload
        if len(self._block) > self.limits.header_list_bytes:
            raise over_limit(WireProblem.HEADER_LIST_BYTES, self.limits.header_list_bytes, "a header block")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(stream_id, block, end=self._block_end)

    def _on_block(self, stream_id: int, data: bytes, *, end: bool) -> None:
        stream = self.streams.get(stream_id) or self._stream(stream_id, "HEADERS")
        block = self._headers.read(data)
        if stream is None or not stream.remote_open:
            self.budgets.spend(LATE_FRAMES)
            return
        if block.malformed or stream.head_done is not (block.http_status is None) or (stream.head_done and not end):
            problem = block.malformed or _misplaced(stream, block)
            self._break_stream(stream, WireError(WireProblem.PROTOCOL, f"malformed response headers: {problem}"))
            return
        if block.http_status is not None and block.http_status < 200:
            if end:
                error = WireError(WireProblem.PROTOCOL, "an informational response ended the stream")
                self._break_stream(stream, error)
                return
            self.budgets.spend(INFORMATIONAL)
            return
        stream.head_done = True
        stream.remote_open = not end
        self.touched.append(stream)
        stream.on_headers(block, end=end)
        if end:
            if stream.local_open:
                # Nobody will read the rest of the request (section 8.1).
                self.reset(stream)
            else:
                self.streams.pop(stream_id, None)

    HANDLERS: ClassVar[dict[int, Callable[["ClientConnection", int, int, bytes], None]]] = {
        DATA: _on_data,
        HEADERS: _on_headers,
        PRIORITY: Control.on_priority,
        RST_STREAM: Control.on_reset,
        SETTINGS: Control.on_settings,
        PUSH_PROMISE: Control.on_push_promise,
        PING: Control.on_ping,
        GOAWAY: Control.on_goaway,
        WINDOW_UPDATE: Control.on_window_update,
        CONTINUATION: _on_continuation,
    }


_HANDLERS: Final = ClientConnection.HANDLERS


def _misplaced(stream: Stream, block: ResponseBlock) -> str:
    """Which rule of section 8.1 a header block breaks by its place in the response."""
    if not stream.head_done:
        return "no :status"
    return ":status in trailers" if block.http_status is not None else "trailers that do not end the stream"
