"""The messages to and from watchers and the device server about the sockets that exist."""

from __future__ import annotations

import attrs

from ..identity import Identity
from ..plugins.devices import DeviceOptions
from ..plugins.info import PluginInfo
from ..plugins.status import Outcome
from ..values import value
from .addresses import Address
from .config import TrustChanged


@value
class RescanNow:
    """A caller asks for a scan of the whole root now."""


@value
class LookNow:
    """Look at ``path`` now, without an event: a dial found another file there than was reported (fault 41)."""

    path: str


WatcherMessage = RescanNow | LookNow | TrustChanged


@value
class CallAnswered:
    """The answer to a call of Register."""

    #: Why the plugin is not registered, as the plugin is told; None if it is registered.
    error: str | None = None
    outcome: Outcome = Outcome.OK
    #: The registered generation, if the plugin was registered before the call.
    generation: int | None = None


@value
class Called:
    """A device plugin called Register: the call has its info, and the answer tells the outcome."""

    info: PluginInfo
    #: The process that called.
    uid: int
    pid: int
    #: The address for the answer; None if the call was answered before.
    reply: Address[CallAnswered] | None = None
    #: The options in the call, if there were any.
    options: DeviceOptions | None = None

    def as_answered(self) -> Called:
        """Return the call as it is after a positive answer."""
        return attrs.evolve(self, info=attrs.evolve(self.info, answered=True), reply=None)


@value
class SocketAppeared:
    """A new socket is at ``path``."""

    path: str
    generation: int
    identity: Identity
    root: str
    #: ``trio.current_time()`` when it was seen.
    time: float
    deprecated: bool = False
    #: Whether the first scan of a watcher found it. A restarted watcher finds known sockets again.
    first_scan: bool = False
    #: The time before which it is not dialed, because the last ``short_lives`` at its path were short (fault 49). The
    #: reconciler sets both.
    not_before: float | None = None
    short_lives: int = 0
    #: The call of Register with which its plugin announced itself. Then it is not dialed.
    call: Called | None = None
    #: Type and name of the plugin of the last short life, if known. The reconciler sets it too.
    last_known: PluginInfo | None = None


@value
class SocketVanished:
    """The socket or the refused entry of this generation is no longer at ``path``."""

    path: str
    generation: int
    #: Why its plugin is deregistered.
    reason: str = "the socket was removed"


@value
class SocketTouched:
    """The attributes of the socket changed, for example by a chmod: a waiting plugin is tried again (behaviour 3)."""

    path: str
    generation: int
    #: The present identity of its file.
    identity: Identity | None = None


@value
class EntryRefused:
    """The entry at ``path`` is not treated as a plugin, for this reason (behaviour 7, faults 7 and 8)."""

    path: str
    generation: int
    root: str
    reason: str
    time: float
    deprecated: bool = False


@value
class EntryIgnored:
    """The entry at ``path`` has the name of a socket but is not one: it is never opened, only reported (fault 6)."""

    path: str
    root: str
    #: Whether it is a directory. It is entered like any other directory.
    directory: bool = False


@value
class ScanCompleted:
    """A scan of ``root`` ended.

    ``paths`` is everything that the first complete scan of a watcher found, refused entries included, so that vanished
    sockets are noticed. It is None for all other scans.
    """

    root: str
    first: bool
    paths: frozenset[str] | None = None
