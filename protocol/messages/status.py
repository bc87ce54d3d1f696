"""The messages to the status actor, and from it to those that asked or subscribed."""

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
    conditions: tuple[tuple[DirectoryCondition, int], ...] = ()
    #: How often ``kubelet.sock`` was removed, and made again.
    remade: int = 0

    @property
    def degraded_by(self) -> DirectoryReport | None:
        """The worst of the directories, if the node does less because of it."""
        return next((directory for directory in self.directories if directory.condition.degrades), None)


@value
class Holder:
    """A plugin that had a name."""

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
    """A registered plugin that may not use its endpoint now, because of ``reason``; None if it may again."""

    socket: str
    generation: int
    reason: str | None


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
