"""The text of ``/metrics``: the counted values as metric families, rendered by prometheus-client.

Families with bounded labels are rendered at once. The gauge that is compatible with the kubelet counts sockets by world
(behaviour 39). On request it has a series for each path, as the kubelet's has: then it is rendered in pieces, between
which other tasks run, and above a number of paths it only counts (fault 92).

Non-printable characters are escaped before prometheus-client escapes the value: a path or the name of a type can
contain an ESC or a bidirectional control, and metrics can be read on a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
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
from ...protocol.text import escaped
from . import exposition_of_node
from .exposition_of_node import OfNode

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


def _shown(text: str) -> str:
    """Return ``text`` as a label's value. Different texts give different values."""
    return escaped(text.replace("\\", r"\\"))


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
        counts = GaugeMetricFamily(name, what, labels=("condition",))
        for condition, number in metrics.directories().items():
            counts.add_metric((condition.value,), number)
        return counts
    named = GaugeMetricFamily(name, what, labels=("condition", "directory"))
    for report in metrics.directory_reports():
        named.add_metric((report.condition.value, _shown(report.path)), 1)
    return named


def _mailboxes(actors: Iterable[ActorHealth]) -> Iterable[Metric]:
    depths: dict[str, int] = {}
    waits: dict[str, float] = {}
    hangs: dict[str, int] = {}
    for actor in actors:
        kind = kind_of(actor.actor)
        depths[kind] = depths.get(kind, 0) + actor.waiting
        waits[kind] = max(waits.get(kind, 0.0), actor.oldest_wait)
        hangs[kind] = hangs.get(kind, 0) + (actor.condition is Condition.FAILED)
    yield _by_label("actor", "plugind_mailbox_depth", "Messages that wait for an actor.", depths)
    yield _by_label(
        "actor", "plugind_mailbox_oldest_wait_seconds", "How long the oldest of them has waited at least.", waits
    )
    yield _by_label("actor", "plugind_actors_hanging", "Actors that take no message although some wait.", hangs)


def _devices(snapshot: DevicesSnapshot) -> Iterable[Metric]:
    counts = GaugeMetricFamily(
        "plugind_devices", "Devices of device plugins, by health.", labels=("resource_name", "health")
    )
    for label, (healthy, unhealthy) in snapshot.counts.items():
        counts.add_metric((_shown(label), "healthy"), healthy)
        counts.add_metric((_shown(label), "unhealthy"), unhealthy)
    yield counts
    ended = CounterMetricFamily(
        "plugind_device_streams_ended", "Times that a device plugin's list was lost.", labels=("resource_name",)
    )
    for label in sorted(snapshot.counts.keys() | snapshot.streams_ended.keys()):
        ended.add_metric((_shown(label),), snapshot.streams_ended.get(label, 0))
    yield ended


def _state(devices: DevicesSnapshot | None, leases: LeasesSnapshot | None) -> Iterable[Metric]:
    """Yield the sums for the stores of resources and leases, which mostly are one file."""
    if devices is None and leases is None:
        return
    fails = [devices is not None and devices.problem is not None, leases is not None and leases.state_fails]
    failures = (0 if devices is None else devices.state_failures) + (0 if leases is None else leases.state_failures)
    yield GaugeMetricFamily(
        "plugind_state_failing", "1 while what must outlive a restart cannot be kept.", int(any(fails))
    )
    yield CounterMetricFamily(
        "plugind_state_failures", "Reads and writes of the state that failed or were late.", failures
    )


