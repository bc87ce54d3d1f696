"""The messages of each inbox, as closed unions of frozen values.

Events are in the past tense, asks in the imperative. An *address* is the sending end of an inbox, and all that an
actor has of another actor. ``plugind.actors`` shows which messages go where.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import attrs

from .config_messages import (
    ConfigurationRead,
    ConfigurationShown,
    ExpectationChanged,
    Reloaded,
    RootRemoved,
    RootsChanged,
    SettingsChanged,
    TrustChanged,
    WorldChanged,
)
from .consumer_messages import CallsEnded, EventNoted
from .devices import DeviceOptions
from .directories import Condition, DirectoryReport
from .endpoint_owners import PluginDisplaced
from .identity import Identity
from .plugin_health import Facts, Health
from .plugins import InstancePolicy, Plugin, PluginInfo
from .status import Ending, Finished, Outcome, PluginCounts, PluginStatus, StateName
from .successions import NamePassed
from .values import value
from .words import Step

M = TypeVar("M", contravariant=True)


class Address(Protocol[M]):
    """The sending end of an inbox whose size the protocol bounds."""

    def send_nowait(self, message: M, /) -> None:
        """Put ``message`` into the inbox; never waits."""


# --- to a watcher -----------------------------------------------------------------------------------------------------


@value
class RescanNow:
    """A caller asks for a scan of the whole root now."""


@value
class LookNow:
    """Look at ``path`` now, regardless of events: a dial found another file there than was reported (fault 41)."""

    path: str


WatcherMessage = RescanNow | LookNow | TrustChanged

# --- to the device server ---------------------------------------------------------------------------------------------


@value
class CallAnswered:
    """The answer to a call of Register."""

    #: Why the plugin is not registered, in the words that it is told; None if it is registered.
    error: str | None = None
    outcome: Outcome = Outcome.OK
    #: The generation that is registered, if it was so before the call.
    generation: int | None = None


# --- from a watcher ---------------------------------------------------------------------------------------------------


@value
class Called:
    """A device plugin called Register: what it is and serves was in the call, and the answer tells it the outcome."""

    info: PluginInfo
    #: The process that called.
    uid: int
    pid: int
    #: Where the answer goes; None if the call was answered before.
    reply: Address[CallAnswered] | None = None
    #: The options that were in the call, if there were any.
    options: DeviceOptions | None = None

    def as_answered(self) -> Called:
        """Return the call once it was answered yes."""
        return attrs.evolve(self, info=attrs.evolve(self.info, answered=True), reply=None)


@value
class SocketAppeared:
    """A socket is at ``path``, where there was none before or another one."""

    path: str
    generation: int
    identity: Identity
    root: str
    #: ``trio.current_time()`` when it was seen, in seconds.
    time: float
    deprecated: bool = False
    #: Found by the first scan of a watcher. A watcher that is restarted finds again what is known already.
    first_scan: bool = False
    #: The time before which it is not dialed, because the last ``short_lives`` at its path were short (fault 49). The
    #: reconciler sets both.
    not_before: float | None = None
    short_lives: int = 0
    #: The call of Register with which its plugin announced itself. It is not dialed then.
    call: Called | None = None
    #: Type and name of the plugin of the last of these lives, as far as is known. The reconciler sets it too.
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
    """The attributes of the socket changed, by a chmod for example: a waiting plugin is tried again (behaviour 3)."""

    path: str
    generation: int
    #: The user that its file belongs to now.
    owner: int | None = None


@value
class EntryRefused:
    """The entry at ``path`` is not taken for a plugin, for this reason (behaviour 7, faults 7 and 8)."""

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
    #: Whether it is a directory, which is entered as any other.
    directory: bool = False


@value
class ScanCompleted:
    """A scan of ``root`` ended.

    ``paths`` is everything that the first complete scan of a watcher found, refused entries included. It shows what
    vanished while no watcher ran. It is None for all other scans.
    """

    root: str
    first: bool
    paths: frozenset[str] | None = None


# --- from registration actors and their supervisor --------------------------------------------------------------------


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
class Released:
    """The handler does not have the plugin of this generation (any more): its claim ends, and its turn to make one."""

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


# --- from links -------------------------------------------------------------------------------------------------------


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


# --- to and from a handler --------------------------------------------------------------------------------------------


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


# --- from the supervisor and from callers -----------------------------------------------------------------------------


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
    | Released
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

# --- to a registration ------------------------------------------------------------------------------------------------


@value
class Admitted:
    """The claim is admitted: this handler serves the plugin."""

    claimed: Claimed
    handler: HandlerPort
    #: Whether another plugin waits for the name already: see :class:`NameWanted`.
    wanted: bool = False


@value
class NameWanted:
    """Another plugin waits until this one, which was admitted, is registered or has failed, or has to leave the name.

    See :meth:`HandlerPort.give_way`.
    """


@value
class NoHandler:
    """No handler takes plugins of this type yet (behaviour 29)."""

    claimed: Claimed
    reason: str
    #: The error alone; None if ``reason`` is no more than that.
    cause: str | None = None


@value
class ClaimRefused:
    """The policy of the type does not admit the plugin while another has the name."""

    claimed: Claimed
    reason: str


Admission = Admitted | NoHandler | ClaimRefused


@value
class HandlerAvailable:
    """A handler for ``type`` was added: a plugin that is parked for it is tried at once (behaviour 29)."""

    type: str


@value
class HandlerWithdrawn:
    """The handler for ``type`` was removed: deregister with it now."""

    type: str


@value
class NameFreed:
    """Another instance of the same name is gone: a refused plugin may be accepted now (behaviour 37)."""


@value
class TryNow:
    """A retry was asked for (``plugind retry``). The actor answers at once, even while it calls the plugin."""

    reply: Address[RetryAnswered] | None = None


@value
class ListenerFound:
    """Somebody listens on the stale socket again: it is tried at once, with a fresh backoff (behaviour 15)."""

    path: str
    generation: int


@value
class ListenerLost:
    """The registered plugin is to be deregistered: its user is not trusted any more, or nobody listens on its socket.

    The latter is sent only with ``deregister_not_serving``, or in observe mode (fault 39).
    """

    path: str
    generation: int
    reason: str


RegistrationMessage = (
    SocketAppeared
    | SocketVanished
    | SocketTouched
    | Admission
    | HandlerAvailable
    | HandlerWithdrawn
    | NameFreed
    | TryNow
    | ListenerFound
    | ListenerLost
    | StopAsked
    | StopForced
    | NameWanted
    | ReportAsked
    | SettingsChanged
)

# --- to the liveness actor --------------------------------------------------------------------------------------------


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

# --- to the status actor ----------------------------------------------------------------------------------------------


@value
class Deregistered:
    """A plugin that was registered, and that its handler has let go."""

    generation: int
    info: PluginInfo
    #: Why: its socket was removed, for example.
    cause: str


@value
class StateChanged:
    """The registration of a socket is in another state.

    The registration actor of the path sends it; for refused entries, which have no actor, the reconciler does.
    """

    socket: str
    root: str
    generation: int
    state: StateName
    #: ``trio.current_time()`` of the change, in seconds.
    time: float
    #: Why it is in this state; None for states that are on the way to registered.
    reason: str | None = None
    #: The number of tries in this generation, the present one included.
    attempt: int = 0
    #: ``trio.current_time()`` of the next try, if there is one.
    next_try: float | None = None
    #: The plugin's info, once it is known.
    info: PluginInfo | None = None
    #: Seconds from the appearance of the socket to this change, when it became registered.
    registered_in: float | None = None
    deprecated: bool = False
    #: User id of the process that listens, by SO_PEERCRED, once dialed.
    uid: int | None = None
    pid: int | None = None
    #: The operations that have ended since the report before, in order.
    finished: tuple[Finished, ...] = ()
    #: The error alone, in few words. In a later try it is what the plugin answered, or was told, in an earlier one.
    cause: str | None = None
    #: The registration that ended with this change; it may be that of an earlier generation.
    deregistered: Deregistered | None = None
    #: Only with GONE: the socket may be there still, but plugind stops or starts anew.
    still_there: bool = False
    #: The user that the file of the socket belongs to.
    owner: int | None = None
    #: Type and name of the plugin that was last at the path, if the socket waits because of short lives (fault 49).
    last_known: PluginInfo | None = None
    #: Where the try is that is under way, if one is.
    step: Step | None = None


@value
class NameDefended:
    """A plugin claimed the name of another user's plugin, and was refused it (fault 80)."""

    socket: str
    generation: int
    info: PluginInfo
    reason: str


