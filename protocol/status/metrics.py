"""Counters and histograms as values, with a few hundred label combinations at most.

The number of labels is bounded, whatever plugins announce (fault 92). A plugin's type is the label if it is built in or
has had a handler; otherwise the label is ``other``, and ``unknown`` until the plugin has sent its info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from ..messages.status import HealthChecked, RootStatus, StateChanged
from ..plugins.devices import ResourceStatus
from ..plugins.health import Health
from ..plugins.info import BUILT_IN_TYPES, DRA
from ..plugins.status import Operation, Outcome, StateName, Watching
from ..trust.directories import DirectoryCondition, DirectoryReport
from ..values import record
from ..words import CRASH_LOOP
from .histograms import Histogram
from .view import Row

#: How many plugin types have their own label.
MAX_TYPES = 32
UNKNOWN = "unknown"
_REGISTERED = StateName.REGISTERED
#: In observe mode another consumer registers plugins.
_IN_USE = (_REGISTERED, StateName.OBSERVED)
OTHER = "other"


#: How many resources have their own label (fault 92).
MAX_RESOURCES = 64


@record
class ResourceLabels:
    """The labels of resources: the first :data:`MAX_RESOURCES` have their own, the others share one."""

    _own: set[str] = attrs.field(init=False, factory=set)

    def label(self, resource: str, *, may_be_new: bool = True) -> str:
        """Return the label of ``resource``, which gets its own label only if it ``may_be_new``."""
        if may_be_new and resource not in self._own and len(self._own) < MAX_RESOURCES:
            self._own.add(resource)
        return resource if resource in self._own else OTHER


@record
class ByResource:
    """A counter for each label of resources; invalid names count under the shared label."""

    counts: dict[str, int] = attrs.field(init=False, factory=dict)
    _labels: ResourceLabels = attrs.field(factory=ResourceLabels)

    def count(self, resource: str | None, *, may_be_new: bool = True) -> None:
        """Count one more of ``resource``; None stands for an invalid name."""
        label = OTHER if resource is None else self._labels.label(resource, may_be_new=may_be_new)
        self.counts[label] = self.counts.get(label, 0) + 1


@record
class RootCounters:
    """The watchers' counts in the life of the daemon. A restarted watcher counts from zero."""

    scans: int = 0
    failures: int = 0
    overflows: int = 0
    #: How often ``kubelet.sock`` was made again.
    remade: int = 0


#: Operations that can end before the type of the plugin is known.
_BEFORE_INFO = (Operation.DIAL, Operation.GET_INFO)


def _zeros() -> dict[tuple[Operation, str, Outcome], int]:
    """Return zero for every series that can exist from the start, because a rate needs a first value."""
    return {
        (operation, plugin_type, outcome): 0
        for operation in Operation
        for plugin_type in (*BUILT_IN_TYPES, *((UNKNOWN,) if operation in _BEFORE_INFO else ()))
        for outcome in Outcome
    }


#: How a check of an endpoint can end.
CHECK_RESULTS = (Outcome.OK, Outcome.FAILED, Outcome.TIMED_OUT)


def _no_checks() -> dict[tuple[str, Outcome], int]:
    return {(plugin_type, outcome): 0 for plugin_type in BUILT_IN_TYPES for outcome in CHECK_RESULTS}


