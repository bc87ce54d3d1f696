"""What is counted of leases, for metrics.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter, defaultdict

import attrs

from ...protocol.leases import messages as m
from ...protocol.leases.effects import Failed
from ...protocol.status.histograms import KUBELET_BUCKETS, Histogram
from ...protocol.status.metrics import ResourceLabels
from ...protocol.values import record


def _no_durations() -> Histogram:
    return Histogram(KUBELET_BUCKETS)


@record
class LeaseCounts:
    """Counters by the labels of resources: those that device plugins offer have some of their own."""

    _labels: ResourceLabels = attrs.field(init=False, factory=ResourceLabels)
    #: The labels of what was offered: their numbers of leases begin with 0.
    _offered: set[str] = attrs.field(init=False, factory=set)
    _failures: Counter[tuple[str, str]] = attrs.field(init=False, factory=Counter)
    _durations: defaultdict[str, Histogram] = attrs.field(init=False, factory=lambda: defaultdict(_no_durations))

    def note(self, message: m.StateMessage) -> None:
        """Count what a plugin has answered; a resource that is offered has a label."""
        match message:
            case m.OfferChanged():
                self._offered.add(self._labels.label(message.offer.resource))
            case m.Allocated() | m.AllocationRefused() | m.AllocationLost() if message.seconds is not None:
                self._durations[self._labels.label(message.resource)].observe(message.seconds)
            case _:
                pass

    def fail(self, failed: Failed) -> None:
        """Count a caller who got no lease; it may have asked for anything."""
        for name in failed.resources:
            self._failures[self._labels.label(name, may_be_new=False), failed.failure.problem.value] += 1

    def added_to(self, snapshot: m.LeasesSnapshot) -> m.LeasesSnapshot:
        """Return ``snapshot`` with the counts."""
        counts = dict.fromkeys(sorted(self._offered), 0)
        leased = dict(counts)
        for lease in snapshot.leases:
            for name, devices in lease.devices.items():
                label = self._labels.label(name)
                counts[label] = counts.get(label, 0) + 1
                leased[label] = leased.get(label, 0) + len(devices)
        free = dict.fromkeys(sorted(self._offered), 0)
        for name, number in snapshot.free.items():
            label = self._labels.label(name)
            free[label] = free.get(label, 0) + number
        durations = {label: attrs.evolve(it, counts=[*it.counts]) for label, it in self._durations.items()}
        return attrs.evolve(
            snapshot, counts=counts, leased=leased, free=free, failures=dict(self._failures), durations=durations
        )
