"""The text of ``/metrics``: the counted values as metric families, rendered by prometheus-client.

Families with bounded labels are rendered at once. The gauge that is compatible with the kubelet counts sockets by world
(behaviour 39). On request it has a series for each path, as the kubelet's has: then it is rendered in pieces, between
which other tasks run, and above a number of paths it only counts (fault 92).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from ...protocol.health.progress import ActorHealth, Condition
from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.messages.consumers import CallFamily
from ...protocol.plugins.devices import DevicesSnapshot
from ...protocol.status.call_durations import CallDurations
from ...protocol.status.metrics import (
    Metrics,
    causes,
    count_worlds,
    dra_instances,
    healths,
    kind_of,
    not_serving,
    worlds,
)
from ...protocol.status.view import Row
from . import exposition_of_node
from .exposition_of_node import OfNode
from .metric_families import Counter, Gauge, durations, series

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: The name and text of the kubelet's gauge.
_TOTAL_PLUGINS = ("plugin_manager_total_plugins", "Number of plugins in Plugin Manager")
#: How many paths a piece has: about two milliseconds of work.
PIECE = 100


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: the registry is used for one rendering."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families


def _render(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


def render(
    metrics: Metrics,
    calls: CallDurations,
    rows: list[Row],
    actors: Iterable[ActorHealth] = (),
    devices: DevicesSnapshot | None = None,
    leases: LeasesSnapshot | None = None,
    *,
    node: OfNode,
    path_metrics: bool,
    max_paths: int,
) -> Iterator[bytes]:
    """Yield the exposition in pieces of a few milliseconds of work."""
    suppressed = path_metrics and len(rows) > max_paths
    yield _render(
        (
            *exposition_of_node.families(node),
            *_bounded(metrics, suppressed=suppressed),
            *_calls(calls),
            _directories(metrics, by_path=path_metrics),
            *_mailboxes(actors),
            *(() if devices is None else _devices(devices)),
            *(() if leases is None else _leases(leases)),
            *_state(devices, leases),
        )
    )
    for family in _of_sockets(metrics, rows):
        yield _render([family])
    if not path_metrics or suppressed:
        yield _render([_total_plugins(rows)])
        return
    for start in range(0, len(rows), PIECE):
        text = _render([_total_plugins_by_path(rows[start : start + PIECE])])
        if start:
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
        yield text


def _directories(metrics: Metrics, *, by_path: bool) -> Metric:
    name, what = "plugind_directories", "Directories with which something is wrong, by what it is."
    if not by_path:
        return series(Gauge, name, what, ("condition",), metrics.directories())
    named = dict.fromkeys(((report.condition, report.path) for report in metrics.directory_reports()), 1)
    return series(Gauge, name, what, ("condition", "directory"), named)


def _mailboxes(actors: Iterable[ActorHealth]) -> Iterable[Metric]:
    depths: dict[str, int] = {}
    waits: dict[str, float] = {}
    hangs: dict[str, int] = {}
    for actor in actors:
        kind = kind_of(actor.actor)
        depths[kind] = depths.get(kind, 0) + actor.waiting
        waits[kind] = max(waits.get(kind, 0.0), actor.oldest_wait)
        hangs[kind] = hangs.get(kind, 0) + (actor.condition is Condition.FAILED)
    yield series(Gauge, "plugind_mailbox_depth", "Messages that wait for an actor.", ("actor",), depths)
    what = "How long the oldest of them has waited at least."
    yield series(Gauge, "plugind_mailbox_oldest_wait_seconds", what, ("actor",), waits)
    yield series(Gauge, "plugind_actors_hanging", "Actors that take no message although some wait.", ("actor",), hangs)


def _devices(snapshot: DevicesSnapshot) -> Iterable[Metric]:
    numbers = {
        (label, health): number
        for label, counts in snapshot.counts.items()
        for health, number in zip(("healthy", "unhealthy"), counts, strict=True)
    }
    yield series(
        Gauge, "plugind_devices", "Devices of device plugins, by health.", ("resource_name", "health"), numbers
    )
    ended = {**dict.fromkeys(snapshot.counts, 0), **snapshot.streams_ended}
    what = "Times that a device plugin's list was lost."
    yield series(Counter, "plugind_device_streams_ended", what, ("resource_name",), dict(sorted(ended.items())))


def _state(devices: DevicesSnapshot | None, leases: LeasesSnapshot | None) -> Iterable[Metric]:
    """Yield the sums for the stores of resources and leases, which mostly are one file."""
    if devices is None and leases is None:
        return
    fails = [devices is not None and devices.problem is not None, leases is not None and leases.state_fails]
    failures = (0 if devices is None else devices.state_failures) + (0 if leases is None else leases.state_failures)
    yield Gauge("plugind_state_failing", "1 while what must outlive a restart cannot be kept.", int(any(fails)))
    yield Counter("plugind_state_failures", "Reads and writes of the state that failed or were late.", failures)


def _leases(snapshot: LeasesSnapshot) -> Iterable[Metric]:
    labels, what = ("resource_name",), "How long device plugins took to answer Allocate."
    yield durations("device_plugin_alloc_duration_seconds", what, labels, snapshot.durations.items())
    drains = {"": 0, **collections.Counter(target.resource or "" for target in snapshot.drains)}
    for name, what, numbers in (
        ("leases", "Leases that have devices.", snapshot.counts),
        ("leased_devices", "Devices that leases have.", snapshot.leased),
        ("free_devices", "Devices that can be leased.", snapshot.free),
        ("drained_devices", "Devices that are listed and out of service.", snapshot.drained),
        ("drains", "Drains of a resource and of its devices; with an empty name, the drain of the node.", drains),
    ):
        yield series(Gauge, f"plugind_{name}", what, labels, numbers)
    yield Gauge("plugind_leases_withheld", "1 while no device is given to anybody.", int(snapshot.withheld is not None))
    if (lost := snapshot.history_losses) is not None:
        what = "Ended leases that could not be written to the history, and files of it that were set aside."
        losses = {"leases": lost.leases, "files": lost.files}
        yield series(Counter, "plugind_lease_history_losses", what, ("what",), losses)
    what = "Times that a caller got no lease, by why."
    yield series(Counter, "plugind_lease_failures", what, ("resource_name", "reason"), snapshot.failures)


def _checks(metrics: Metrics) -> Iterator[Metric]:
    what = "Checks of endpoints, by how they ended."
    yield series(Counter, "plugind_health_checks", what, ("plugin_type", "result"), metrics.checks)
    name, what = "plugind_health_check_duration_seconds", "How long the checks of endpoints took."
    yield durations(name, what, ("plugin_type",), metrics.check_durations.items())


def _calls(calls: CallDurations) -> Iterator[Metric]:
    """Yield the durations of calls to drivers, as the kubelet does. No volume plugin here is migrated."""
    labels = ("driver_name", "method_name", "grpc_status_code")
    csi = (((*key, "false"), histogram) for key, histogram in calls.histograms(CallFamily.CSI))
    yield durations(CallFamily.CSI, "How long calls to CSI drivers took.", (*labels, "migrated"), csi)
    yield durations(CallFamily.DRA, "How long calls to DRA drivers took.", labels, calls.histograms(CallFamily.DRA))


def _total_plugins(rows: list[Row]) -> Metric:
    return series(Gauge, *_TOTAL_PLUGINS, ("state",), count_worlds(rows))


def _total_plugins_by_path(rows: list[Row]) -> Metric:
    return series(Gauge, *_TOTAL_PLUGINS, ("socket_path", "state"), dict.fromkeys(worlds(rows), 1))


def _of_sockets(metrics: Metrics, rows: list[Row]) -> Iterator[Metric]:
    """Yield what is counted for each scrape: one or two milliseconds of work for each family with 10,000 sockets."""
    yield series(Gauge, "plugind_plugins", "Sockets, by state.", ("state", "plugin_type"), metrics.plugins(rows))
    what = "Sockets whose plugin is not registered, by why."
    yield series(Gauge, "plugind_plugin_causes", what, ("plugin_type", "cause"), causes(metrics, rows))
    what = "Registered plugins on whose socket nobody listens."
    yield series(Gauge, "plugind_plugins_not_serving", what, ("plugin_type",), not_serving(metrics, rows))
    what = "Plugins whose handler reports their health."
    yield series(Gauge, "plugind_plugin_health", what, ("plugin_type", "health"), healths(metrics, rows))
    instances = {str(connected).lower(): count for connected, count in dra_instances(rows).items()}
    what = "Instances of DRA drivers that are registered."
    yield series(Gauge, "plugind_dra_instances", what, ("connected",), instances)


def _bounded(metrics: Metrics, *, suppressed: bool) -> Iterator[Metric]:
    labels, what = ("operation", "plugin_type"), "Steps of registrations, by how they ended."
    yield series(Counter, "plugind_operations", what, (*labels, "outcome"), metrics.operations)
    name, what = "plugind_operation_duration_seconds", "How long the steps took."
    yield durations(name, what, labels, metrics.durations.items())
    yield HistogramMetricFamily(
        "plugind_registration_seconds",
        "From the appearance of a socket until its plugin is registered.",
        buckets=metrics.registration.cumulative(),
        sum_value=metrics.registration.total,
    )
    yield from _checks(metrics)
    what = "Times that a handler's follow was started again."
    yield series(Counter, "plugind_link_restarts", what, ("plugin_type",), metrics.link_restarts)
    dropped = {"not-awaited": metrics.unawaited_answers, "no-session": metrics.foreign_answers}
    what = "Answers of handlers in other processes that were dropped, by why."
    yield series(Counter, "plugind_handler_answers_dropped", what, ("reason",), dropped)
    yield Counter("plugind_rescans", "Scans of roots that were completed.", metrics.roots.scans)
    yield Counter("plugind_scan_failures", "Scans of directories that failed.", metrics.roots.failures)
    yield Counter("plugind_watch_overflows", "Times that the kernel lost events of a watch.", metrics.roots.overflows)
    name, what = "device_plugin_registration", "Calls of Register by device plugins."
    yield series(Counter, name, what, ("resource_name",), metrics.register_calls.counts)
    what = "Times that kubelet.sock was removed and made again."
    yield Counter("plugind_kubelet_socket_remade", what, metrics.roots.remade)
    what = "Actors that crashed and were started again."
    yield series(Counter, "plugind_actor_restarts", what, ("actor",), metrics.restarts)
    what = "Times that the status socket could not be made again."
    yield Counter("plugind_status_socket_failures", what, metrics.socket_failures)
    reloads = {"used": metrics.reloads, "refused": metrics.refused_reloads}
    what = "Times that the configuration was read again."
    yield series(Counter, "plugind_config_reloads", what, ("result",), reloads)
    what = "1 while the configuration that was read last cannot be used, and the one before it is in force."
    yield Gauge("plugind_config_refused", what, int(metrics.config_refused))
    yield Counter("plugind_loop_blocks", "Times that something blocked the loop.", metrics.blocks)
    what = "Seconds for which something blocked the loop."
    yield Counter("plugind_loop_blocked_seconds", what, metrics.blocked_seconds)
    what = "1 while there are too many paths for plugin_manager_total_plugins to have a series for each."
    yield Gauge("plugind_path_metrics_suppressed", what, int(suppressed))