def _leases(snapshot: LeasesSnapshot) -> Iterable[Metric]:
    durations = HistogramMetricFamily(
        "device_plugin_alloc_duration_seconds",
        "How long device plugins took to answer Allocate.",
        labels=("resource_name",),
    )
    for label, histogram in snapshot.durations.items():
        durations.add_metric((_shown(label),), histogram.cumulative(), histogram.total)
    yield durations
    drains = {"": 0, **Counter(target.resource or "" for target in snapshot.drains)}
    for name, what, numbers in (
        ("leases", "Leases that have devices.", snapshot.counts),
        ("leased_devices", "Devices that leases have.", snapshot.leased),
        ("free_devices", "Devices that can be leased.", snapshot.free),
        ("drained_devices", "Devices that are listed and out of service.", snapshot.drained),
        ("drains", "Drains of a resource and of its devices; with an empty name, the drain of the node.", drains),
    ):
        yield _by_label("resource_name", f"plugind_{name}", what, numbers)
    yield GaugeMetricFamily(
        "plugind_leases_withheld", "1 while no device is given to anybody.", int(snapshot.withheld is not None)
    )
    failures = CounterMetricFamily(
        "plugind_lease_failures", "Times that a caller got no lease, by why.", labels=("resource_name", "reason")
    )
    for (label, reason), number in snapshot.failures.items():
        failures.add_metric((_shown(label), reason), number)
    yield failures


def _checks(metrics: Metrics) -> Iterator[Metric]:
    checks = CounterMetricFamily(
        "plugind_health_checks", "Checks of endpoints, by how they ended.", labels=("plugin_type", "result")
    )
    for (label, result), count in metrics.checks.items():
        checks.add_metric((_shown(label), result), count)
    yield checks
    durations = HistogramMetricFamily(
        "plugind_health_check_duration_seconds", "How long the checks of endpoints took.", labels=("plugin_type",)
    )
    for label, histogram in metrics.check_durations.items():
        durations.add_metric((_shown(label),), histogram.cumulative(), histogram.total)
    yield durations


def _calls(calls: CallDurations) -> Iterator[Metric]:
    """Yield the durations of calls to drivers, as the kubelet does. No volume plugin here is migrated."""
    labels = ("driver_name", "method_name", "grpc_status_code")
    csi = HistogramMetricFamily(CallFamily.CSI, "How long calls to CSI drivers took.", labels=(*labels, "migrated"))
    for (name, method, code), histogram in calls.histograms(CallFamily.CSI):
        csi.add_metric((_shown(name), method, code, "false"), histogram.cumulative(), histogram.total)
    yield csi
    dra = HistogramMetricFamily(CallFamily.DRA, "How long calls to DRA drivers took.", labels=labels)
    for (name, method, code), histogram in calls.histograms(CallFamily.DRA):
        dra.add_metric((_shown(name), method, code), histogram.cumulative(), histogram.total)
    yield dra


def _by_label(label: str, name: str, what: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=(label,))
    for text, value in values.items():
        family.add_metric((_shown(text),), value)
    return family


def _total_plugins(rows: list[Row]) -> Metric:
    family = GaugeMetricFamily(*_TOTAL_PLUGINS, labels=("state",))
    for world, count in count_worlds(rows).items():
        family.add_metric((world,), count)
    return family


def _total_plugins_by_path(rows: list[Row]) -> Metric:
    family = GaugeMetricFamily(*_TOTAL_PLUGINS, labels=("socket_path", "state"))
    for path, world in worlds(rows):
        family.add_metric((_shown(path), world), 1)
    return family


def _of_sockets(metrics: Metrics, rows: list[Row]) -> Iterator[Metric]:
    """Yield what is counted for each scrape: one or two milliseconds of work for each family with 10,000 sockets."""
    plugins = GaugeMetricFamily("plugind_plugins", "Sockets, by state.", labels=("state", "plugin_type"))
    for (state, label), count in metrics.plugins(rows).items():
        plugins.add_metric((state, _shown(label)), count)
    yield plugins
    why = GaugeMetricFamily(
        "plugind_plugin_causes",
        "Sockets whose plugin is not registered, by why.",
        labels=("plugin_type", "cause"),
    )
    for (label, cause), count in causes(metrics, rows).items():
        why.add_metric((_shown(label), cause), count)
    yield why
    silent = GaugeMetricFamily(
        "plugind_plugins_not_serving", "Registered plugins on whose socket nobody listens.", labels=("plugin_type",)
    )
    for label, count in not_serving(metrics, rows).items():
        silent.add_metric((_shown(label),), count)
    yield silent
    health = GaugeMetricFamily(
        "plugind_plugin_health", "Plugins whose handler reports their health.", labels=("plugin_type", "health")
    )
    for (label, word), count in healths(metrics, rows).items():
        health.add_metric((_shown(label), word), count)
    yield health
    instances = GaugeMetricFamily(
        "plugind_dra_instances", "Instances of DRA drivers that are registered.", labels=("connected",)
    )
    for connected, count in dra_instances(rows).items():
        instances.add_metric((str(connected).lower(),), count)
    yield instances


