"""What a node serves on its status socket, and what the status actor knows. Neither needs the HTTP server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs
import trio

from ...protocol.devices.refused_calls import RefusedCalls
from ...protocol.leases.config import LeaseUsers
from ...protocol.messages.addresses import Address
from ...protocol.messages.config import (
    ConfigurationRead,
    ExpectationChanged,
    ReloaderMessage,
    RootsChanged,
    TrustChanged,
)
from ...protocol.messages.status import Lagged, LoopBlocked, ViewMessage
from ...protocol.settings.config import ReadyWhen
from ...protocol.settings.rules import Rules
from ...protocol.status.call_durations import CallDurations
from ...protocol.status.early import EarlyMessages
from ...protocol.status.metrics import Metrics
from ...protocol.status.view import View
from ...protocol.values import record, value
from ..http.limits import HttpLimits
from ..messaging.mailbox import Audience


@attrs.frozen
class StatusConfig:
    """What a node serves on its status socket: ``Supervisor(config, status_config=StatusConfig(socket=PATH))``.

    Times are seconds. The supervisor sets ``roots``, ``expected``, ``ready_when``, ``expected_devices``, ``rules``,
    ``observes``, ``lease_users`` and ``heartbeat`` itself.
    """

    #: The path of the status socket; None for no socket.
    socket: str | None = None
    #: The roots whose first scan readiness waits for.
    roots: tuple[str, ...] = ()
    #: The node is ready when plugins of these names are registered (behaviour 40).
    expected: tuple[str, ...] = ()
    #: Whether they have to be healthy, too, or only registered.
    ready_when: ReadyWhen = "registered"
    #: How many healthy devices there have to be for that, by resource.
    expected_devices: Mapping[str, int] = attrs.field(factory=dict)
    #: Who reads the configuration again for ``POST /reload``, and says what is in force; None if nobody does.
    reload: Address[ReloaderMessage] | None = None
    #: The rules of the node, for ``GET /rules``.
    rules: Rules = attrs.field(factory=Rules)
    #: Whether the node only observes plugins, so that it has no devices.
    observes: bool = False
    #: Who may see and lease devices, besides root and the user of the daemon.
    lease_users: LeaseUsers = attrs.field(factory=LeaseUsers)
    #: The members of this group may ask everything that changes nothing.
    readers: int | None = None
    #: Give ``plugin_manager_total_plugins`` a series for each path, up to ``max_path_metrics`` paths, as the kubelet
    #: does. Otherwise it counts sockets by world alone (behaviour 39, fault 92).
    path_metrics: bool = False
    max_path_metrics: int = 2000
    #: A root that was not scanned for so long is degraded: its watcher hangs.
    heartbeat: float = 60.0
    #: An actor is shown as degraded for so long after a crash.
    remember_restart: float = 300.0
    #: The loop is shown as degraded for so long after something blocked it.
    remember_blocked: float = 300.0
    #: The deadline for the answer to a retry, below the one of the commands.
    retry: float = 3.0
    #: How long requests may go on after the actor has ended.
    grace: float = 1.0
    http: HttpLimits = attrs.field(factory=HttpLimits)
    #: Unix time, for ``watch``.
    wall: Callable[[], float] = time.time


@value
class LastCrash:
    """The last crash of an actor."""

    time: float
    error: str
    count: int


@record
class Memory:
    """The state of the status actor. A restarted actor gets the same memory, so nothing is lost."""

    view: View = attrs.field(factory=View)
    early: EarlyMessages = attrs.field(factory=EarlyMessages)
    metrics: Metrics = attrs.field(factory=Metrics)
    calls: CallDurations = attrs.field(factory=CallDurations)
    audience: Audience[ViewMessage] = attrs.field(factory=lambda: Audience[ViewMessage](Lagged()))
    restarts: dict[str, LastCrash] = attrs.field(factory=dict)
    #: A status socket was made, so that a restart that cannot make it again does not end the node.
    has_served: bool = False
    #: The last time that it could not be made again.
    unmade: LastCrash | None = None
    #: The last time that something blocked the loop (fault 83).
    blocked: LoopBlocked | None = None
    #: The paths that were logged because what is there only looks like a socket (fault 6).
    ignored: set[str] = attrs.field(factory=set)
    #: How many refused entries each root has had, and the roots with too many of them for the log (fault 7).
    refused: dict[str, int] = attrs.field(factory=dict)
    over_refused: set[str] = attrs.field(factory=set)
    #: Callers that wait until a scan of each root was tried.
    awaiting_scans: list[Address[bool]] = attrs.field(factory=list)

    #: The plugins that are expected since the configuration was read again; None before that.
    expectation: ExpectationChanged | None = None
    #: Who is trusted since then; None if that has not changed.
    trust: TrustChanged | None = None
    #: The roots since then; None if they have not changed.
    changed_roots: RootsChanged | None = None
    #: The last time that the configuration was read again; None if it was not.
    configuration: ConfigurationRead | None = None
    #: The Register calls that were refused.
    refused_calls: RefusedCalls = attrs.field(factory=RefusedCalls)

    def expected(self, config: StatusConfig) -> ExpectationChanged:
        """Return which plugins and devices are expected."""
        healthy = config.ready_when == "healthy"
        return self.expectation or ExpectationChanged(config.expected, healthy=healthy, devices=config.expected_devices)

    def rules(self, config: StatusConfig) -> Rules:
        """Return the rules of the node."""
        rules, trust, roots = config.rules, self.trust, self.changed_roots
        if trust is not None:
            rules = attrs.evolve(rules, trust=trust.trust, users=trust.users)
        if roots is not None:
            rules = attrs.evolve(rules, roots=roots.roots, endpoint_directories=roots.endpoint_directories)
        return rules

    def roots(self, config: StatusConfig) -> tuple[str, ...]:
        """Return the roots whose first scan readiness waits for."""
        return config.roots if self.changed_roots is None else self.changed_roots.directories

    def change_roots(self, changed: RootsChanged) -> None:
        """Go by other roots, and forget what was known of those that are gone."""
        self.changed_roots = changed
        for root in self.view.roots.keys() - set(changed.directories):
            del self.view.roots[root]
            self.refused.pop(root, None)
            self.over_refused.discard(root)
            self.metrics.forget_root(root)

    def note_configuration(self, read: ConfigurationRead) -> None:
        """Count that the configuration was read again, and keep what came of it."""
        self.configuration = read
        self.metrics.config_refused = read.refused is not None
        if read.refused is None:
            self.metrics.reloads += 1
        else:
            self.metrics.refused_reloads += 1

    def note_unmade(self, reason: str) -> None:
        """Count that the status socket could not be made again."""
        self.metrics.socket_failures += 1
        self.unmade = LastCrash(trio.current_time(), reason, self.metrics.socket_failures)
