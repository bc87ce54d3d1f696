"""The messages to the liveness actor."""

from __future__ import annotations

from ..identity import Identity
from ..values import value
from .addresses import Address
from .config import RootsChanged, TrustChanged
from .registration import RegistrationMessage


@value
class WatchLiveness:
    """Find out from now on whether anybody listens on the socket at ``path``, which is registered or stale."""

    path: str
    generation: int
    reply: Address[RegistrationMessage]
    registered: bool
    #: The file of the socket: no other one is connected to.
    identity: Identity | None = None
    #: The root in which it was found.
    root: str | None = None
    #: The endpoint of a registered plugin, which may be another socket.
    endpoint: str = ""
    #: The process that listened when the socket was dialed; 0 if it is not known.
    pid: int = 0
    #: ``trio.current_time()`` of that, in seconds.
    dialed: float = 0.0
    #: Its endpoint did not exist when it was asked for its info, and has to be awaited.
    endpoint_missing: bool = False


@value
class UnwatchLiveness:
    """The socket at ``path`` is not registered and not stale any more."""

    path: str


@value
class ProcessEnded:
    """A process that listened on watched sockets ended; the number is that of the port to the processes."""

    process: int


LivenessMessage = WatchLiveness | UnwatchLiveness | ProcessEnded | TrustChanged | RootsChanged
