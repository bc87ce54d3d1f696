"""The messages to the status actor, and its messages to callers and subscribers."""

from __future__ import annotations

from ..plugins.health import Facts, Health
from ..plugins.info import Plugin, PluginInfo
from ..plugins.status import Finished, Outcome, PluginCounts, PluginStatus, StateName
from ..trust.directories import DirectoryCondition, DirectoryReport
from ..trust.users import user_words
from ..values import value
from ..words import Step
from .addresses import Address
from .config import ConfigurationRead, ExpectationChanged, RootsChanged, TrustChanged
from .consumers import CallsEnded, EventNoted
from .discovery import EntryIgnored


@value
class Deregistered:
    """A plugin that was registered, and is deregistered now."""

    generation: int
    info: PluginInfo
    #: The reason, for example that its socket was removed.
    cause: str


@value
class StateChanged:
    """The state of a socket's registration has changed.

    The registration actor of the path sends it; for refused entries, which have no actor, the reconciler does.
    """

    socket: str
    root: str
    generation: int
    state: StateName
    #: ``trio.current_time()`` of the change.
    time: float
    #: The reason for this state; None for states on the way to registered.
    reason: str | None = None
    #: The number of tries in this generation, the present one included.
    attempt: int = 0
    next_try: float | None = None
    info: PluginInfo | None = None
    #: When the plugin became registered: seconds from the appearance of the socket to this change.
    registered_in: float | None = None
    deprecated: bool = False
    #: User id of the process that listens, by SO_PEERCRED, once dialed.
    uid: int | None = None
    pid: int | None = None
    #: The operations that have ended since the last report, in order.
    finished: tuple[Finished, ...] = ()
    #: The error alone, in few words. A later try keeps the error of an earlier one.
    cause: str | None = None
    #: The registration that ended with this change, possibly of an earlier generation.
    deregistered: Deregistered | None = None
    #: Only with GONE: the socket may still exist, but plugind stops or starts again.
    still_there: bool = False
    #: The user who owns the socket's file.
    owner: int | None = None
    #: Type and name of the last plugin at the path, if the socket waits because of short lives (fault 49).
    last_known: PluginInfo | None = None
    #: The step of the try, if one is under way.
    step: Step | None = None


@value
class NameDefended:
    """A plugin's claim of the name of another user's plugin was refused (fault 80)."""

    socket: str
    generation: int
    info: PluginInfo
    reason: str


@value
class OwnerChanged:
    """The file of a socket was given to another user. It is only shown: the listening process counts (fault 40)."""

    socket: str
    generation: int
    owner: int


@value
class RoleChanged:
    """One of several instances of a name became active or went on standby (behaviour 37).

    A registered instance counts as active until this message says otherwise.
    """

    socket: str
    generation: int
    active: bool


@value
class ServingChanged:
    """Somebody listens on the socket of a registered plugin again, or nobody does any more (fault 39)."""

    socket: str
    generation: int
    serving: bool
    #: ``trio.current_time()`` of the connect that found this.
    time: float
    reason: str | None = None
    #: Whether somebody listens on its endpoint, which is another socket: the driver can run without its registrar.
    endpoint_serves: bool = False


@value
class EndpointChanged:
    """An endpoint that did not exist when its plugin was registered can be used now, or has another problem."""

    socket: str
    generation: int
    #: ``trio.current_time()`` of the look that found this.
    time: float
    problem: str | None = None


@value
class HealthReported:
    """The handler of a registered plugin reported its health and facts."""

    socket: str
    generation: int
    health: Health
    reason: str
    facts: Facts
    time: float
    #: Problems with what the plugin says, and a note if facts were cut off.
    warnings: tuple[str, ...] = ()
    #: How many checks have failed in a row; 0 if the health does not come from checks.
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
    """A handler's ``follow`` crashed or returned, and is started again after ``pause`` seconds."""

    plugin: Plugin
    #: The error, or None if it returned.
    error: str | None
    #: How many times in a row that has happened.
    count: int
    pause: float


