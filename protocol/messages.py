"""The messages of each inbox, as closed unions of frozen values.

Events are in the past tense and asks in the imperative. An *address* is the sending end of an inbox: it is all that
one actor knows of another. The message graph is drawn in ``plugind.actors``.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from .plugins import InstancePolicy, Plugin, PluginInfo
from .status import Finished, Outcome, PluginStatus, StateName
from .values import value

M = TypeVar("M", contravariant=True)


class Address(Protocol[M]):
    """The sending end of an inbox whose size the protocol bounds."""

    def send_nowait(self, message: M, /) -> None:
        """Put ``message`` into the inbox; never waits."""


@value
class Identity:
    """Which file it is that lies at a path. A chmod changes ``changed_ns`` alone (behaviours 9 and 13)."""

    device: int
    inode: int
    #: The inode's change time in nanoseconds.
    changed_ns: int


# --- from a watcher ---------------------------------------------------------------------------------------------------


@value
class SocketAppeared:
    """A socket is at ``path`` that was not there before, or not this one."""

    path: str
    generation: int
    identity: Identity
    root: str
    #: ``trio.current_time()`` when it was seen, in seconds.
    time: float
    deprecated: bool = False
    #: Seen by the first scan of a watcher. A restarted watcher makes it again: an identity that is known is not news.
    first_scan: bool = False


@value
class SocketVanished:
    """The socket (or the refused entry) of this generation is no longer at ``path``."""

    path: str
    generation: int


@value
class SocketTouched:
    """The attributes of the socket changed (a chmod, say): whoever waits may look again (behaviour 3)."""

    path: str
    generation: int


@value
class EntryRefused:
    """Something at ``path`` looks like a plugin and is not taken, for this reason (behaviour 7, faults 7 and 8)."""

    path: str
    generation: int
    root: str
    reason: str
    time: float
    deprecated: bool = False


@value
class ScanCompleted:
    """A scan of ``root`` ended.

    ``paths`` is all that the first complete scan of a watcher found, refused entries included, so that a watcher that
    was restarted also tells what vanished while it was not there; it is None for all other scans.
    """

    root: str
    first: bool
    paths: frozenset[str] | None = None


# --- from registration actors and their supervisor --------------------------------------------------------------------


@value
class Claimed:
    """A registration learned who its plugin is, and asks to be admitted: answered by an :data:`Admission`.

    The answer carries the same ``ticket``, so that one which comes too late is known as such.
    """

    path: str
    generation: int
    info: PluginInfo
    ticket: int


@value
class PluginRegistered:
    """The handler took the plugin; it counts as actual from here on."""

    path: str
    generation: int


@value
class Released:
    """The registration owes its handler nothing more for this generation, and gives its claim back."""

    path: str
    generation: int


@value
class RegistrationEnded:
    """The registration actor of ``path`` ended; ``crashed`` says that it did so by an error of ours."""

    path: str
    crashed: bool


# --- from the supervisor and from people ------------------------------------------------------------------------------


@value
class HandlerAdded:
    """A handler for ``type`` is there, at this address."""

    type: str
    handler: Address[HandlerMessage]
    policy: InstancePolicy


@value
class HandlerRemoved:
    """The handler for ``type`` takes no more plugins; those that it has are deregistered."""

    type: str


@value
class RetryAsked:
    """Somebody asks for a try now, with a fresh backoff, of a socket path or of all sockets of a plugin name."""

    target: str
    reply: Address[RetryAnswered]


@value
class RetryAnswered:
    """Which sockets were told to try now; empty when the target is not known."""

    sockets: tuple[str, ...]


@value
class StopAsked:
    """Finish what is in flight and end. ``deregister`` also deregisters what is registered (behaviour 42)."""

    deregister: bool = False


@value
class StopForced:
    """The grace is nearly over: roll back what is in flight and end (fault 87)."""


@value
class ReportAsked:
    """The status actor lost its view in a crash: everyone says again how they fare (fault 85)."""


ReconcilerMessage = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | EntryRefused
    | ScanCompleted
    | Claimed
    | PluginRegistered
    | Released
    | RegistrationEnded
    | HandlerAdded
    | HandlerRemoved
    | RetryAsked
    | StopAsked
    | StopForced
    | ReportAsked
)

# --- to a registration ------------------------------------------------------------------------------------------------


@value
class Admitted:
    """The claim holds: this handler serves the plugin."""

    ticket: int
    handler: Address[HandlerMessage]


@value
class NoHandler:
    """No handler serves plugins of this type, yet (behaviour 29)."""

    ticket: int
    reason: str


@value
class ClaimRefused:
    """The policy of the type does not admit the plugin now."""

    ticket: int
    reason: str


Admission = Admitted | NoHandler | ClaimRefused


@value
class HandlerAvailable:
    """A handler for ``type`` was added: whoever is parked for it tries at once (behaviour 29)."""

    type: str


@value
class HandlerWithdrawn:
    """The handler for ``type`` is leaving: deregister with it now."""

    type: str


@value
class NameFreed:
    """Another instance of the same name is gone: what was refused because of it may hold now (behaviour 37)."""


@value
class TryNow:
    """Somebody asked for a retry (``plugind retry``)."""


@value
class HandlerAnswered:
    """The handler's answer to the ask with this ticket; ``error`` is empty when ``outcome`` is OK."""

    ticket: int
    outcome: Outcome
    error: str = ""


