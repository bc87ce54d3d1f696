"""Sending on an HTTP/2 connection: requests, data within the peer's windows, resets, credit (RFC 9113).

No header field that we send uses HPACK's dynamic table. The first block of a connection sets the table's size to zero,
which is within any limit that the peer announces (RFC 7541 section 4.2); after that a block is a constant.
"""

from typing import Final

from .budgets import LATE_FRAMES, PINGS, WINDOW_UPDATES, Budgets
from .errors import ErrorCode, WireError, WireProblem
from .frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    MAX_FRAME,
    MAX_STREAM_ID,
    NO_DYNAMIC_TABLE,
    RST_STREAM,
    WINDOW_UPDATE,
    WORD,
    frame,
)
from .hpack_cache import ResponseBlock
from .limits import DEFAULT_WINDOW, WireLimits

#: How many calls can begin before the peer announces its limit; no server should have a lower one (section 6.5.2).
STREAMS_BEFORE_SETTINGS: Final = 100


#: How many of the streams that we reset are kept, so that their windows still apply.
MAX_ABANDONED: Final = 100
#: The window of a stream whose late frames are all dropped, because the peer was answered already.
_ANSWERED: Final = -1


class Stream:
    """One request and its response: the state that HTTP/2 keeps for it, and its events, which subclasses define."""

    __slots__ = ("head_done", "id", "local_open", "receive_window", "remote_open", "send_window", "unacknowledged")

    def __init__(self) -> None:
        #: The stream's number; 0 until the request begins.
        self.id = 0
        #: Bytes that the peer's window for this stream still allows. SETTINGS can make it negative.
        self.send_window = 0
        #: Bytes that our window for this stream still allows the peer.
        self.receive_window = 0
        #: Bytes that were used and not credited to the peer yet.
        self.unacknowledged = 0
        #: True until the request has ended.
        self.local_open = False
        #: True until the response has ended.
        self.remote_open = False
        #: True once the response headers have come.
        self.head_done = False

    def on_headers(self, block: ResponseBlock, *, end: bool) -> None:
        """The response headers, or the trailers, have come."""
        raise NotImplementedError

    def on_data(self, data: bytes, *, end: bool) -> None:
        """A piece of the body has come. Call ``Sender.used`` when it is no longer kept."""
        raise NotImplementedError

    def on_response(self, head: ResponseBlock, data: bytes, trailers: ResponseBlock) -> None:
        """A whole response has come at once: headers, one piece of the body, trailers. The stream has ended."""
        self.on_headers(head, end=False)
        self.on_data(data, end=False)
        self.on_headers(trailers, end=True)

    @property
    def kept(self) -> int:
        """Bytes of the body that are kept for the caller; subclasses that keep any override this."""
        return 0

    def on_reset(self, code: int) -> None:
        """The peer ended the stream with an error code, possibly NO_ERROR."""
        raise NotImplementedError

    def on_failed(self, error: WireError) -> None:
        """The stream, or its whole connection, broke a rule or a limit, or ended."""
        raise NotImplementedError


