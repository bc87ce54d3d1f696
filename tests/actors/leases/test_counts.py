"""What is counted of leases, by the labels of their resources, of which there are not too many."""

from __future__ import annotations

from plugind.actors.leases.memory import LeaseCounts
from plugind.protocol.leases.effects import Failed
from plugind.protocol.leases.messages import (
    Allocated,
    AllocationLost,
    AllocationRefused,
    Failure,
    LeasesSnapshot,
    OfferChanged,
    Problem,
)
from plugind.protocol.leases.values import Answer, Lease, LeaseState, NoOwner
from plugind.protocol.status.metrics import MAX_RESOURCES, OTHER
from plugind.tests.protocol.leases.script import GPU, PLUGIN, offer, request


def test_leases_failures_and_durations_are_counted_by_resource() -> None:
    counts = LeaseCounts()
    counts.note(OfferChanged(offer(["a"])))
    counts.fail(Failed((GPU,), 0, Failure(Problem.UNAVAILABLE, "none are left")))
    counts.note(Allocated("x", GPU, Answer(), 0.5))
    counts.note(AllocationRefused("x", GPU, "no", 1.0))
    counts.note(AllocationLost("x", GPU, PLUGIN, "lost", 30.0))
    counts.note(AllocationRefused("x", GPU, "it was not called"))
    lease = Lease("x", 0, request((GPU, 1)), NoOwner(), LeaseState.HELD, 0.0, {GPU: ("a", "b")})
    shown = counts.added_to(LeasesSnapshot(0.0, (lease,)))
    assert (shown.counts, shown.leased) == ({GPU: 1}, {GPU: 2})
    assert shown.failures == {(GPU, "unavailable"): 1}
    assert shown.durations[GPU].total == 31.5
    assert shown.durations[GPU].cumulative()[-1] == ("+Inf", 3.0)


def test_a_resource_that_is_offered_counts_no_leases_at_first() -> None:
    """A rate needs a first value, and so does an alert. The buckets are those of the kubelet's histogram."""
    counts = LeaseCounts()
    counts.note(OfferChanged(offer(["a"])))
    counts.note(AllocationRefused("x", GPU, "no", 0.3))
    shown = counts.added_to(LeasesSnapshot(0.0))
    assert (shown.counts, shown.leased) == ({GPU: 0}, {GPU: 0})
    assert [number for _, number in shown.durations[GPU].cumulative()] == [0.0] * 6 + [1.0] * 6


def test_callers_cannot_make_labels_and_plugins_not_too_many() -> None:
    """Fault 92: whatever is asked for, and whatever plugins announce."""
    counts = LeaseCounts()
    failure = Failure(Problem.UNAVAILABLE, "there is none")
    counts.fail(Failed(("vendor.com/nothing",), 0, failure))
    for number in range(2 * MAX_RESOURCES):
        counts.note(OfferChanged(offer(["a"], f"vendor.com/{number}")))
        counts.fail(Failed((f"vendor.com/{number}",), 0, failure))
    failures = counts.added_to(LeasesSnapshot(0.0)).failures
    assert len(failures) == MAX_RESOURCES + 1
    assert failures[OTHER, "unavailable"] == MAX_RESOURCES + 1