@value
class RootStatus:
    """The state of a watcher, sent on each change and after each scan. Its counters grow as long as it lives."""

    root: str
    #: One of the words of :class:`Watching`.
    watching: str
    time: float
    reason: str | None = None
    #: Whether it was scanned, and can be used (fault 4).
    ready: bool = False
    scans: int = 0
    scan_failures: int = 0
    overflows: int = 0
    sockets: int = 0
    deprecated: bool = False
    #: Whether the root was missing, and this scan made it (behaviour 1).
    made: bool = False
    #: The directories with problems, the worst first: at most ``directories.MAX_REPORTED``.
    directories: tuple[DirectoryReport, ...] = ()
    #: How many directories are in each condition.
    conditions: tuple[tuple[DirectoryCondition, int], ...] = ()
    #: How often ``kubelet.sock`` was removed and made again.
    remade: int = 0

    @property
    def degraded_by(self) -> DirectoryReport | None:
        """The worst of the directories, if it limits what the node does."""
        return next((directory for directory in self.directories if directory.condition.degrades), None)


@value
class Holder:
    """The last plugin that had a name."""

    uid: int | None
    socket: str


@value
class NamePassed:
    """A plugin is registered under a name that a plugin of another user had last (fault 80)."""

    socket: str
    generation: int
    info: PluginInfo
    before: Holder

    @property
    def reason(self) -> str:
        """What happened, in words."""
        before, now = user_words(self.before.uid), user_words(self.info.uid)
        return f"the name passed from {before}, by the socket {self.before.socket}, to {now}"


@value
class PluginDisplaced:
    """A registered plugin may not use its endpoint now, because of ``reason``; None if it may again."""

    socket: str
    generation: int
    reason: str | None


@value
class RegisterCalled:
    """A device plugin called Register for this resource; None if the name is not valid."""

    resource: str | None
    #: Whether the call succeeded. Otherwise it was refused, or the caller left before the answer.
    registered: bool


@value
class RegisterRefused:
    """A call of Register in the directory ``root`` was refused, with this reason."""

    root: str
    #: The names in the call, which can be any text.
    resource: str
    endpoint: str
    uid: int
    pid: int
    reason: str


@value
class HandlersChanged:
    """The plugin types that have a handler have changed."""

    types: tuple[str, ...]


@value
class ActorRestarted:
    """An actor crashed and was started again (fault 85)."""

    name: str
    error: str


@value
class StepBlocked:
    """A step of a handler's call blocked the loop (fault 83). Sent to the watchdog."""

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
    #: The stack of calls, the innermost first, in one line; None if it is not known.
    stack: str | None
    #: The step of a handler that blocked the loop, if it was one.
    step: StepBlocked | None
    #: CPU seconds that the loop's thread used meanwhile. If there are few, the code waited, or the machine was too busy
    #: to run the process.
    cpu_seconds: float


@value
class SnapshotAsked:
    """A caller asks for the whole view."""

    reply: Address[Snapshot]


@value
class CountsAsked:
    """A caller asks how many plugins are in each state."""

    reply: Address[PluginCounts]


@value
class ScansAwaited:
    """A caller waits until a scan of each root was tried. The answer is True."""

    reply: Address[bool]


@value
class Subscribed:
    """A caller subscribes to all changes; the first message is the whole view.

    A subscriber whose inbox is full is dropped. Once there is room, :class:`Lagged` is its last message.
    """

    subscriber: Address[ViewMessage]


@value
class Unsubscribed:
    """The subscriber leaves."""

    subscriber: Address[ViewMessage]


#: The messages to the links about the role of an instance.
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
    | RootStatus
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


@value
class Snapshot:
    """The whole view at one moment."""

    time: float
    plugins: tuple[PluginStatus, ...]
    roots: tuple[RootStatus, ...]
    handlers: tuple[str, ...]


@value
class PluginChanged:
    """The status of one plugin after a change; GONE is the last state of a socket."""

    time: float
    plugin: PluginStatus
    #: The event that caused the change, if it is no change of state: ``facts: max-volumes is 8, was 16``.
    event: str | None = None
    #: Whether only the facts of the plugin have changed, which lists of plugins do not show.
    only_facts: bool = False


@value
class Lagged:
    """The subscriber was too slow and was dropped."""


ViewMessage = Snapshot | PluginChanged | Lagged
