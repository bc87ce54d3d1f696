"""The messages to the reconciler: discovered sockets, progress of registrations, and requests of callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ..identity import Identity
from ..plugins.info import InstancePolicy, Plugin, PluginInfo
from ..plugins.status import Ending
from ..values import value
from .addresses import Address
from .config import RootRemoved, WorldChanged
from .discovery import (
    EntryIgnored,
    EntryRefused,
    ScanCompleted,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
    WatcherMessage,
)


@value
class Claimed:
    """A registration got the info of its plugin, and claims the name. The answer is an :data:`Admission`.

    The answer includes the claim, so that the registration can ignore an answer that comes too late.
    """

    path: str
    generation: int
    info: PluginInfo
    #: The file of its endpoint, if it exists and is another one than the socket.
    endpoint: Identity | None = None
    #: Like :attr:`SocketDialed.time`, if that was not reported before.
    dialed: float | None = None


@value
class PluginRegistered:
    """The handler registered the plugin, which is now in the actual world."""

    path: str
    generation: int


@value
class SocketDialed:
    """A dial has reached the socket of this generation, for the first time or since nobody listened (fault 49)."""

    path: str
    generation: int
    time: float


@value
class PluginRefused:
    """The plugin will now be told that it is not registered."""

    path: str
    generation: int
    #: Type and name from its info, if they are valid.
    info: PluginInfo | None = None


@value
class ListenerChanged:
    """Nobody listens on the socket any more, or somebody does again. Without a listener, a life is over (fault 49)."""

    path: str
    generation: int
    listening: bool


@value
class ClaimReleased:
    """The handler does not have the plugin of this generation, so its claim and its turn to claim end."""

    path: str
    generation: int


@value
class SocketReplaced:
    """The dial of this generation found another file at ``path``; the watcher must look there (fault 41)."""

    path: str
    generation: int


@value
class RegistrationEnded:
    """The registration actor of ``path`` ended; ``crashed`` means by a bug in plugind."""

    path: str
    crashed: bool
    error: str = ""
    #: Whether a Register has begun, so that a successor must deregister.
    owed: bool = False


@value
class UsableChanged:
    """The handler reports through its link whether the plugin can be used. A usable instance is preferred as the active
    one.

    An instance without a report comes between usable and unusable ones.
    """

    path: str
    generation: int
    usable: bool


@value
class PluginGone:
    """The handler reports through its link that the plugin has left for good: the watcher must look at its socket.

    A plugin that called Register is deregistered at once, since no watcher looks for it.
    """

    path: str
    generation: int
    reason: str


class HandlerPort(Protocol):
    """Calls the methods of a handler for the registrations of its type, one call at a time for each name.

    Each call is cancelled at its deadline, and returns how it ended once the handler has ended; a thread is given up at
    the deadline. It never raises the handler's errors.
    """

    def validate(self, plugin: Plugin) -> Awaitable[Ending]:
        """Ask the handler whether it accepts the plugin."""

    def register(self, plugin: Plugin, file: Identity | None, begins: Callable[[], bool]) -> Awaitable[Ending]:
        """Have the handler register the plugin, whose socket is ``file``.

        ``begins`` is called just before that, and returns whether another plugin waits for the name: see
        :meth:`give_way`.
        """

    def deregister(self, plugin: Plugin) -> Awaitable[Ending]:
        """Have the handler deregister the plugin: exactly once for each Register that has begun (behaviour 36)."""

    def give_way(self, plugin: Plugin) -> None:
        """Note that another plugin with another endpoint waits for the name until the Register under way has ended.

        A Register that only waits for its endpoint then gives up.
        """


@value
class HandlerAdded:
    """The handler at this address takes plugins of ``type``."""

    type: str
    handler: HandlerPort
    policy: InstancePolicy
    #: Whether it uses links, through which roles are reported.
    linked: bool = False
    #: Why it takes no new plugins now; they are parked, and are not told. The plugins that it has stay. None: it takes
    #: plugins, and those that were parked are tried.
    away: str | None = None


@value
class HandlerRemoved:
    """The handler for ``type`` takes no more plugins, and its plugins must be deregistered."""

    type: str


@value
class RetryAsked:
    """A caller asks for a try of the socket at ``path`` now, with a fresh backoff."""

    path: str
    reply: Address[RetryAnswered]


@value
class RetryAnswer:
    """The effect of a retry on one socket."""

    socket: str
    #: Whether a try is under way or follows at once.
    tried: bool
    #: The text ``tried now``, or why there is no try.
    why: str


@value
class RetryAnswered:
    """The effect of a retry; empty if nothing is known at the path.

    The reconciler answers for paths without a registration actor, and the actor for its own path.
    """

    answers: tuple[RetryAnswer, ...]


@value
class StopAsked:
    """Finish the work under way and end; with ``deregister``, also deregister registered plugins (behaviour 42)."""

    deregister: bool = False
    #: Whether the reconciler crashed and the node starts again (fault 85).
    anew: bool = False


@value
class StopForced:
    """The grace is nearly over: roll back the work under way and end (fault 87)."""


@value
class ReportAsked:
    """The status actor lost its view in a crash: report the present state again (fault 85)."""


@value
class RootAdded:
    """A root is watched from now on."""

    root: str
    watcher: Address[WatcherMessage]


ReconcilerMessage = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | EntryRefused
    | EntryIgnored
    | ScanCompleted
    | SocketDialed
    | Claimed
    | PluginRegistered
    | PluginRefused
    | ListenerChanged
    | ClaimReleased
    | SocketReplaced
    | RegistrationEnded
    | UsableChanged
    | PluginGone
    | HandlerAdded
    | HandlerRemoved
    | RetryAsked
    | StopAsked
    | StopForced
    | ReportAsked
    | WorldChanged
    | RootAdded
    | RootRemoved
)