@record
class Metrics:
    """Everything that is counted in the life of the daemon."""

    operations: dict[tuple[Operation, str, Outcome], int] = attrs.field(factory=_zeros)
    durations: dict[tuple[Operation, str], Histogram] = attrs.field(factory=dict)
    registration: Histogram = attrs.field(factory=Histogram)
    restarts: dict[str, int] = attrs.field(factory=dict)
    #: How often and for how many seconds the loop was blocked (fault 83).
    blocks: int = 0
    blocked_seconds: float = 0.0
    socket_failures: int = 0
    #: How often a reload succeeded, and how often the configuration could not be used.
    reloads: int = 0
    refused_reloads: int = 0
    #: Whether the configuration of the last reload cannot be used.
    config_refused: bool = False
    roots: RootCounters = attrs.field(factory=RootCounters)
    #: How often a follow was started again, by plugin type.
    link_restarts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(BUILT_IN_TYPES, 0))
    #: Answers of handlers that were dropped: nobody waited for them, or their session had ended or was another's.
    unawaited_answers: int = 0
    foreign_answers: int = 0
    #: Checks of endpoints by plugin type and result, and their durations.
    checks: dict[tuple[str, Outcome], int] = attrs.field(factory=_no_checks)
    check_durations: dict[str, Histogram] = attrs.field(factory=dict)
    #: Calls of Register, by the resource in the call.
    register_calls: ByResource = attrs.field(factory=ByResource)
    _types: set[str] = attrs.field(factory=lambda: set(BUILT_IN_TYPES))
    _reports: dict[str, RootStatus] = attrs.field(factory=dict)

    def label(self, plugin_type: str | None) -> str:
        """Return the label of a plugin type; the number of labels is bounded."""
        if plugin_type is None:
            return UNKNOWN
        return plugin_type if plugin_type in self._types else OTHER

    def learn_types(self, types: Iterable[str]) -> None:
        """Give these types their own labels, up to :data:`MAX_TYPES` types in all."""
        for plugin_type in types:
            if len(self._types) < MAX_TYPES:
                self._types.add(plugin_type)

    def count(self, change: StateChanged, row: Row | None) -> None:
        """Count the operations that ended with ``change``, and the registration if it is complete.

        ``row`` is the row of the socket, which has its type.
        """
        info = change.info or (None if row is None else row.info)
        label = UNKNOWN if info is None else info.type
        if info is not None and label not in self._types:
            label = OTHER
        for finished in change.finished:
            operation = finished.operation
            key = (operation, label, finished.outcome)
            self.operations[key] = self.operations.get(key, 0) + 1
            duration = self.durations.get((operation, label))
            if duration is None:
                duration = self.durations[operation, label] = Histogram()
            duration.observe(finished.seconds)
        if change.registered_in is not None and change.state is _REGISTERED:
            self.registration.observe(change.registered_in)

    def count_root(self, report: RootStatus) -> None:
        """Add what a watcher has counted since its last report."""
        before = self._reports.get(report.root)
        if before is None or report.scans < before.scans:
            before = RootStatus(report.root, report.watching, report.time)
        self.roots.scans += report.scans - before.scans
        self.roots.failures += max(0, report.scan_failures - before.scan_failures)
        self.roots.overflows += max(0, report.overflows - before.overflows)
        self.roots.remade += max(0, report.remade - before.remade)
        self._reports[report.root] = report

    def forget_root(self, root: str) -> None:
        """Stop counting the directories of a root; its watcher's counts stay."""
        self._reports.pop(root, None)

    def directories(self) -> dict[DirectoryCondition, int]:
        """Return how many directories are in each condition now."""
        counts = dict.fromkeys(DirectoryCondition, 0)
        for report in self._reports.values():
            for condition, number in report.conditions:
                counts[condition] += number
        return counts

    def directory_reports(self) -> Iterator[DirectoryReport]:
        """Yield the directories with problems, a bounded number for each root."""
        for report in self._reports.values():
            yield from report.directories

    def count_restart(self, actor: str) -> str:
        """Count a crash of ``actor``; return its kind."""
        kind = kind_of(actor)
        self.restarts[kind] = self.restarts.get(kind, 0) + 1
        return kind

    def count_link_restart(self, plugin_type: str) -> None:
        """Count a restart of a handler's follow."""
        label = self.label(plugin_type)
        self.link_restarts[label] = self.link_restarts.get(label, 0) + 1

    def count_check(self, check: HealthChecked) -> None:
        """Count a check of an endpoint."""
        label = self.label(check.plugin_type)
        key = label, check.outcome
        self.checks[key] = self.checks.get(key, 0) + 1
        self.check_durations.setdefault(label, Histogram()).observe(check.seconds)

    def plugins(self, rows: Iterable[Row]) -> dict[tuple[StateName, str], int]:
        """Return the number of ``rows`` in each state, by type; the built-in types have every state."""
        zeros = {(state, label): 0 for state in StateName if state is not StateName.GONE for label in BUILT_IN_TYPES}
        return zeros | Counter((row.last.state, self.label(row.type)) for row in rows)


#: The states of a socket whose plugin is not registered while no try is under way.
_AT_REST = frozenset({StateName.WAITING, StateName.PARKED, StateName.STALE})
#: The cause of an entry that is not treated as a plugin.
ENTRY_REFUSED = "entry-refused"
#: The cause of a plugin whose type has no handler, or whose name another plugin has.
CLAIM_REFUSED = "claim-refused"
#: The cause of a plugin that waits because those before it at the path had short lives (fault 49).
LOOPING = "crash-loop"


