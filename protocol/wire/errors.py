"""What can go wrong between us and a plugin's socket, as values with a reason.

`DialError` says that no connection came about; `WireError` that one came about and then broke a rule or a limit. Both
carry an enum, so that a caller decides by kind and shows the message, and never the other way round.
"""

import enum
from typing import Final

SHOWN_BYTES: Final = 200
"""How much of a peer's own text is repeated in a reason (fault 94)."""


class DialFailure(enum.Enum):
    """Why no connection to a socket came about."""

    GONE = "gone"
    """Nothing is at this path."""
    REFUSED = "refused"
    """Nobody listens, and the grace between bind and listen is over (behaviour 12, fault 28)."""
    DENIED = "denied"
    """The permissions of the socket or of a directory above it forbid it (fault 29)."""
    NOT_A_STREAM = "not a stream socket"
    """The socket is of another type, such as datagram (fault 31)."""
    TIMED_OUT = "timed out"
    """The deadline passed, with the backlog full or while refused (fault 30)."""
    EXHAUSTED = "out of descriptors"
    """This process or this node has no descriptor left (fault 46)."""
    BAD_PATH = "bad path"
    """The path cannot name a socket in the file system: empty, abstract, with a NUL, or too long (faults 23, 42)."""
    FAILED = "failed"
    """Any other error of the operating system; the message names it."""


class DialError(Exception):
    """No connection to `path`; `kind` says why."""

    def __init__(self, kind: DialFailure, path: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path
        self.message = message


class WireProblem(enum.Enum):
    """Which rule or limit ended a connection or a call. A limit's value is the name of its field in `Limits`."""

    CLOSED = "closed"
    """The peer closed the connection, or it broke."""
    GOING_AWAY = "going away"
    """The peer said GOAWAY, and this call is not among those that it will answer."""
    NOT_HTTP2 = "not HTTP/2"
    """The peer speaks something else (fault 66)."""
    PROTOCOL = "protocol"
    """A rule of RFC 9113 or of gRPC was broken."""
    FRAME_SIZE = "frame size"
    FLOW_CONTROL = "flow control"
    COMPRESSION = "compression"
    """A header block that is no HPACK (RFC 7541)."""
    MESSAGE_BYTES = "message_bytes"
    HEADER_LIST_BYTES = "header_list_bytes"
    CONTINUATIONS = "continuations"
    PINGS = "pings"
    SETTINGS = "settings"
    EMPTY_DATA = "empty_data"
    UNKNOWN_FRAMES = "unknown_frames"
    WINDOW_UPDATES = "window_updates"
    PRIORITIES = "priorities"
    INFORMATIONAL = "informational"
    RESETS = "resets"
    LATE_FRAMES = "late_frames"
    TOTAL_BYTES = "total_bytes"

    @property
    def is_limit(self) -> bool:
        """True for what a larger limit would have let pass."""
        return self in _LIMITS


_LIMITS: Final = frozenset(
    {
        WireProblem.MESSAGE_BYTES,
        WireProblem.HEADER_LIST_BYTES,
        WireProblem.CONTINUATIONS,
        WireProblem.PINGS,
        WireProblem.SETTINGS,
        WireProblem.EMPTY_DATA,
        WireProblem.UNKNOWN_FRAMES,
        WireProblem.WINDOW_UPDATES,
        WireProblem.PRIORITIES,
        WireProblem.INFORMATIONAL,
        WireProblem.RESETS,
        WireProblem.LATE_FRAMES,
        WireProblem.TOTAL_BYTES,
    }
)


class ErrorCode(enum.IntEnum):
    """HTTP/2 error codes (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def code_name(code: int) -> str:
    """The name of an error code, or its number where RFC 9113 has none."""
    return ErrorCode(code).name if 0 <= code <= 0xD else f"error code {code:#x}"


_CODES: Final = {
    WireProblem.CLOSED: ErrorCode.NO_ERROR,
    WireProblem.GOING_AWAY: ErrorCode.NO_ERROR,
    WireProblem.NOT_HTTP2: ErrorCode.PROTOCOL_ERROR,
    WireProblem.PROTOCOL: ErrorCode.PROTOCOL_ERROR,
    WireProblem.FRAME_SIZE: ErrorCode.FRAME_SIZE_ERROR,
    WireProblem.FLOW_CONTROL: ErrorCode.FLOW_CONTROL_ERROR,
    WireProblem.COMPRESSION: ErrorCode.COMPRESSION_ERROR,
}


class WireError(Exception):
    """A connection or a call ended by a broken rule or limit; `problem` says which, the message says it in words."""

    def __init__(self, problem: WireProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message

    @property
    def code(self) -> ErrorCode:
        """What the peer is told in GOAWAY or RST_STREAM."""
        return _CODES.get(self.problem, ErrorCode.ENHANCE_YOUR_CALM)


def over_limit(problem: WireProblem, limit: int, what: str) -> WireError:
    """The error for `what` beyond `limit`, naming the field of `Limits` to change."""
    return WireError(problem, f"{what} over the limit of {limit} (limit {problem.value})")


def shown(data: bytes) -> str:
    """A peer's bytes as one short line that is safe to print (faults 91, 94)."""
    text = data[:SHOWN_BYTES].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) + (
        "…" if len(data) > SHOWN_BYTES else ""
    )
