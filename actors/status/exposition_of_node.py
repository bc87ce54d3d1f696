"""The metrics of the daemon itself: its build, its process, its roots and its expectations.

``exposition.py`` renders them.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from ...protocol.values import value
from ...protocol.version import __version__
from ..io.own_process import ProcessFigures
from .metric_families import Counter, Gauge, series


@value
class OfNode:
    """The state of the daemon at one moment."""

    #: For each expected name, whether a plugin of that name is of use.
    expected: Mapping[str, bool]
    #: For each resource with expected devices, how many healthy ones are missing.
    missing: Mapping[str, int]
    #: The number of roots by how they are watched.
    roots: Mapping[str, int]
    process: ProcessFigures


def families(node: OfNode) -> Iterator[Metric]:
    """Yield the metrics of the daemon."""
    build = {(__version__, platform.python_version()): 1}
    yield series(Gauge, "plugind_build_info", "1, with what runs in the labels.", ("version", "python"), build)
    what = "1 while a plugin of an expected name is of use."
    yield series(Gauge, "plugind_expected_plugin", what, ("name",), node.expected)
    what = "Healthy devices that are expected and not there."
    yield series(Gauge, "plugind_expected_devices_missing", what, ("resource_name",), node.missing)
    yield series(Gauge, "plugind_roots", "Roots, by how they are watched.", ("watching",), node.roots)
    yield from _process(node.process)


def _process(process: ProcessFigures) -> Iterator[Metric]:
    """Yield the standard metrics of a process, with the names and texts of Prometheus' client libraries."""
    yield Counter("process_cpu_seconds", "Total user and system CPU time spent in seconds.", process.cpu_seconds)
    for name, what, number in (
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", process.started),
        ("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_bytes),
        ("process_open_fds", "Number of open file descriptors.", process.open_descriptors),
        ("process_max_fds", "Maximum number of open file descriptors.", process.max_descriptors),
    ):
        if number is not None:
            yield Gauge(name, what, number)