def causes(metrics: Metrics, rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """Return the number of ``rows`` whose plugin is not registered, by type and by cause.

    The cause is the last failed step with its outcome, as in :attr:`Metrics.operations`, or one of the words above, or
    ``other``. Causes that no plugin has now are left out.
    """
    found = ((metrics.label(row.type), _cause_of(row)) for row in rows)
    return Counter((label, cause) for label, cause in found if cause is not None)


def _cause_of(row: Row) -> str | None:
    state, failed = row.last.state, row.failed
    if state in _IN_USE:
        return None
    if row.refused:
        return ENTRY_REFUSED
    if failed is not None and failed.outcome is Outcome.OK:
        return CLAIM_REFUSED
    if failed is not None:
        return f"{failed.operation}-{failed.outcome}"
    # No step has failed, so the reason has plugind's own words, and none of the plugin's.
    if state is StateName.WAITING and (row.last.reason or "").startswith(CRASH_LOOP):
        return LOOPING
    return OTHER if state in _AT_REST else None


#: All values of ``watching``.
_WATCHING = (
    *(Watching.EVENTS, Watching.POLLING, Watching.INSECURE, Watching.SERVING),
    *(Watching.TAKEN, Watching.ABSENT, Watching.UNAVAILABLE),
)


def watched(roots: Iterable[RootStatus]) -> dict[str, int]:
    """Return the number of roots for each way of being watched."""
    return dict.fromkeys(_WATCHING, 0) | Counter(root.watching for root in roots)


def expected_useful(names: Iterable[str], rows: Iterable[Row], *, healthy: bool) -> dict[str, bool]:
    """Return for each expected name whether a plugin of that name is of use; with ``healthy``, also whether it is
    healthy.
    """
    wanted = dict.fromkeys(names, False)
    if wanted:
        for row in rows:
            name = row.name
            if name is not None and name in wanted and (row.healthy if healthy else row.useful):
                wanted[name] = True
    return wanted


def healthy_devices(names: Iterable[str], resources: Iterable[ResourceStatus]) -> dict[str, int]:
    """Return how many healthy devices each of the resources ``names`` has; an unlisted resource has none."""
    there = {resource.name: resource.allocatable for resource in resources}
    return {name: there.get(name, 0) for name in names}


#: The names of two words that are kinds. In others, the second word is a path or a plugin type.
_NAMES_OF_TWO_WORDS = frozenset({"device server", "dial slots"})


def kind_of(actor: str) -> str:
    """Return the kind of an actor, used as a label: its name without a path or a plugin type."""
    if actor in _NAMES_OF_TWO_WORDS:
        return actor
    return actor.partition(":")[0].partition(" ")[0].partition("/")[0] or OTHER


def not_serving(metrics: Metrics, rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of registered plugins on whose socket nobody listens, by type (fault 39)."""
    silent = (metrics.label(row.type) for row in rows if row.unserved is not None)
    return dict.fromkeys(BUILT_IN_TYPES, 0) | Counter(silent)


def healths(metrics: Metrics, rows: Iterable[Row]) -> dict[tuple[str, Health], int]:
    """Return the number of plugins by type and health; plugins without a report do not count."""
    zeros = {(label, health): 0 for label in BUILT_IN_TYPES for health in Health}
    return zeros | Counter((metrics.label(row.type), row.health.health) for row in rows if row.health is not None)


#: The health of a DRA driver that has a connection.
_CONNECTED = (Health.HEALTHY, Health.UNHEALTHY)


def dra_instances(rows: Iterable[Row]) -> dict[bool, int]:
    """Return the number of connected and of other instances of DRA drivers in use."""
    used = (row.health for row in rows if row.type == DRA and row.last.state in _IN_USE)
    return {True: 0, False: 0} | Counter(health is not None and health.health in _CONNECTED for health in used)


ACTUAL = frozenset({StateName.REGISTERING, StateName.NOTIFYING, StateName.REGISTERED})
ACTUAL_STATE = "actual_state_of_world"
DESIRED_STATE = "desired_state_of_world"


def count_worlds(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of sockets in each world of the kubelet."""
    return {ACTUAL_STATE: 0, DESIRED_STATE: 0} | Counter(world for _, world in worlds(rows))


def worlds(rows: Iterable[Row]) -> Iterable[tuple[str, str]]:
    """Yield each socket path with each world of the kubelet that contains it (behaviour 39)."""
    for row in rows:
        if row.last.state is not StateName.LEAVING and not row.refused:
            yield row.last.socket, DESIRED_STATE
        if row.last.state in ACTUAL:
            yield row.last.socket, ACTUAL_STATE
