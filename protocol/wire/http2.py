"""The client half of HTTP/2 by prior knowledge, as gRPC uses it (RFC 9113): bytes in, events out.

Everything that interprets frames is here and in the neighbouring modules; nothing here waits, logs or reads a clock. A
connection has three parts. ``ClientConnection`` receives: ``receive`` takes bytes in any pieces, and calls
``on_headers``, ``on_data``, ``on_reset`` or ``on_failed`` of the ``Stream`` of a frame. ``Control`` handles the frames
that belong to no response. ``Sender`` begins requests and holds the open streams. The bytes to send gather in
``outgoing``.

A turn bounds the work of one ``receive``: the rest waits in ``pending`` until ``go_on``.

``receive`` raises nothing. Whatever the peer does, either the connection goes on, or it has a ``failure``: a
``WireError`` with the broken rule or limit. Then every open stream has got ``on_failed``, and a GOAWAY is in
``outgoing``.

Data is credited to the connection when it arrives, and to its stream when the stream has used it. So a slow reader
stops only its own stream.
"""

from collections.abc import Callable
from itertools import islice
from typing import ClassVar, Final

from .budgets import EMPTY_DATA, INFORMATIONAL, LATE_FRAMES, SMALL_DATA, Budgets
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
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    WORD,
    frame,
    not_http2,
    other_protocol,
    unpadded,
)
from .hpack_cache import CACHE, HeaderCache, HeaderReader, ResponseBlock
from .limits import DEFAULT_LIMITS, SMALL_DATA_BYTES, UNLIMITED, WireLimits
from .responses import MAX_LEARNT_BYTES, NEW_RESPONSES_PER_CONNECTION, match_response, split_responses
from .sending import Sender, Stream