@value
class OwnerChanged:
    """The file of a socket was given to another user. It is only shown: the process that listens counts (fault 40)."""

    socket: str
    generation: int
    owner: int


@value
class RoleChanged:
    """Among several instances of one name, this one became active or stands by (behaviour 37).

    A registered instance counts as active until this message says otherwise.
    """

    socket: str
    generation: int
    active: bool


@value
class ServingChanged:
    """Somebody listens on the socket of a registered plugin, or nobody does any more (fault 39)."""

    socket: str
    generation: int
    serving: bool
    #: ``trio.current_time()`` of the connect that found it out, in seconds.
    time: float
    #: Why it is not serving.
    reason: str | None = None
    #: Somebody listens on its endpoint, which is another socket: a dead registrar is no dead driver.
    endpoint_serves: bool = False


@value
class EndpointChanged:
    """An endpoint that did not exist when its plugin was registered can be used now, or cannot for another reason."""

    socket: str
    generation: int
    #: ``trio.current_time()`` of the look that found it out, in seconds.
    time: float
    #: Why it cannot be used.
    problem: str | None = None


@value
class HealthReported:
    """The handler of a registered plugin reported its health and facts."""

    socket: str
    generation: int
    health: Health
    reason: str
    facts: Facts
    #: ``trio.current_time()`` of the report, in seconds.
    time: float
    #: What is wrong with what the plugin says, and what was cut off, in words.
    warnings: tuple[str, ...] = ()
    #: How many checks have failed in a row; 0 if it is not the checks that say how the plugin is.
    failed_checks: int = 0


