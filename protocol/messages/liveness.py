"""The messages to the liveness actor."""

from __future__ import annotations

from ..identity import Identity
from ..values import value
from .addresses import Address
from .config import RootsChanged, TrustChanged
from .registration import RegistrationMessage


@value
class WatchLiveness:
    """Find out from now on whether anybody listens on the registered or stale socket at ``path``."""

    path: str
    generation: int
    reply: Address[RegistrationMessage]
    registered: bool
    #: The file of the socket, which alone is connected to.
    identity: Identity | None = None
    root: str | None = None
    #: The endpoint of a registered plugin, which can be another socket.
    endpoint: str = ""
    #: The process that listened when the socket was dialed; 0 if it is not known.
    pid: int = 0
    #: ``trio.current_time()`` of that dial.
    dialed: float = 0.0
    #: Whether its endpoint did not exist when it answered GetInfo, and must be awaited.
    endpoint_missing: bool = False


@value
class UnwatchLiveness:
    """The socket at ``path`` is no longer registered or stale."""

    path: str


@value
class ProcessEnded:
    """A process that listened on watched sockets ended; the number is that of the port to the processes."""

    process: int


LivenessMessage = WatchLiveness | UnwatchLiveness | ProcessEnded | TrustChanged | RootsChanged
