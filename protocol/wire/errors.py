"""The errors of connections to plugins, as exceptions with a reason.

``DialError`` means that there is no connection; ``WireError`` means that a connection broke a rule or a limit. Both
have an enum member, by which a caller decides, and a message to show.
"""

import enum
from typing import Final

#: How many bytes of a peer's own text are repeated (fault 94).
SHOWN_BYTES: Final = 200


class DialFailure(enum.Enum):
    """Why there is no connection to a socket."""

    #: Nothing is at this path.
    GONE = "gone"
    #: No process listens, and the grace between bind and listen is over (behaviour 12, fault 28).
    REFUSED = "refused"
    #: Another file than the expected one is at the path (fault 41).
    REPLACED = "replaced"
    #: The permissions of the socket or of a directory above it forbid it (fault 29).
    DENIED = "denied"
    #: The socket is of another type, such as datagram (fault 31).
    NOT_A_STREAM = "not a stream socket"
    #: The user whose process listens may not register plugins, or is not the expected one (fault 40).
    UNTRUSTED = "untrusted"
    #: The backlog is full, and the caller itself waits for room in it (fault 30).
    FULL = "backlog full"
    #: The deadline passed, with the backlog full or while refused (fault 30).
    TIMED_OUT = "timed out"
    #: This process or this node has no descriptor left (fault 46).
    EXHAUSTED = "out of descriptors"
    #: The path cannot name a socket in the file system: empty, abstract, with a NUL, or too long (faults 23, 42).
    BAD_PATH = "bad path"
    #: Any other error of the operating system; the message names it.
    FAILED = "failed"


class DialError(Exception):
    """No connection to ``path``: ``kind`` is the reason, ``message`` describes it, and ``cause`` does so without the
    path.
    """

    def __init__(self, kind: DialFailure, path: str, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path
        self.message = message
        self.cause = cause or message


class WireProblem(enum.Enum):
    """The rule or limit that ended a connection or a call. A limit has the name of its field in ``WireLimits``."""

    #: The peer closed the connection, or it broke.
    CLOSED = "closed"
    #: The peer sent GOAWAY, and will not answer this call.
    GOING_AWAY = "going away"
    #: The peer uses another protocol (fault 66).
    NOT_HTTP2 = "not HTTP/2"
    #: A rule of RFC 9113 or of gRPC was broken.
    PROTOCOL = "protocol"
    FRAME_SIZE = "frame size"
    FLOW_CONTROL = "flow control"
    #: A header block is not valid HPACK (RFC 7541).
    COMPRESSION = "compression"
    MESSAGE_BYTES = "message_bytes"
    HEADER_LIST_BYTES = "header_list_bytes"
    CONTINUATIONS = "continuations"
    PINGS = "pings"
    SETTINGS = "settings"
    SETTINGS_ENTRIES = "settings_entries"
    EMPTY_DATA = "empty_data"
    SMALL_DATA = "small_data"
    UNKNOWN_FRAMES = "unknown_frames"
    WINDOW_UPDATES = "window_updates"
    PRIORITIES = "priorities"
    INFORMATIONAL = "informational"
    RESETS = "resets"
    LATE_FRAMES = "late_frames"
    TOTAL_BYTES = "total_bytes"
    CALL_FRAMES = "call_frames"
    CALL_HEADER_BYTES = "call_header_bytes"
    CALL_BYTES = "call_bytes"
    UNPARSED_BYTES = "unparsed_bytes"

    @property
    def is_limit(self) -> bool:
        """True if a larger limit would have let it pass."""
        return self in _LIMITS


_LIMITS: Final = frozenset(
    {
        WireProblem.MESSAGE_BYTES,
        WireProblem.HEADER_LIST_BYTES,
        WireProblem.CONTINUATIONS,
        WireProblem.PINGS,
        WireProblem.SETTINGS,
        WireProblem.SETTINGS_ENTRIES,
        WireProblem.EMPTY_DATA,
        WireProblem.SMALL_DATA,
        WireProblem.UNKNOWN_FRAMES,
        WireProblem.WINDOW_UPDATES,
        WireProblem.PRIORITIES,
        WireProblem.INFORMATIONAL,
        WireProblem.RESETS,
        WireProblem.LATE_FRAMES,
        WireProblem.TOTAL_BYTES,
        WireProblem.CALL_FRAMES,
        WireProblem.CALL_HEADER_BYTES,
        WireProblem.CALL_BYTES,
        WireProblem.UNPARSED_BYTES,
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
    """Return the name of an error code, or its number if RFC 9113 does not define it."""
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
    """A broken rule or limit ended a connection or a call: ``problem`` identifies it, and ``message`` describes it."""

    def __init__(self, problem: WireProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message

    @property
    def code(self) -> ErrorCode:
        """The code for the peer, in GOAWAY or RST_STREAM."""
        return _CODES.get(self.problem, ErrorCode.ENHANCE_YOUR_CALM)


def over_limit(problem: WireProblem, limit: int, what: str) -> WireError:
    """Return the error for ``what`` beyond ``limit``, which names the field of ``WireLimits`` to change."""
    return WireError(problem, f"{what} over the limit of {limit} (limit {problem.value})")


def shown(data: bytes) -> str:
    """Return a peer's bytes as one short line that is safe to print (faults 91, 94)."""
    text = data[:SHOWN_BYTES].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) + (
        "…" if len(data) > SHOWN_BYTES else ""
    )
