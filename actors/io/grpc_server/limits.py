"""What a client of the server may cost, how connections end, and what the server reports: values only."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import attrs

from .budget import DEFAULT_ALLOWANCES, Allowance, FrameKind
from .stream import Peer


@attrs.frozen
class ServerLimits:
    """What one client may cost; sizes in bytes, times in seconds."""

    max_message: int = 4 * 1024 * 1024
    max_header_list: int = 65536
    #: Calls at once on one connection; those above are refused with REFUSED_STREAM, which clients retry.
    max_streams: int = 100
    #: Connections at once on one listener; those above are closed at once.
    max_connections: int = 512
    #: From the connection to the client's preface and SETTINGS, in total.
    handshake_timeout: float = 10.0
    #: Without a call in progress and without a PING. gRPC clients reconnect by themselves.
    idle_timeout: float = 3600.0
    #: For a request message to arrive whole.
    receive_timeout: float = 30.0
    #: For the client's windows to take one message.
    send_timeout: float = 60.0
    #: For the client to read what is written to it.
    write_timeout: float = 30.0
    #: For the last words (GOAWAY) of a connection that ends.
    farewell: float = 1.0
    #: For calls in progress when the server stops.
    grace: float = 5.0
    allowances: Mapping[FrameKind, Allowance] = attrs.field(factory=lambda: DEFAULT_ALLOWANCES)


class End(enum.Enum):
    """Why a connection ended."""

    #: The client closed it, or said GOAWAY.
    PEER_CLOSED = "closed by the client"
    #: The transport broke.
    BROKEN = "transport broken"
    #: We stopped.
    STOPPED = "server stopped"
    IDLE = "idle for too long"
    HANDSHAKE = "no HTTP/2 handshake in time"
    PROTOCOL = "HTTP/2 broken by the client"
    FLOOD = "frame budget exceeded"
    NOT_READING = "client does not read"
    #: What nobody foresaw was raised, in h2 or in the server itself: an error of ours, contained.
    INTERNAL = "internal error"


@attrs.frozen
class Ending:
    """How one connection ended, with what there is to say of it."""

    end: End
    detail: str = ""


@attrs.frozen
class HandlerFailed:
    """A handler raised what is no GRPCError; its client saw UNKNOWN, and nobody else anything."""

    method: str
    error: Exception


@attrs.frozen
class ConnectionEnded:
    """A connection is over; ``error`` is there where that was for an error of ours."""

    peer: Peer
    ending: Ending
    error: Exception | None = None


Report = Callable[[HandlerFailed | ConnectionEnded], None]
