"""Frames that carry no part of a response: what they do to a connection and its streams (RFC 9113 section 6).

Each of them costs a budget, so that a flood of any kind ends (faults 54 to 60).
"""

from typing import Final

from .budgets import PINGS, PRIORITIES, RESETS, SETTINGS_FRAMES, WINDOW_UPDATES
from .errors import WireError, WireProblem, code_name, over_limit, shown
from .frames import (
    ACK,
    FRAME_BYTES,
    INITIAL_WINDOW,
    MAX_STREAM_ID,
    MAX_STREAMS,
    PING,
    SETTINGS_ACK,
    WORD,
    frame,
    read_settings,
)
from .limits import MAX_WINDOW
from .sending import Sender, Stream

MAX_OWED: Final = 1000
"""Acknowledgements that may wait because the peer does not read."""


class Control(Sender):
    """A connection that minds SETTINGS, windows, PING, PRIORITY, resets and GOAWAY."""

    __slots__ = ("_owed", "settled")

    settled: bool
    """True once the peer's first SETTINGS have come."""
    _owed: int

    def _stream(self, stream_id: int, kind: str) -> Stream | None:
        """The stream that a frame belongs to; None if it is over."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id >= self._next_id or not stream_id & 1):
            raise WireError(WireProblem.PROTOCOL, f"{kind} on stream {stream_id}, which was never opened")
        return stream

    def _break_stream(self, stream: Stream, error: WireError) -> None:
        """End one stream for an error of the peer that concerns no other (section 5.4.2)."""
        self.reset(stream, error.code)
        self.touched.append(stream)
        stream.on_failed(error)

    def on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        """RST_STREAM (section 6.4)."""
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

    def on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """GOAWAY: the calls beyond the last that the peer will answer are over (section 6.8)."""
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

    def on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """SETTINGS, or the acknowledgement of ours (section 6.5)."""
        if stream_id:
            raise WireError(WireProblem.PROTOCOL, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise WireError(WireProblem.FRAME_SIZE, "SETTINGS of a wrong size")
        self.budgets.spend(SETTINGS_FRAMES)
        if not self.settled:
            self.settled = True
            self.max_streams = None
        if not flags & ACK:
            self._apply_settings(payload)

    def _apply_settings(self, payload: bytes) -> None:
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

    def on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        """WINDOW_UPDATE (section 6.9)."""
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

    def on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """PING, or the answer to one (section 6.7)."""
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

    def on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """PRIORITY, which says nothing any more (section 5.3.2)."""
        if not stream_id or len(payload) != 5:
            raise WireError(WireProblem.FRAME_SIZE if stream_id else WireProblem.PROTOCOL, "malformed PRIORITY")
        self.budgets.spend(PRIORITIES)

    def on_push_promise(self, *_: object) -> None:
        """PUSH_PROMISE, which no server may send to us (section 8.4)."""
        raise WireError(WireProblem.PROTOCOL, "PUSH_PROMISE, though push is disabled")
