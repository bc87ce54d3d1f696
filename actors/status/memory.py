"""The configuration of the status socket, and the state of the status actor. Neither needs the HTTP server."""

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
    """The configuration of the status socket.

    Times are in seconds. The node sets ``roots``, ``expected``, ``ready_when``, ``expected_devices``, ``rules``,
    ``observes``, ``lease_users``, ``handler_users`` and ``heartbeat`` itself.
    """

    #: The path of the status socket; None for no socket.
    socket: str | None = None
    #: Readiness waits for the first scan of these roots.
    roots: tuple[str, ...] = ()
    #: The node is ready when plugins of these names are registered (behaviour 40).
    expected: tuple[str, ...] = ()
    #: Whether they must be healthy, too, or only registered.
    ready_when: ReadyWhen = "registered"
    #: How many healthy devices readiness needs, by resource.
    expected_devices: Mapping[str, int] = attrs.field(factory=dict)
    #: The actor that reloads the configuration and shows what is in force; None if there is none.
    reload: Address[ReloaderMessage] | None = None
    rules: Rules = attrs.field(factory=Rules)
    #: Whether the node only observes plugins, and so has no devices.
    observes: bool = False
    #: The users who may see and lease devices, besides root and the user of the daemon.
    lease_users: LeaseUsers = attrs.field(factory=LeaseUsers)
    #: The users who may serve some plugin type over the socket.
    handler_users: frozenset[int] = frozenset()
    #: Members of this group may send all requests that change nothing.
    readers: int | None = None
    #: Whether ``plugin_manager_total_plugins`` has a series for each path, as in the kubelet, up to
    #: ``max_path_metrics`` paths. Otherwise it counts sockets by world alone (behaviour 39, fault 92).
    path_metrics: bool = False
    max_path_metrics: int = 2000
    #: A root that was not scanned for this time is degraded, because its watcher hangs.
    heartbeat: float = 60.0
    #: How long an actor is shown as degraded after a crash.
    remember_restart: float = 300.0
    #: How long the loop is shown as degraded after something blocked it.
    remember_blocked: float = 300.0
    #: The deadline for the answer to a retry, below that of the commands.
    retry: float = 3.0
    #: How long requests can go on after the actor has ended.
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
    #: Whether a status socket was made. A restart that cannot make it again then does not end the node.
    has_served: bool = False
    #: The last failure to make it again.
    unmade: LastCrash | None = None
    #: The last block of the loop (fault 83).
    blocked: LoopBlocked | None = None
    #: The logged paths of entries that only look like sockets (fault 6).
    ignored: set[str] = attrs.field(factory=set)
    #: How many refused entries each root has had, and the roots with too many of them for the log (fault 7).
    refused: dict[str, int] = attrs.field(factory=dict)
    over_refused: set[str] = attrs.field(factory=set)
    #: Callers that wait for a scan of each root.
    awaiting_scans: list[Address[bool]] = attrs.field(factory=list)

    #: The expectation since the last reload that changed it; None before.
    expectation: ExpectationChanged | None = None
    #: The trusted users since the last reload that changed them; None before.
    trust: TrustChanged | None = None
    #: The roots since the last reload that changed them; None before.
    changed_roots: RootsChanged | None = None
    #: The last reload; None if there was none.
    configuration: ConfigurationRead | None = None
    refused_calls: RefusedCalls = attrs.field(factory=RefusedCalls)
    #: Set when the node begins to stop. Plugins are not asked from then on.
    stopping: trio.Event = attrs.field(factory=trio.Event)

    def expected(self, config: StatusConfig) -> ExpectationChanged:
        """Return the expected plugins and devices."""
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
        """Return the roots for whose first scan readiness waits."""
        return config.roots if self.changed_roots is None else self.changed_roots.directories

    def change_roots(self, changed: RootsChanged) -> None:
        """Use other roots, and drop the state of those that are gone."""
        self.changed_roots = changed
        for root in self.view.roots.keys() - set(changed.directories):
            del self.view.roots[root]
            self.refused.pop(root, None)
            self.over_refused.discard(root)
            self.metrics.forget_root(root)

    def note_configuration(self, read: ConfigurationRead) -> None:
        """Count a reload, and keep its result."""
        self.configuration = read
        self.metrics.config_refused = read.refused is not None
        if read.refused is None:
            self.metrics.reloads += 1
        else:
            self.metrics.refused_reloads += 1

    def note_unmade(self, reason: str) -> None:
        """Count a failure to make the status socket again."""
        self.metrics.socket_failures += 1
        self.unmade = LastCrash(trio.current_time(), reason, self.metrics.socket_failures)