@value
class HealthChecked:
    """The endpoint of a registered plugin was checked."""

    plugin_type: str
    #: ``ok``, ``failed`` or ``timed-out``.
    outcome: Outcome
    seconds: float


@value
class FollowEnded:
    """A handler's ``follow`` crashed or returned, and is started again after so many seconds."""

    plugin: Plugin
    #: The error, or None if it returned.
    error: str | None
    #: How many times in a row.
    count: int
    pause: float


@value
class RootReported:
    """The state of a watcher, sent on each change and after each scan; its counters grow as long as it lives."""

    root: str
    #: One of the words of :class:`Watching`.
    watching: str
    time: float
    reason: str | None = None
    #: It was scanned, and can be used (fault 4).
    ready: bool = False
    scans: int = 0
    scan_failures: int = 0
    overflows: int = 0
    sockets: int = 0
    deprecated: bool = False
    #: The root was missing, and the scan that is reported here made it (behaviour 1).
    made: bool = False
    #: The directories with which something is wrong, the worst first: at most ``directories.MAX_REPORTED``.
    directories: tuple[DirectoryReport, ...] = ()
    #: How many there are of each condition.
    conditions: tuple[tuple[Condition, int], ...] = ()
    #: How often ``kubelet.sock`` was removed, and made again.
    remade: int = 0

    @property
    def degraded_by(self) -> DirectoryReport | None:
        """The worst of the directories, if the node does less because of it."""
        return next((directory for directory in self.directories if directory.condition.degrades), None)


@value
class RegisterCalled:
    """A device plugin called Register, for this resource; None if that is no valid name."""

    resource: str | None
    #: Whether it was registered; else it was refused, or has left before it was answered.
    registered: bool


