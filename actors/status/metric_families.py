"""Metric families of prometheus-client, each with a series for each key of a mapping.

Non-printable characters are escaped before prometheus-client escapes the value: a path or the name of a type can
contain an ESC or a bidirectional control, and metrics can be read on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily, Metric

from ...protocol.status.histograms import Histogram
from ...protocol.text import escaped

__all__ = ["Counter", "Gauge", "durations", "series"]

#: The values of the labels of a series; a text alone is that of the only label.
Key = TypeVar("Key", bound=str | tuple[str, ...])


def _values(key: str | tuple[str, ...]) -> list[str]:
    """Return the values of the labels. Different texts give different values."""
    texts = (key,) if isinstance(key, str) else key
    return [escaped(text.replace("\\", r"\\")) for text in texts]


def series(
    kind: type[Counter | Gauge], name: str, what: str, labels: Sequence[str], numbers: Mapping[Key, float]
) -> Metric:
    """Return a family of counters or gauges with a series for each of ``numbers``."""
    family = kind(name, what, labels=labels)
    for key, number in numbers.items():
        family.add_metric(_values(key), number)
    return family


def durations(name: str, what: str, labels: Sequence[str], histograms: Iterable[tuple[Key, Histogram]]) -> Metric:
    """Return a family of histograms."""
    family = HistogramMetricFamily(name, what, labels=labels)
    for key, histogram in histograms:
        family.add_metric(_values(key), histogram.cumulative(), histogram.total)
    return family