#: Messages on which the lifecycle itself decides; they are events of ``plugind.protocol.lifecycle``.
LifecycleMessage = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | Admission
    | HandlerAvailable
    | HandlerWithdrawn
    | NameFreed
    | TryNow
    | StopAsked
    | StopForced
)
RegistrationMessage = LifecycleMessage | HandlerAnswered | ReportAsked

# --- to a handler -----------------------------------------------------------------------------------------------------


@value
class Validate:
    """Ask the handler whether it accepts what the plugin says of itself."""

    plugin: Plugin
    ticket: int
    reply: Address[HandlerAnswered]


@value
class Register:
    """Ask the handler to take the plugin into service."""

    plugin: Plugin
    ticket: int
    reply: Address[HandlerAnswered]


@value
class Deregister:
    """Ask the handler to let the plugin go; asked exactly once for each Register that was asked (behaviour 36)."""

    plugin: Plugin
    ticket: int
    reply: Address[HandlerAnswered]


@value
class Withdraw:
    """Nobody waits any more for the answer to ``ask``, which is this very value: its call ends, or never begins.

    A Validate changes nothing, so that it may be cut off; a Register is not withdrawn but undone. Not answered.
    """

    ask: Validate


Ask = Validate | Register | Deregister
HandlerMessage = Ask | Withdraw

# --- to the status actor ----------------------------------------------------------------------------------------------


@value
class StateChanged:
    """A socket's registration is in another state.

    From the registration actor of the path, and from the reconciler for entries that are refused without one.
    """

    socket: str
    root: str
    generation: int
    state: StateName
    #: ``trio.current_time()`` of the change, in seconds.
    time: float
    #: In words; None for states that are on the way.
    reason: str | None = None
    #: Tries in this generation, the present one included.
    attempt: int = 0
    #: ``trio.current_time()`` of the next try, where there is one.
    next_try: float | None = None
    #: What the plugin said of itself, once it has.
    info: PluginInfo | None = None
    #: Seconds from the appearance of the socket to this change, when it became registered.
    registered_in: float | None = None
    deprecated: bool = False
    #: User id of the process that listens, by SO_PEERCRED, once dialed.
    uid: int | None = None
    pid: int | None = None
    #: The operation whose end this change is.
    finished: Finished | None = None


@value
class RoleChanged:
    """Among several instances of one name, this one became active or stands by (behaviour 37).

    An instance that is registered counts as active until it is told otherwise.
    """

    socket: str
    generation: int
    active: bool


@value
class RootReported:
    """How a watcher fares, sent on each change and after each scan; counters grow for the life of that watcher."""

    root: str
    #: One of the words of :class:`Watching`.
    watching: str
    time: float
    reason: str | None = None
    #: The first scan is complete: what was there at the start is known.
    ready: bool = False
    scans: int = 0
    scan_failures: int = 0
    overflows: int = 0
    sockets: int = 0
    deprecated: bool = False


@value
class HandlersChanged:
    """The plugin types that have a handler now."""

    types: tuple[str, ...]


@value
class ActorRestarted:
    """An actor crashed and was started again (fault 85)."""

    name: str
    error: str


@value
class SnapshotAsked:
    """Somebody asks for all that is known now."""

    reply: Address[Snapshot]


@value
class Subscribed:
    """Somebody wants every change from now on; the first message is the whole view as it is.

    A subscriber whose inbox is full is dropped, and told so by :class:`Lagged` as its last message if there is room.
    """

    subscriber: Address[ViewMessage]


@value
class Unsubscribed:
    """That subscriber is gone."""

    subscriber: Address[ViewMessage]


StatusMessage = (
    StateChanged
    | RoleChanged
    | RootReported
    | HandlersChanged
    | ActorRestarted
    | SnapshotAsked
    | Subscribed
    | Unsubscribed
)

# --- from the status actor to those who asked -------------------------------------------------------------------------


@value
class Snapshot:
    """The whole view at one moment."""

    time: float
    plugins: tuple[PluginStatus, ...]
    roots: tuple[RootReported, ...]
    handlers: tuple[str, ...]


@value
class PluginChanged:
    """One plugin's status after a change; state GONE is the last that is told of a socket."""

    time: float
    plugin: PluginStatus


@value
class Lagged:
    """The subscriber was too slow and was dropped."""


ViewMessage = Snapshot | PluginChanged | Lagged
