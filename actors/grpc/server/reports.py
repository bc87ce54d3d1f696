"""The server's reports: how each connection ended, and which handlers failed. Values only."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from ...io.unix_socket import Credentials


@attrs.frozen
class Peer:
    """The client of a connection, with the methods that handlers written for grpclib expect."""

    #: None if the connection is no socket.
    credentials: Credentials | None = None

    def addr(self) -> str:
        """Return an empty string, since a unix client has no address."""
        return ""

    def cert(self) -> None:
        """Return None, since there is no transport security."""
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
    #: Closed at once, because too many connections are open.
    TOO_MANY = "too many connections"
    HANDSHAKE = "no HTTP/2 handshake in time"
    PROTOCOL = "HTTP/2 broken by the client"
    FLOOD = "frame budget exceeded"
    NOT_READING = "client does not read"
    #: An unexpected error in h2 or the server, contained in its connection.
    INTERNAL = "internal error"


@attrs.frozen
class ConnectionEnding:
    """How one connection ended, with details."""

    reason: EndReason
    detail: str = ""


@attrs.frozen
class HandlerFailed:
    """A handler raised an exception other than GRPCError; its call ended with UNKNOWN."""

    method: str
    error: Exception


@attrs.frozen
class ConnectionEnded:
    """A connection has ended; ``error`` is the cause if that was an error of the server."""

    peer: Peer
    ending: ConnectionEnding
    error: Exception | None = None


Report = Callable[[HandlerFailed | ConnectionEnded], None]