@value
class RegisterRefused:
    """A call of Register in the directory ``root`` was refused, with this reason."""

    root: str
    #: What the caller named, which may be any text.
    resource: str
    endpoint: str
    uid: int
    pid: int
    reason: str


@value
class HandlersChanged:
    """The set of plugin types that have a handler changed to these."""

    types: tuple[str, ...]


@value
class ActorRestarted:
    """An actor crashed and was started again (fault 85)."""

    name: str
    error: str


@value
class StepBlocked:
    """A step of a handler's call blocked the loop (fault 83); sent to the watchdog."""

    #: The type of the handler.
    type: str
    #: ``validate``, ``register`` or ``deregister``.
    call: str
    plugin: Plugin
    seconds: float


@value
class LoopBlocked:
    """The loop did not turn for a while (fault 83)."""

    time: float
    seconds: float
    #: The calls under way, the innermost first, in one line; None if they are not known.
    stack: str | None
    #: The step of a handler that blocked it, if it was one.
    step: StepBlocked | None
    #: Seconds of CPU that the loop's thread used meanwhile. Few of them mean that the code waited, or that the machine
    #: was busy and gave the process no turn.
    cpu_seconds: float


@value
class SnapshotAsked:
    """A caller asks for everything that is known now."""

    reply: Address[Snapshot]


@value
class CountsAsked:
    """A caller asks how many plugins are in each state."""

    reply: Address[PluginCounts]


@value
class ScansAwaited:
    """A caller waits until a scan of each root was tried; answered with True, at once if that is so."""

    reply: Address[bool]


@value
class Subscribed:
    """A caller wants every change from now on; the first message is the whole view.

    A subscriber whose inbox is full is dropped. Once there is room, :class:`Lagged` is its last message.
    """

    subscriber: Address[ViewMessage]


@value
class Unsubscribed:
    """The subscriber wants no more changes."""

    subscriber: Address[ViewMessage]


#: What the links are told of the role of an instance.
LinkMessage = RoleChanged | PluginDisplaced

StatusMessage = (
    StateChanged
    | NameDefended
    | NamePassed
    | PluginDisplaced
    | OwnerChanged
    | RoleChanged
    | ServingChanged
    | EndpointChanged
    | HealthReported
    | HealthChecked
    | CallsEnded
    | EventNoted
    | FollowEnded
    | EntryIgnored
    | RootReported
    | RegisterCalled
    | RegisterRefused
    | HandlersChanged
    | ActorRestarted
    | LoopBlocked
    | SnapshotAsked
    | CountsAsked
    | ScansAwaited
    | ExpectationChanged
    | TrustChanged
    | RootsChanged
    | ConfigurationRead
    | Subscribed
    | Unsubscribed
)

# --- to the reloader --------------------------------------------------------------------------------------------------


@value
class ReloadAsked:
    """Read the configuration again, and use what needs no restart."""

    reply: Address[Reloaded]


@value
class ConfigurationAsked:
    """Say which settings are in force."""

    reply: Address[ConfigurationShown]


ReloaderMessage = ReloadAsked | ConfigurationAsked

# --- from the status actor to callers -------------------------------------------------------------------------


@value
class Snapshot:
    """The whole view at one moment."""

    time: float
    plugins: tuple[PluginStatus, ...]
    roots: tuple[RootReported, ...]
    handlers: tuple[str, ...]


@value
class PluginChanged:
    """The status of one plugin after a change; GONE is the last state of a socket."""

    time: float
    plugin: PluginStatus
    #: What has happened besides, if that is why: ``facts: max-volumes is 8, was 16``.
    event: str | None = None
    #: Whether nothing but the facts of the plugin has changed, which lists of plugins do not show.
    only_facts: bool = False


@value
class Lagged:
    """The subscriber was too slow and was dropped."""


ViewMessage = Snapshot | PluginChanged | Lagged
