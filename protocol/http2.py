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

from plugind.protocol.budgets import (
    EMPTY_DATA,
    INFORMATIONAL,
    LATE_FRAMES,
    PINGS,
    PRIORITIES,
    RESETS,
    SETTINGS_FRAMES,
    UNKNOWN_FRAMES,
    WINDOW_UPDATES,
)
from plugind.protocol.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    GOAWAY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    MAX_STREAM_ID,
    MAX_STREAMS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    WORD,
    frame,
    not_http2,
    read_settings,
    unpadded,
)
from plugind.protocol.hpack_cache import CACHE, HeaderCache, HeaderReader, ResponseBlock
from plugind.protocol.http2_sending import Sender, Stream
from plugind.protocol.limits import DEFAULT_LIMITS, MAX_WINDOW, Limits
from plugind.protocol.wire_errors import WireError, WireProblem, code_name, over_limit, shown

MAX_OWED: Final = 1000
"""Acknowledgements that may wait because the peer does not read."""


class ClientConnection(Sender):
    """One connection, from its first byte to its last."""

    __slots__ = (
        "_block",
        "_block_end",
        "_block_parts",
        "_block_stream",
        "_buffer",
        "_headers",
        "_owed",
        "_receive_window",
        "_received",
        "_wanted",
        "settled",
    )

    def __init__(self, limits: Limits = DEFAULT_LIMITS, cache: HeaderCache = CACHE) -> None:
        super().__init__(limits)
        self.settled = False
        """True once the peer's first SETTINGS have come."""
        self._received = 0
        self._receive_window = limits.connection_window
        self._owed = 0
        self._buffer: bytearray | None = None
        self._wanted = 9
        self._headers = HeaderReader(limits.header_list_bytes, cache)
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
                self._take_frames(data)
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

    def _stream(self, stream_id: int, kind: str) -> Stream | None:
        """The stream that a frame belongs to; None if it is over."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id >= self._next_id or not stream_id & 1):
            raise WireError(WireProblem.PROTOCOL, f"{kind} on stream {stream_id}, which was never opened")
        return stream

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

    def _break_stream(self, stream: Stream, error: WireError) -> None:
        """End one stream for an error of the peer that concerns no other (section 5.4.2)."""
        self.reset(stream, error.code)
        self.touched.append(stream)
        stream.on_failed(error)

    def _on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        stream = self._stream(stream_id, "RST_STREAM")
        if len(payload) != 4:
            raise WireError(WireProblem.FRAME_SIZE, "RST_STREAM of a wrong size")
        if stream is None:
            self.budgets.spend(RESETS)
        else:
            del self.streams[stream_id]
            stream.local_open = stream.remote_open = False
            self.touched.append(stream)
            stream.on_reset(WORD.unpack(payload)[0])

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) < 8:
            raise WireError(WireProblem.PROTOCOL if stream_id else WireProblem.FRAME_SIZE, "malformed GOAWAY")
        self.budgets.spend(RESETS)
        last, code = WORD.unpack_from(payload)[0] & MAX_STREAM_ID, WORD.unpack_from(payload, 4)[0]
        said = f": {shown(payload[8:])}" if len(payload) > 8 else ""
        self.goaway = WireError(WireProblem.GOING_AWAY, f"the peer is going away ({code_name(code)}{said})")
        for stream in [stream for stream in self.streams.values() if stream.id > last]:
            del self.streams[stream.id]
            stream.local_open = stream.remote_open = False
            self.touched.append(stream)
            stream.on_failed(self.goaway)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise WireError(WireProblem.PROTOCOL, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise WireError(WireProblem.FRAME_SIZE, "SETTINGS of a wrong size")
        self.budgets.spend(SETTINGS_FRAMES)
        if not self.settled:
            self.settled = True
            self.max_streams = None
        if flags & ACK:
            return
        for key, value in read_settings(payload) if payload else ():
            if key == INITIAL_WINDOW:
                self._on_initial_window(value)
            elif key == FRAME_BYTES:
                self.max_frame = min(value, 65_536)
            elif key == MAX_STREAMS:
                self.max_streams = value
        self._acknowledge(SETTINGS_ACK)

    def _on_initial_window(self, value: int) -> None:
        change, self._initial_window = value - self._initial_window, value
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise WireError(WireProblem.FLOW_CONTROL, "a stream's window beyond 2^31-1")
            self.touched.append(stream)

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise WireError(WireProblem.FRAME_SIZE, "WINDOW_UPDATE of a wrong size")
        self.budgets.spend(WINDOW_UPDATES)
        more = WORD.unpack(payload)[0] & MAX_WINDOW
        if stream_id:
            self._on_stream_window(self._stream(stream_id, "WINDOW_UPDATE"), more)
            return
        if not more:
            raise WireError(WireProblem.PROTOCOL, "WINDOW_UPDATE by nothing")
        if self.send_window <= 0:
            self.touched.extend(self.streams.values())
        self.send_window += more
        if self.send_window > MAX_WINDOW:
            raise WireError(WireProblem.FLOW_CONTROL, "the connection's window beyond 2^31-1")

    def _on_stream_window(self, stream: Stream | None, more: int) -> None:
        if stream is None:
            return
        stream.send_window += more
        if not more:
            self._break_stream(stream, WireError(WireProblem.PROTOCOL, "WINDOW_UPDATE by nothing"))
        elif stream.send_window > MAX_WINDOW:
            self._break_stream(stream, WireError(WireProblem.FLOW_CONTROL, "a stream's window beyond 2^31-1"))
        else:
            self.touched.append(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) != 8:
            raise WireError(WireProblem.PROTOCOL if stream_id else WireProblem.FRAME_SIZE, "malformed PING")
        self.budgets.spend(PINGS)
        if not flags & ACK:
            self._acknowledge(frame(PING, ACK, 0, payload))

    def _acknowledge(self, answer: bytes) -> None:
        """Answer the peer; one that asks for ever and reads no answer is not kept (fault 65)."""
        self._owed = self._owed + 1 if self.outgoing else 0
        if self._owed > MAX_OWED:
            raise over_limit(WireProblem.PINGS, MAX_OWED, "acknowledgements that the peer does not read")
        self.outgoing += answer

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        if not stream_id or len(payload) != 5:
            raise WireError(WireProblem.FRAME_SIZE if stream_id else WireProblem.PROTOCOL, "malformed PRIORITY")
        self.budgets.spend(PRIORITIES)

    def _on_push_promise(self, *_: object) -> None:
        raise WireError(WireProblem.PROTOCOL, "PUSH_PROMISE, though push is disabled")

    HANDLERS: ClassVar[dict[int, Callable[["ClientConnection", int, int, bytes], None]]] = {
        DATA: _on_data,
        HEADERS: _on_headers,
        PRIORITY: _on_priority,
        RST_STREAM: _on_reset,
        SETTINGS: _on_settings,
        PUSH_PROMISE: _on_push_promise,
        PING: _on_ping,
        GOAWAY: _on_goaway,
        WINDOW_UPDATE: _on_window_update,
        CONTINUATION: _on_continuation,
    }


_HANDLERS: Final = ClientConnection.HANDLERS


def _misplaced(stream: Stream, block: ResponseBlock) -> str:
    """Which rule of section 8.1 a header block breaks by its place in the response."""
    if not stream.head_done:
        return "no :status"
    return ":status in trailers" if block.http_status is not None else "trailers that do not end the stream"