class Sender:
    """The sending half of a connection, and its open streams."""

    __slots__ = (
        "_budgets",
        "_next_id",
        "abandoned",
        "initial_window",
        "limits",
        "max_frame",
        "max_streams",
        "outgoing",
        "refused",
        "send_window",
        "streams",
        "touched",
    )

    def __init__(self, limits: WireLimits, budgets: Budgets) -> None:
        self.limits = limits
        self._budgets = budgets
        #: The bytes to send. The code that sends a part deletes that part. Never replaced by another object.
        self.outgoing = bytearray(limits.preamble)
        #: The open streams by number. Never replaced by another object.
        self.streams: dict[int, Stream] = {}
        #: The last streams that we reset and the peer has not ended, with the bytes that our windows still allow it.
        #: Negative if the peer was told that there were too many bytes, or that the stream was closed.
        self.abandoned: dict[int, int] = {}
        #: The streams that got an event or room to send. The reader clears it. Never replaced by another object.
        self.touched: list[Stream] = []
        #: Why no new stream can be opened: the peer sent GOAWAY, or the connection has ended.
        self.refused: WireError | None = None
        #: Bytes that the peer's window for the connection still allows.
        self.send_window = DEFAULT_WINDOW
        #: The largest frame that we send.
        self.max_frame = MAX_FRAME
        #: How many concurrent streams the peer accepts; None if it sets no limit.
        self.max_streams: int | None = STREAMS_BEFORE_SETTINGS
        #: The peer's window for a new stream.
        self.initial_window = DEFAULT_WINDOW
        self._next_id = 1

    @property
    def can_open(self) -> bool:
        """True while the peer accepts one more stream."""
        if self.refused or self._next_id > MAX_STREAM_ID:
            return False
        return self.max_streams is None or len(self.streams) < self.max_streams

    @property
    def refusal(self) -> WireError | None:
        """Why no stream can ever be opened again, if that is so."""
        if self._next_id > MAX_STREAM_ID:
            return WireError(WireProblem.GOING_AWAY, "the connection has used up its stream numbers")
        return self.refused

    def find(self, stream_id: int, kind: str) -> Stream | None:
        """Return the stream of a frame of type ``kind``; None if the stream has ended.

        Raises:
            WireError: the stream was never opened.
        """
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id >= self._next_id or not stream_id & 1):
            raise WireError(WireProblem.PROTOCOL, f"{kind} on stream {stream_id}, which was never opened")
        return stream

    def open(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Begin a request with a header block made of ``literal_field`` and static entries.

        ``can_open`` must be true.
        """
        self._budgets.begin_call()
        number = stream.id = self._next_id
        stream.send_window = self.initial_window
        stream.receive_window = self.limits.stream_window
        stream.local_open = not end
        stream.remote_open = True
        if number == 1:
            block = NO_DYNAMIC_TABLE + block
        self._next_id = number + 2
        self.streams[number] = stream
        flags = END_STREAM if end else 0
        size = len(block)
        if size <= MAX_FRAME:
            self.outgoing += HEAD.pack(size >> 8, size & 0xFF, HEADERS, flags | END_HEADERS, number) + block
            return
        kind = HEADERS
        for start in range(0, size, MAX_FRAME):
            last = END_HEADERS if start + MAX_FRAME >= size else 0
            self.outgoing += frame(kind, flags | last, number, block[start : start + MAX_FRAME])
            kind, flags = CONTINUATION, 0

    def request(self, stream: Stream, block: bytes, data: bytes) -> bool:
        """Begin and end a request at once. Return False, with nothing changed, if that is not possible.

        ``can_open`` must be true.
        """
        size, length = len(block) + 1, len(data)
        window = self.send_window - length
        if size > MAX_FRAME or length > self.max_frame or window < 0 or length > self.initial_window:
            return False
        self._budgets.begin_call()
        number = stream.id = self._next_id
        if number == 1:
            block = NO_DYNAMIC_TABLE + block
        else:
            size -= 1
        stream.send_window = self.initial_window - length
        stream.receive_window = self.limits.stream_window
        stream.remote_open = True
        self._next_id = number + 2
        self.streams[number] = stream
        self.send_window = window
        self._expect_answers()
        self.outgoing += b"".join(
            (
                HEAD.pack(size >> 8, size & 0xFF, HEADERS, END_HEADERS, number),
                block,
                HEAD.pack(length >> 8, length & 0xFF, DATA, END_STREAM, number),
                data,
            )
        )
        return True

    def send(self, stream: Stream, data: bytes | memoryview, *, end: bool) -> int:
        """Send as much of ``data`` as the windows allow, with ``end`` after the last byte. Return how many bytes."""
        size = len(data)
        # A frame without data needs no window, even if SETTINGS made it negative (section 6.9.2).
        if not size or (size <= self.max_frame and size <= self.send_window and size <= stream.send_window):
            self._send_frame(stream, data, size, end=end)
            return size
        sent = 0
        while sent < size:
            part = min(size - sent, self.max_frame, self.send_window, stream.send_window)
            if part <= 0:
                break
            self._send_frame(stream, data[sent : sent + part], part, end=end and sent + part == size)
            sent += part
        return sent

    def _send_frame(self, stream: Stream, data: bytes | memoryview, size: int, *, end: bool) -> None:
        self.outgoing += HEAD.pack(size >> 8, size & 0xFF, DATA, END_STREAM if end else 0, stream.id)
        self.outgoing += data
        self.send_window -= size
        stream.send_window -= size
        self._expect_answers()
        if end:
            stream.local_open = False

    def _expect_answers(self) -> None:
        """Leave room in the budgets for what a peer sends when it accepts one frame of data."""
        spent = self._budgets.spent
        # It credits the data twice: to the stream and to the connection.
        spent[WINDOW_UPDATES] -= 2
        # A grpc-go server measures the round-trip time by a PING.
        spent[PINGS] -= 1

    def reset(self, stream: Stream, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End a stream from our side, if it is still open."""
        if stream.local_open or stream.remote_open:
            remote_open, stream.local_open, stream.remote_open = stream.remote_open, False, False
            if self.streams.pop(stream.id, None) is not None:
                self.outgoing += frame(RST_STREAM, 0, stream.id, WORD.pack(code))
                # Frames that the peer sent before it received this are no errors.
                self._budgets.spent[LATE_FRAMES] = 0
                if remote_open:
                    self._abandon(stream.id, stream.receive_window)

    def _abandon(self, stream_id: int, window: int) -> None:
        if len(self.abandoned) >= MAX_ABANDONED:
            del self.abandoned[next(iter(self.abandoned))]
        self.abandoned[stream_id] = window

    def late_data(self, stream_id: int, size: int, *, end: bool) -> None:
        """Count DATA, or HEADERS with size 0, for a stream that has ended.

        Data that the peer sent before it received our reset is dropped, up to the stream's window (sections 5.1 and
        6.9.1). Data beyond that, and any frame on a stream that the peer itself has ended, is answered by a reset.
        """
        left = self.abandoned.get(stream_id)
        if left is None:
            self._answer(stream_id, ErrorCode.STREAM_CLOSED)
        elif left < 0:
            return
        elif size > left:
            self._answer(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        elif end:
            del self.abandoned[stream_id]
        else:
            self.abandoned[stream_id] = left - size

    def _answer(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream that has ended: once, and not for a peer that does not read."""
        self.abandoned.pop(stream_id, None)
        self._abandon(stream_id, _ANSWERED)
        if len(self.outgoing) <= MAX_FRAME:
            self.outgoing += frame(RST_STREAM, 0, stream_id, WORD.pack(code))

    def fail(self, stream: Stream, error: WireError) -> None:
        """End one stream for an error of the peer that affects no other stream (section 5.4.2)."""
        self.reset(stream, error.code)
        self.touched.append(stream)
        stream.on_failed(error)

    def refuse(self, error: WireError, last: int = 0) -> None:
        """Open no more streams, because of ``error``, which ends the open streams with numbers above ``last``."""
        self.refused = error
        for stream in [stream for stream in self.streams.values() if stream.id > last]:
            del self.streams[stream.id]
            stream.local_open = stream.remote_open = False
            self.touched.append(stream)
            stream.on_failed(error)

    def used(self, stream: Stream, size: int) -> None:
        """Credit ``size`` bytes of the stream's body that are no longer kept to the peer (section 6.9)."""
        stream.unacknowledged += size
        if stream.unacknowledged * 2 >= self.limits.stream_window and stream.remote_open:
            self.outgoing += frame(WINDOW_UPDATE, 0, stream.id, WORD.pack(stream.unacknowledged))
            stream.receive_window += stream.unacknowledged
            stream.unacknowledged = 0
