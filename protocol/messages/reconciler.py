"""The messages to the reconciler: what is discovered, what becomes of registrations, and what callers ask for."""

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
    """A registration got the info of its plugin, and claims the name: answered by an :data:`Admission`.

    The answer carries the claim, so that the registration can ignore an answer that comes too late.
    """

    path: str
    generation: int
    info: PluginInfo
    #: The file of its endpoint, if that is another one than the socket, and exists.
    endpoint: Identity | None = None
    #: As :attr:`SocketDialed.time`, if that was not reported before.
    dialed: float | None = None


@value
class PluginRegistered:
    """The handler registered the plugin, which is actual from now on."""

    path: str
    generation: int


@value
class SocketDialed:
    """A dial has reached the socket of this generation, for the first time or since nobody listened (fault 49)."""

    path: str
    generation: int
    #: ``trio.current_time()`` of that dial, in seconds.
    time: float


@value
class PluginRefused:
    """The plugin is about to be told that it is not registered."""

    path: str
    generation: int
    #: Type and name that it gave, if they are sound.
    info: PluginInfo | None = None


@value
class ListenerChanged:
    """Nobody listens on the socket any more, or somebody does again: a life without a listener is over (fault 49)."""

    path: str
    generation: int
    listening: bool


@value
class ClaimReleased:
    """The handler does not have the plugin of this generation, so its claim ends, and so does its turn to make one."""

    path: str
    generation: int


@value
class SocketReplaced:
    """The dial of this generation found that another file is at ``path``; the watcher must look there (fault 41)."""

    path: str
    generation: int


@value
class RegistrationEnded:
    """The registration actor of ``path`` ended; ``crashed`` says that it did so by a bug in plugind."""

    path: str
    crashed: bool
    #: The error of the crash, in one line.
    error: str = ""
    #: Whether a Register has begun, so that a successor has to deregister.
    owed: bool = False


@value
class UsableChanged:
    """The handler reports through its link whether the plugin can be used: one that can is preferred as the active one.

    An instance of which nothing is reported comes between those that can be used and those that cannot.
    """

    path: str
    generation: int
    usable: bool


@value
class PluginGone:
    """The plugin has left for good, as its handler reports through its link: the watcher must look at its socket.

    A plugin that called Register is deregistered at once, since no watcher looks for it.
    """

    path: str
    generation: int
    reason: str


class HandlerPort(Protocol):
    """What calls the methods of a handler for the registrations of its type, one call at a time for each name.

    Each call is cancelled at its deadline, and returns how it ended once the handler has ended; a thread is given up at
    the deadline. It never raises what the handler raises.
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
        """Note that another plugin waits for the name until the Register under way has ended.

        Its endpoint is another one, so a Register that only waits for an endpoint need not keep it waiting.
        """


@value
class HandlerAdded:
    """The handler at this address takes plugins of ``type``."""

    type: str
    handler: HandlerPort
    policy: InstancePolicy
    #: Whether it is given links, to which roles are reported.
    linked: bool = False


@value
class HandlerRemoved:
    """The handler for ``type`` takes no more plugins, and those that it has are to be deregistered."""

    type: str


@value
class RetryAsked:
    """A caller asks for a try now, with a fresh backoff, of the socket at ``path``."""

    path: str
    reply: Address[RetryAnswered]


@value
class RetryAnswer:
    """What a retry means for one socket."""

    socket: str
    #: Whether a try is under way or follows at once.
    tried: bool
    #: In words: ``tried now``, or why there is no try.
    why: str


@value
class RetryAnswered:
    """What follows from a retry; empty if nothing is known at the path.

    The reconciler answers for paths without a registration actor, and the actor for its own path.
    """

    answers: tuple[RetryAnswer, ...]


@value
class StopAsked:
    """Finish what is in flight and end; with ``deregister``, also deregister what is registered (behaviour 42)."""

    deregister: bool = False
    #: The registrations end because the reconciler crashed; the node starts anew (fault 85).
    anew: bool = False


@value
class StopForced:
    """The grace is nearly over: roll back what is in flight and end (fault 87)."""


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
