"""The places of an HTTP server: how many connections of each kind it serves at once, and who loses a place to whom."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

import attrs
import trio

from ..io.client_streams import AcceptedStream
from ..io.unix_socket import Credentials
from .limits import Place

__all__ = ["AllPlaces", "Connection", "Place", "Standing"]

#: The places that the oldest holder loses to a new request, since a correct client would have finished by then.
_YIELDING = (Place.UNREAD, Place.HEALTH)
#: Those that a client may have for long.
_LASTING = {Place.STREAM: "a stream", Place.LEASE: "an allocation", Place.HANDLER: "a handler"}


class Standing(enum.Enum):
    """What the user at the other end of a connection may ask."""

    ALLOWED = enum.auto()
    GUEST = enum.auto()
    STRANGER = enum.auto()


@attrs.define(eq=False)
class Connection:
    """One connection, and the place that it holds."""

    stream: AcceptedStream
    #: None where the kernel does not tell.
    peer: Credentials | None
    standing: Standing
    #: Whether its descriptor is one that the reserve lacks.
    reserved: bool
    #: Ends it. Its deadline is that of what is done now.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    since: float = attrs.field(factory=trio.current_time)
    place: Place = Place.UNREAD


@attrs.define
class AllPlaces:
    """The places of one server. Guests and strangers together have at most half of those of each kind."""

    _limit: Callable[[Place], int]
    _limits: dict[Place, int] = attrs.field(init=False)
    #: The connections that hold a place of each kind, in the order in which they took it.
    _holders: dict[Place, dict[Connection, None]] = attrs.field(factory=lambda: {place: {} for place in Place})

    def __attrs_post_init__(self) -> None:
        self._limits = {place: self._limit(place) for place in Place}

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over all connections."""
        for holders in self._holders.values():
            yield from holders

    def why_none(self, connection: Connection, place: Place) -> str | None:
        """Return why a connection cannot have a place of this kind; None if it can."""
        if connection.reserved and place in _LASTING:
            return f"no descriptors left for {_LASTING[place]}"
        if place in _YIELDING:
            return None
        if len(self._holders[place]) >= self._limits[place]:
            return f"{self._limits[place]} {place.value} are open, which is the limit"
        if self._has_too_many(connection, place):
            return f"{self._share(place)} {place.value} of other users are open, which is the limit for them"
        return None

    def take(self, connection: Connection, place: Place) -> None:
        """Give a connection a place; end the one that has had such a place longest if there are too many."""
        holders = self._holders[place]
        if len(holders) >= self._limits[place]:
            self._end(next(iter(holders)))
        elif self._has_too_many(connection, place):
            self._end(self._others_with(place)[0])
        connection.place = place
        holders[connection] = None

    def leave(self, connection: Connection) -> None:
        """Let others have the place of a connection."""
        self._holders[connection.place].pop(connection, None)

    def _end(self, connection: Connection) -> None:
        self.leave(connection)
        connection.scope.cancel()

    def _has_too_many(self, connection: Connection, place: Place) -> bool:
        """Whether the other users, if this is one of them, have all the places of this kind that they may have."""
        other = connection.standing is not Standing.ALLOWED
        return other and len(self._others_with(place)) >= self._share(place)

    def _others_with(self, place: Place) -> list[Connection]:
        return [connection for connection in self._holders[place] if connection.standing is not Standing.ALLOWED]

    def _share(self, place: Place) -> int:
        return max(1, self._limits[place] // 2)