def _bounded(metrics: Metrics, *, suppressed: bool) -> Iterator[Metric]:
    operations = CounterMetricFamily(
        "plugind_operations",
        "Steps of registrations, by how they ended.",
        labels=("operation", "plugin_type", "outcome"),
    )
    for (operation, label, outcome), count in metrics.operations.items():
        operations.add_metric((operation, _shown(label), outcome), count)
    yield operations
    durations = HistogramMetricFamily(
        "plugind_operation_duration_seconds", "How long the steps took.", labels=("operation", "plugin_type")
    )
    for (operation, label), histogram in metrics.durations.items():
        durations.add_metric((operation, _shown(label)), histogram.cumulative(), histogram.total)
    yield durations
    yield HistogramMetricFamily(
        "plugind_registration_seconds",
        "From the appearance of a socket until its plugin is registered.",
        buckets=metrics.registration.cumulative(),
        sum_value=metrics.registration.total,
    )
    yield from _checks(metrics)
    follows = CounterMetricFamily(
        "plugind_link_restarts", "Times that a handler's follow was started again.", labels=("plugin_type",)
    )
    for label, count in metrics.link_restarts.items():
        follows.add_metric((_shown(label),), count)
    yield follows
    yield CounterMetricFamily("plugind_rescans", "Scans of roots that were completed.", metrics.roots.scans)
    yield CounterMetricFamily("plugind_scan_failures", "Scans of directories that failed.", metrics.roots.failures)
    yield CounterMetricFamily(
        "plugind_watch_overflows", "Times that the kernel lost events of a watch.", metrics.roots.overflows
    )
    calls = CounterMetricFamily(
        "device_plugin_registration", "Calls of Register by device plugins.", labels=("resource_name",)
    )
    for resource, count in metrics.register_calls.counts.items():
        calls.add_metric((_shown(resource),), count)
    yield calls
    yield CounterMetricFamily(
        "plugind_kubelet_socket_remade", "Times that kubelet.sock was removed and made again.", metrics.roots.remade
    )
    restarts = CounterMetricFamily(
        "plugind_actor_restarts", "Actors that crashed and were started again.", labels=("actor",)
    )
    for actor, count in metrics.restarts.items():
        restarts.add_metric((_shown(actor),), count)
    yield restarts
    yield CounterMetricFamily(
        "plugind_status_socket_failures",
        "Times that the status socket could not be made again.",
        metrics.socket_failures,
    )
    reloads = CounterMetricFamily(
        "plugind_config_reloads", "Times that the configuration was read again.", labels=("result",)
    )
    reloads.add_metric(("used",), metrics.reloads)
    reloads.add_metric(("refused",), metrics.refused_reloads)
    yield reloads
    yield GaugeMetricFamily(
        "plugind_config_refused",
        "1 while the configuration that was read last cannot be used, and the one before it is in force.",
        int(metrics.config_refused),
    )
    yield CounterMetricFamily("plugind_loop_blocks", "Times that something blocked the loop.", metrics.blocks)
    yield CounterMetricFamily(
        "plugind_loop_blocked_seconds", "Seconds for which something blocked the loop.", metrics.blocked_seconds
    )
    yield GaugeMetricFamily(
        "plugind_path_metrics_suppressed",
        "1 while there are too many paths for plugin_manager_total_plugins to have a series for each.",
        int(suppressed),
    )
