"""What the server reports: how each connection ended, and which handlers failed. Values only."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from ...io.unix_socket import Credentials


@attrs.frozen
class Peer:
    """The client of a connection, with the methods that handlers written for grpclib expect of it."""

    #: None where the connection is no socket.
    credentials: Credentials | None = None

    def addr(self) -> str:
        """What grpclib calls the address; a unix client has none, so an empty string."""
        return ""

    def cert(self) -> None:
        """There is no transport security, so there never is a certificate."""
        return


class EndReason(enum.Enum):
    """Why a connection ended."""

    #: The client closed it, or sent GOAWAY.
    PEER_CLOSED = "closed by the client"
    #: The transport broke.
    BROKEN = "transport broken"
    #: The server was told to stop.
    STOPPED = "server stopped"
    IDLE = "idle for too long"
    #: It was closed at once, since so many are open.
    TOO_MANY = "too many connections"
    HANDSHAKE = "no HTTP/2 handshake in time"
    PROTOCOL = "HTTP/2 broken by the client"
    FLOOD = "frame budget exceeded"
    NOT_READING = "client does not read"
    #: h2 or the server itself raised an error that nothing foresaw; it is contained in its connection.
    INTERNAL = "internal error"


@attrs.frozen
class ConnectionEnding:
    """How one connection ended, with what else is known about it."""

    reason: EndReason
    detail: str = ""


@attrs.frozen
class HandlerFailed:
    """A handler raised an exception that is no GRPCError; only its own call saw that, as UNKNOWN."""

    method: str
    error: Exception


@attrs.frozen
class ConnectionEnded:
    """A connection is over; ``error`` is the cause if that was an error of our own."""

    peer: Peer
    ending: ConnectionEnding
    error: Exception | None = None


Report = Callable[[HandlerFailed | ConnectionEnded], None]
