"""The limits of a peer. Every limit has a default, and exceeding it causes an error that names it.

The budgets of control frames are per connection and per ``budget_period``: keep-alive is answered on a stream that
lives for hours, and a flood ends within one period. The parsers have no clock, so the code that drives a connection
calls ``Budgets.replenish`` after each period.

The budgets of a call are refilled whenever a call begins. ``WireLimits()`` has none, so that a stream can last forever;
``REGISTRATION_LIMITS`` are for calls with one small answer, and ``ENDPOINT_LIMITS`` for the connection to an endpoint,
on which a plugin sends lists of devices as long as it lives.
"""

import struct
import sys
from typing import Final

import attrs

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
#: A DATA frame with fewer bytes costs more to handle than to send.
SMALL_DATA_BYTES: Final = 64
#: The value of a budget without a limit.
UNLIMITED: Final = sys.maxsize


def _positive(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, not {value}")


def _window(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if not DEFAULT_WINDOW <= value <= MAX_WINDOW:
        raise ValueError(f"{attribute.name} must be from {DEFAULT_WINDOW} to {MAX_WINDOW}, not {value}")


@attrs.frozen
class WireLimits:
    """Limits of one client connection. Sizes are in bytes, counts in frames, ``budget_period`` in seconds."""

    #: The largest message that is received; a longer length prefix is refused before anything is kept (fault 50).
    message_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=_positive)
    #: The largest header list, counted as RFC 7541 section 4.1 does, and the largest block of it (faults 52, 61).
    header_list_bytes: int = attrs.field(default=64 * 1024, validator=_positive)
    #: CONTINUATION frames in one header block (fault 53).
    continuations: int = attrs.field(default=16, validator=_positive)
    #: PING frames in one period, beyond one for each DATA frame that we sent (fault 54).
    pings: int = attrs.field(default=100, validator=_positive)
    #: SETTINGS frames in one period (fault 55).
    settings: int = attrs.field(default=32, validator=_positive)
    #: Entries of all SETTINGS frames in one period; one frame has room for 2,730 (fault 55).
    settings_entries: int = attrs.field(default=256, validator=_positive)
    #: DATA frames without a byte of data in one period (fault 56).
    empty_data: int = attrs.field(default=100, validator=_positive)
    #: DATA frames with 1 to ``SMALL_DATA_BYTES - 1`` bytes in one period; None for no limit (fault 56).
    small_data: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    #: 1xx header blocks in one period (fault 57).
    informational: int = attrs.field(default=16, validator=_positive)
    #: WINDOW_UPDATE frames in one period, beyond two for each DATA frame that we sent (fault 58).
    window_updates: int = attrs.field(default=1000, validator=_positive)
    #: PRIORITY frames in one period (fault 58).
    priorities: int = attrs.field(default=100, validator=_positive)
    #: Frames of types that RFC 9113 does not define, in one period (fault 58).
    unknown_frames: int = attrs.field(default=100, validator=_positive)
    #: GOAWAY frames, and RST_STREAM frames for calls that have ended, in one period (fault 60).
    resets: int = attrs.field(default=100, validator=_positive)
    #: HEADERS and DATA frames for calls that have ended, in one period or since the last call that we cancelled.
    late_frames: int = attrs.field(default=4096, validator=_positive)
    #: Bytes that a connection can receive in all; None for no limit (fault 64).
    total_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    #: Frames of all kinds for one call; None for no limit (faults 53 to 60).
    call_frames: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    #: Header work for one call: the bytes of header blocks and of the lists that they decode to, and 32 for each entry
    #: of the dynamic table at each block (faults 57 and 61).
    call_header_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    #: Bytes that are received for one call, frames and padding included (fault 64).
    call_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    #: Bytes that all connections of a node can hold unparsed, together (fault 65). With the overhead of buffers, that
    #: is about 8 MiB of memory.
    unparsed_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=_positive)
    #: Bytes of one call that can be under way or kept unread, beyond one message (fault 65).
    stream_window: int = attrs.field(default=256 * 1024, validator=_window)
    #: Bytes of all calls of a connection that can be under way.
    connection_window: int = attrs.field(default=1024 * 1024, validator=_window)
    #: Seconds after which the budgets of frames are refilled.
    budget_period: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    #: The limits of frames in the order of ``plugind.protocol.wire.budgets``.
    budgets: tuple[int, ...] = attrs.field(init=False, repr=False, eq=False)
    #: The budgets of one call: frames, header work and bytes; ``UNLIMITED`` for no limit.
    call_budgets: tuple[int, int, int] = attrs.field(init=False, repr=False, eq=False)
    #: The first bytes of a connection with these limits: preface, SETTINGS, WINDOW_UPDATE.
    preamble: bytes = attrs.field(init=False, repr=False, eq=False)

    @budgets.default
    def _list_budgets(self) -> tuple[int, ...]:
        return (
            self.pings,
            self.settings,
            self.empty_data,
            self.informational,
            self.window_updates,
            self.priorities,
            self.unknown_frames,
            self.resets,
            self.late_frames,
            self.settings_entries,
            UNLIMITED if self.small_data is None else self.small_data,
        )

    @call_budgets.default
    def _list_call_budgets(self) -> tuple[int, int, int]:
        frames, header_bytes, size = (
            UNLIMITED if limit is None else limit
            for limit in (self.call_frames, self.call_header_bytes, self.call_bytes)
        )
        return frames, header_bytes, size

    @preamble.default
    def _make_preamble(self) -> bytes:
        values = ((0x2, 0), (0x4, self.stream_window), (0x6, self.header_list_bytes))
        settings = b"".join(struct.pack(">HI", key, min(max(value, 0), 2**32 - 1)) for key, value in values)
        # Defaults are computed before the validation, which refuses the values that are clamped here.
        more = max(0, min(self.connection_window, MAX_WINDOW) - DEFAULT_WINDOW)
        update = struct.pack(">HBBBII", 0, 4, 8, 0, 0, more) if more else b""
        return PREFACE + struct.pack(">HBBBI", 0, len(settings), 4, 0, 0) + settings + update


DEFAULT_LIMITS: Final = WireLimits()

#: The limits of a registration's connection. GetInfo and NotifyRegistrationStatus have one small answer each: grpcio,
#: grpc-go, grpclib, grpc-js and nghttp2 send at most 20 frames for a call and less than a kilobyte of headers.
REGISTRATION_LIMITS: Final = WireLimits(
    message_bytes=64 * 1024,
    settings_entries=128,
    call_frames=256,
    call_header_bytes=32 * 1024,
    call_bytes=256 * 1024,
    stream_window=DEFAULT_WINDOW,
    connection_window=DEFAULT_WINDOW,
)

#: The limits of the connection to an endpoint. A list of 10,000 devices has about 600 KiB, and a list cannot be larger
#: than a message of grpc-go. A list in small frames, or many tiny lists, would cost too much.
ENDPOINT_LIMITS: Final = WireLimits(
    message_bytes=4 * 1024 * 1024,
    header_list_bytes=16 * 1024,
    small_data=10_000,
    unparsed_bytes=32 * 1024 * 1024,
)