class ClientConnection:
    """One connection, from its first byte to its last."""

    __slots__ = (
        "_block",
        "_block_end",
        "_block_parts",
        "_block_stream",
        "_buffer",
        "_control",
        "_headers",
        "_may_learn",
        "_receive_window",
        "_received",
        "_streams",
        "_wanted",
        "budgets",
        "failure",
        "limits",
        "outgoing",
        "sender",
        "touched",
    )

    def __init__(self, limits: WireLimits = DEFAULT_LIMITS, cache: HeaderCache = CACHE) -> None:
        budgets = Budgets(limits)
        sender = Sender(limits, budgets)
        self.limits = limits
        self.budgets = budgets
        #: The sending half: begins requests, sends data, resets streams.
        self.sender = sender
        self._control = Control(sender, budgets)
        #: The bytes to send: the same object as ``sender.outgoing``.
        self.outgoing = sender.outgoing
        #: The streams that got an event: the same object as ``sender.touched``.
        self.touched = sender.touched
        #: The open streams: the same object as ``sender.streams``.
        self._streams = sender.streams
        #: Why the connection has ended, if it has.
        self.failure: WireError | None = None
        #: Bytes received so far, counted only where there is a limit.
        self._received = 0
        #: Bytes that our window for the connection still allows the peer.
        self._receive_window = limits.connection_window
        #: The beginning of an unfinished frame; never empty.
        self._buffer: bytearray | None = None
        #: How many bytes ``_buffer`` needs before it is looked at.
        self._wanted = 9
        self._headers = HeaderReader(limits.header_list_bytes, cache, budgets)
        #: How many more responses this connection can add to the cache.
        self._may_learn = NEW_RESPONSES_PER_CONNECTION
        #: An unfinished header block. Only CONTINUATION frames of ``_block_stream`` may follow.
        self._block: bytearray | None = None
        self._block_stream = 0
        #: Whether the stream ends with ``_block``.
        self._block_end = False
        #: CONTINUATION frames in ``_block`` so far.
        self._block_parts = 0

    @property
    def settled(self) -> bool:
        """True once the peer's first SETTINGS have come."""
        return self._control.settled

    @property
    def buffered(self) -> int:
        """Bytes of unfinished frames and header blocks."""
        return len(self._buffer or b"") + len(self._block or b"")

    @property
    def unparsed(self) -> int:
        """Bytes that are kept until more come or they are taken."""
        if self._buffer is None and self._block is None and not self._streams:
            return 0
        return self.buffered + sum(stream.kept for stream in self._streams.values())

    def fail(self, error: WireError) -> None:
        """End the connection: every stream gets ``error``, and the peer gets its code. Only the first error counts."""
        if self.failure is not None:
            return
        # A traceback would keep the frames of this connection, and what they read, until the next garbage collection.
        self.failure = error.with_traceback(None)
        self._buffer = self._block = None
        self.outgoing += frame(GOAWAY, 0, 0, WORD.pack(0) + WORD.pack(error.code))
        self.sender.refuse(error)

    @property
    def pending(self) -> bool:
        """True while there are whole frames that did not fit into the turn."""
        return self._buffer is not None and len(self._buffer) >= self._wanted

    def receive(self, data: bytes, turn: int = UNLIMITED) -> None:
        """Process the next bytes of the peer, handling frames until their work reaches ``turn``.

        A frame counts 1, plus 1 for every two bytes of a header block and every entry of the table that decodes it. A
        frame that costs more than a whole turn is left to ``go_on``.
        """
        if self.failure is not None:
            return
        try:
            self.budgets.spend_bytes(len(data))
            if self.limits.total_bytes is not None:
                self._count(len(data), self.limits.total_bytes)
            if self._buffer is None:
                taken = self._take_response(data, 0)
                if taken and taken < len(data):
                    taken = self._take_more(data, taken)
                if taken < len(data):
                    self._take_new(data[taken:] if taken else data, turn)
            else:
                self._buffer += data
                if len(self._buffer) >= self._wanted:
                    self._take_buffer(turn)
        except WireError as error:
            self.fail(error)

    def go_on(self, turn: int = UNLIMITED) -> None:
        """Handle frames of ``pending``: at least one, and more while ``turn`` allows it."""
        if self._buffer is None:
            return
        try:
            self._take_buffer(turn, at_least_one=True)
        except WireError as error:
            self.fail(error)

    def _take_buffer(self, turn: int, *, at_least_one: bool = False) -> None:
        data, self._buffer = bytes(self._buffer or b""), None
        self._take_frames(data, turn, at_least_one=at_least_one)

    def receive_end(self) -> None:
        """The peer closed the connection, or its half of it (faults 33, 34, 37)."""
        start = b"" if self.settled else bytes(self._buffer or b"")
        closed = WireError(WireProblem.CLOSED, f"the peer closed the connection{self._said(start)}")
        self.fail(other_protocol(start) or closed)

    def _said(self, start: bytes) -> str:
        if self.sender.refused is not None:
            return f": {self.sender.refused}"
        if self.settled:
            return ""
        return f' after "{shown(start)}"' if start else " without a byte"

    def _count(self, size: int, limit: int) -> None:
        self._received += size
        if self._received > limit:
            raise over_limit(WireProblem.TOTAL_BYTES, limit, "bytes received on this connection")

    def _take_response(self, data: bytes, start: int) -> int:
        """Process the whole response at ``start`` if its shape is known. Return where it ends, or ``start``.

        Everything else is processed frame by frame, with the same effect and with errors that explain the problem.
        """
        found = match_response(self._headers.state, data, start, self.limits)
        if found is None or self._block is not None:
            return start
        prefix, message, suffix, end = found
        stream = self._streams.get(prefix.stream_id)
        if stream is None or stream.local_open or stream.head_done or not stream.remote_open:
            return start
        size = len(message)
        window = self._receive_window - size
        if window * 2 < self.limits.connection_window:
            return start
        is_counted = self.limits.small_data is not None and size < SMALL_DATA_BYTES
        if is_counted and self.budgets.is_used_up(SMALL_DATA):
            return start
        if not (self._control.take_settings(prefix) if prefix.settings_frames else self._control.settled):
            return start
        if is_counted:
            self.budgets.spend(SMALL_DATA)
        self._headers.state = suffix.state
        self._receive_window = window
        stream.head_done, stream.remote_open = True, False
        del self._streams[prefix.stream_id]
        self.touched.append(stream)
        stream.on_response(prefix.head, message, suffix.trailers)
        return end

    def _take_more(self, data: bytes, start: int) -> int:
        """Process the whole responses from ``start`` on whose shapes are known. Return where they end.

        Concurrent calls are often answered at once.
        """
        end = self._take_response(data, start)
        while start < end < len(data):
            start, end = end, self._take_response(data, end)
        return end

    def _take_new(self, data: bytes, turn: int) -> None:
        """Process frames one by one, and store the shapes of whole responses of the usual form."""
        state, whole = self._headers.state, self._block is None
        self._take_frames(data, turn)
        if self._may_learn and whole and self._buffer is None and len(data) <= MAX_LEARNT_BYTES:
            for prefix, suffix in islice(split_responses(state, data), self._may_learn):
                self._may_learn -= 1
                self._headers.learn(state, prefix, suffix)
                state = suffix.state

    def _take_frames(self, data: bytes, turn: int, *, at_least_one: bool = False) -> None:
        """Handle the whole frames of ``data`` that fit into ``turn``, and keep the rest (fault 65)."""
        position, size = 0, len(data)
        while size - position >= 9:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, position)
            length = high << 8 | low
            start = position + 9
            end = start + length
            if not self._control.settled or length > MAX_FRAME:
                self._check_frame(data[position:start], kind, flags, length)
            if end > size:
                self._wanted = 9 + length
                break
            turn -= 1 if kind != HEADERS and kind != CONTINUATION else self.header_cost(length)
            if turn < 0 and not at_least_one:
                self._wanted = 9
                break
            at_least_one = False
            self.budgets.spend_frame()
            if self._block is not None and (kind != CONTINUATION or stream_id & MAX_STREAM_ID != self._block_stream):
                raise WireError(WireProblem.PROTOCOL, "a header block was interrupted by another frame")
            if kind == HEADERS and flags & ~END_STREAM == END_HEADERS:
                # Nearly all header blocks are like this: whole, and without padding or priority.
                self._on_block(stream_id & MAX_STREAM_ID, data[start:end], end=flags & END_STREAM != 0)
            else:
                handler = _HANDLERS.get(kind)
                if handler is None:
                    self._control.receive(kind, flags, stream_id & MAX_STREAM_ID, data[start:end])
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

    def header_cost(self, length: int) -> int:
        """Return the cost of a part of a header block. With the last part, the whole block is decoded."""
        return 1 + len(self._headers.state.entries) + (length + len(self._block or b"")) // 2

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._streams.get(stream_id) or self.sender.find(stream_id, "DATA")
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
        if len(data) < SMALL_DATA_BYTES:
            self._count_small(data, end=end)
        if stream is None or not stream.remote_open:
            self.budgets.spend(LATE_FRAMES)
            self.sender.late_data(stream_id, size, end=end)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self.sender.fail(stream, WireError(WireProblem.FLOW_CONTROL, "more data than the stream's window"))
        elif not stream.head_done:
            self.sender.fail(stream, WireError(WireProblem.PROTOCOL, "DATA before the response headers"))
        else:
            if size != len(data):
                self.sender.used(stream, size - len(data))
            stream.remote_open = not end
            self.touched.append(stream)
            stream.on_data(data, end=end)
            if end:
                if stream.local_open:
                    self.sender.reset(stream)
                else:
                    self._streams.pop(stream_id, None)

    def _count_small(self, data: bytes, *, end: bool) -> None:
        """Charge the budgets for a DATA frame that costs more to handle than to send (fault 56)."""
        if data:
            if self.limits.small_data is not None:
                self.budgets.spend(SMALL_DATA)
        elif not end:
            self.budgets.spend(EMPTY_DATA)

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
        stream = self._streams.get(stream_id) or self.sender.find(stream_id, "HEADERS")
        block = self._headers.read(data)
        if stream is None or not stream.remote_open:
            self.budgets.spend(LATE_FRAMES)
            self.sender.late_data(stream_id, 0, end=end)
            return
        if block.malformed or stream.head_done is not (block.http_status is None) or (stream.head_done and not end):
            problem = block.malformed or _misplaced(stream, block)
            self.sender.fail(stream, WireError(WireProblem.PROTOCOL, f"malformed response headers: {problem}"))
            return
        if block.http_status is not None and block.http_status < 200:
            if end:
                error = WireError(WireProblem.PROTOCOL, "an informational response ended the stream")
                self.sender.fail(stream, error)
                return
            self.budgets.spend(INFORMATIONAL)
            return
        stream.head_done = True
        stream.remote_open = not end
        self.touched.append(stream)
        stream.on_headers(block, end=end)
        if end:
            if stream.local_open:
                # The peer will not read the rest of the request (section 8.1).
                self.sender.reset(stream)
            else:
                self._streams.pop(stream_id, None)

    #: The frames that carry parts of responses; ``Control`` handles all others.
    HANDLERS: ClassVar[dict[int, Callable[["ClientConnection", int, int, bytes], None]]] = {
        DATA: _on_data,
        HEADERS: _on_headers,
        CONTINUATION: _on_continuation,
    }


_HANDLERS: Final = ClientConnection.HANDLERS


def _misplaced(stream: Stream, block: ResponseBlock) -> str:
    """Return the rule of section 8.1 that the place of a header block in the response breaks."""
    if not stream.head_done:
        return "no :status"
    return ":status in trailers" if block.http_status is not None else "trailers that do not end the stream"
