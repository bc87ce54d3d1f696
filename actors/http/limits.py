"""The kinds of places of the HTTP server, and its limits."""

from __future__ import annotations

import enum

from ...protocol.values import value


class Place(enum.Enum):
    """The kind of place that a request occupies, by the field of ``HttpLimits`` that limits it."""

    __hash__ = object.__hash__  # Members are compared by identity, and the hash of ``Enum`` is a function of Python.

    UNREAD = "unread"
    QUERY = "connections"
    STREAM = "streams"
    HEALTH = "health"
    LEASE = "leases"
    HANDLER = "handlers"


@value
class HttpLimits:
    """The limits of clients; times are in seconds."""

    #: Connections whose request is not whole yet.
    unread: int = 64
    #: Requests that are answered at once, not counting those for streams and for health.
    connections: int = 64
    #: Endless streams.
    streams: int = 64
    #: Requests for health.
    health: int = 16
    #: Allocations that wait for devices, and connections that own a lease.
    leases: int = 256
    #: Streams of handlers.
    handlers: int = 64
    #: Bytes of the request line and headers together.
    header_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    #: Bytes that all answers in pieces hold together for clients that have not read them.
    unsent: int = 32 * 1024 * 1024
    #: For the whole request to arrive, however its bytes are spread.
    request: float = 10.0
    #: For a response that is not a stream to be made and taken.
    response: float = 60.0
    #: For the client to take one piece of a stream.
    piece: float = 30.0

    def number_of(self, place: Place) -> int:
        """Return how many places of a kind there are."""
        limit: int = getattr(self, place.value)
        return limit
