"""Frames that are not part of a response: their effect on a connection and its streams (RFC 9113 section 6).

Each of them costs a budget, so that a flood of any kind ends (faults 54 to 60).
"""

from collections.abc import Callable
from typing import ClassVar, Final

from .budgets import (
    PINGS,
    PRIORITIES,
    RESETS,
    SETTINGS_ENTRIES,
    SETTINGS_FRAMES,
    UNKNOWN_FRAMES,
    WINDOW_UPDATES,
    Budgets,
)
from .errors import WireError, WireProblem, code_name, over_limit, shown
from .frames import (
    ACK,
    FRAME_BYTES,
    GOAWAY,
    INITIAL_WINDOW,
    MAX_STREAM_ID,
    MAX_STREAMS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING_BYTES,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    WORD,
    frame,
    read_settings,
)
from .hpack_cache import ResponsePrefix
from .limits import MAX_WINDOW
from .sending import Sender, Stream

#: How many acknowledgements can wait because the peer does not read.
MAX_UNREAD_ACKS: Final = 1000


class Control:
    """Handles SETTINGS, PING, PRIORITY, GOAWAY, window updates and resets of the peer of ``sender``."""

    __slots__ = ("_budgets", "_sender", "_unread_acks", "settled")

    def __init__(self, sender: Sender, budgets: Budgets) -> None:
        self._sender = sender
        self._budgets = budgets
        #: True once the peer's first SETTINGS have come.
        self.settled = False
        #: Acknowledgements added since the peer last had nothing left to read.
        self._unread_acks = 0

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle one frame of a type that is not DATA, HEADERS or CONTINUATION.

        Raises:
            WireError: the frame breaks a rule, or there are too many of its kind; the connection must end.
        """
        handler = _HANDLERS.get(kind)
        if handler is None:
            self._budgets.spend(UNKNOWN_FRAMES)
        else:
            handler(self, flags, stream_id, payload)

    def take_settings(self, prefix: ResponsePrefix) -> bool:
        """Apply the SETTINGS with which a whole response begins.

        Return False, with nothing changed, if they exceed the budget, or are missing where they must come first.
        """
        limits, spent = self._sender.limits, self._budgets.spent
        frames = spent[SETTINGS_FRAMES] + prefix.settings_frames
        entries = spent[SETTINGS_ENTRIES] + prefix.settings_entries
        if frames > limits.settings or entries > limits.settings_entries:
            return False
        if not (self.settled or prefix.settings_frames):
            return False
        spent[SETTINGS_FRAMES], spent[SETTINGS_ENTRIES] = frames, entries
        self._budgets.counted += prefix.settings_frames
        self._settle()
        for payload in prefix.settings:
            self._apply_settings(payload)
        return True

    def _on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        """RST_STREAM (section 6.4)."""
        sender = self._sender
        stream = sender.find(stream_id, "RST_STREAM")
        if len(payload) != 4:
            raise WireError(WireProblem.FRAME_SIZE, "RST_STREAM of a wrong size")
        if stream is None:
            self._budgets.spend(RESETS)
            sender.abandoned.pop(stream_id, None)
        else:
            del sender.streams[stream_id]
            stream.local_open = stream.remote_open = False
            sender.touched.append(stream)
            stream.on_reset(WORD.unpack(payload)[0])

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """GOAWAY: the calls after the last one that the peer will answer have failed (section 6.8)."""
        if stream_id or len(payload) < 8:
            raise WireError(WireProblem.PROTOCOL if stream_id else WireProblem.FRAME_SIZE, "malformed GOAWAY")
        self._budgets.spend(RESETS)
        last, code = WORD.unpack_from(payload)[0] & MAX_STREAM_ID, WORD.unpack_from(payload, 4)[0]
        said = f": {shown(payload[8:])}" if len(payload) > 8 else ""
        error = WireError(WireProblem.GOING_AWAY, f"the peer is going away ({code_name(code)}{said})")
        self._sender.refuse(error, last)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """SETTINGS, or the acknowledgement of ours (section 6.5)."""
        if stream_id:
            raise WireError(WireProblem.PROTOCOL, "SETTINGS on a stream")
        if len(payload) % SETTING_BYTES or (flags & ACK and payload):
            raise WireError(WireProblem.FRAME_SIZE, "SETTINGS of a wrong size")
        self._budgets.spend(SETTINGS_FRAMES)
        if payload:
            # The entries are counted before they are read.
            self._budgets.charge(SETTINGS_ENTRIES, len(payload) // SETTING_BYTES)
        self._settle()
        if not flags & ACK:
            self._apply_settings(payload)

    def _settle(self) -> None:
        """Drop the limit of streams that is assumed before the first SETTINGS."""
        if not self.settled:
            self.settled = True
            self._sender.max_streams = None

    def _apply_settings(self, payload: bytes) -> None:
        for key, value in read_settings(payload) if payload else ():
            if key == INITIAL_WINDOW:
                self._on_initial_window(value)
            elif key == FRAME_BYTES:
                self._sender.max_frame = min(value, 65_536)
            elif key == MAX_STREAMS:
                self._sender.max_streams = value
        self._acknowledge(SETTINGS_ACK)

    def _on_initial_window(self, value: int) -> None:
        sender = self._sender
        change, sender.initial_window = value - sender.initial_window, value
        for stream in sender.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise WireError(WireProblem.FLOW_CONTROL, "a stream's window beyond 2^31-1")
            sender.touched.append(stream)

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        """WINDOW_UPDATE (section 6.9)."""
        if len(payload) != 4:
            raise WireError(WireProblem.FRAME_SIZE, "WINDOW_UPDATE of a wrong size")
        self._budgets.spend(WINDOW_UPDATES)
        sender = self._sender
        more = WORD.unpack(payload)[0] & MAX_WINDOW
        if stream_id:
            self._on_stream_window(sender.find(stream_id, "WINDOW_UPDATE"), more)
            return
        if not more:
            raise WireError(WireProblem.PROTOCOL, "WINDOW_UPDATE by nothing")
        if sender.send_window <= 0:
            sender.touched.extend(sender.streams.values())
        sender.send_window += more
        if sender.send_window > MAX_WINDOW:
            raise WireError(WireProblem.FLOW_CONTROL, "the connection's window beyond 2^31-1")

    def _on_stream_window(self, stream: Stream | None, more: int) -> None:
        if stream is None:
            return
        stream.send_window += more
        if not more:
            self._sender.fail(stream, WireError(WireProblem.PROTOCOL, "WINDOW_UPDATE by nothing"))
        elif stream.send_window > MAX_WINDOW:
            self._sender.fail(stream, WireError(WireProblem.FLOW_CONTROL, "a stream's window beyond 2^31-1"))
        else:
            self._sender.touched.append(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """PING, or the answer to one (section 6.7)."""
        if stream_id or len(payload) != 8:
            raise WireError(WireProblem.PROTOCOL if stream_id else WireProblem.FRAME_SIZE, "malformed PING")
        self._budgets.spend(PINGS)
        if not flags & ACK:
            self._acknowledge(frame(PING, ACK, 0, payload))

    def _acknowledge(self, answer: bytes) -> None:
        """Answer the peer. A peer that asks forever and reads no answers loses its connection (fault 65)."""
        outgoing = self._sender.outgoing
        self._unread_acks = self._unread_acks + 1 if outgoing else 0
        if self._unread_acks > MAX_UNREAD_ACKS:
            raise over_limit(WireProblem.PINGS, MAX_UNREAD_ACKS, "acknowledgements that the peer does not read")
        outgoing += answer

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """PRIORITY, which no longer has a meaning (section 5.3.2)."""
        if not stream_id or len(payload) != 5:
            raise WireError(WireProblem.FRAME_SIZE if stream_id else WireProblem.PROTOCOL, "malformed PRIORITY")
        self._budgets.spend(PRIORITIES)

    def _on_push_promise(self, *_: object) -> None:
        """PUSH_PROMISE, which no server may send to us (section 8.4)."""
        raise WireError(WireProblem.PROTOCOL, "PUSH_PROMISE, though push is disabled")

    HANDLERS: ClassVar[dict[int, Callable[["Control", int, int, bytes], None]]] = {
        PRIORITY: _on_priority,
        RST_STREAM: _on_reset,
        SETTINGS: _on_settings,
        PUSH_PROMISE: _on_push_promise,
        PING: _on_ping,
        GOAWAY: _on_goaway,
        WINDOW_UPDATE: _on_window_update,
    }


_HANDLERS: Final = Control.HANDLERS
