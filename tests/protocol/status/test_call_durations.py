"""How long calls to drivers took, as the kubelet counts it."""

from __future__ import annotations

import pytest

from plugind.protocol.messages.consumers import CallEnded, CallFamily
from plugind.protocol.status.call_durations import CallDurations, code_word
from plugind.protocol.status.metrics import MAX_RESOURCES

METHOD = "/csi.v1.Node/NodeGetInfo"


def ended(name: str = "a.example.com", family: CallFamily = CallFamily.CSI, code: str = "OK") -> CallEnded:
    return CallEnded(family, name, METHOD, code, 0.2)


def test_calls_are_counted_by_driver_method_and_code() -> None:
    durations = CallDurations()
    for call in (ended(), ended(), ended(code="DEADLINE_EXCEEDED"), ended(family=CallFamily.DRA)):
        durations.observe(call)
    csi = {labels: sum(histogram.counts) for labels, histogram in durations.histograms(CallFamily.CSI)}
    assert csi == {("a.example.com", METHOD, "OK"): 2, ("a.example.com", METHOD, "DeadlineExceeded"): 1}
    ((labels, histogram),) = durations.histograms(CallFamily.DRA)
    assert (labels, sum(histogram.counts)) == (("a.example.com", METHOD, "OK"), 1)


def test_drivers_beyond_the_first_64_share_a_label() -> None:
    """Fault 92."""
    durations = CallDurations()
    for number in range(MAX_RESOURCES + 10):
        durations.observe(ended(f"{number}.example.com"))
    counts = {name: sum(histogram.counts) for (name, _, _), histogram in durations.histograms(CallFamily.CSI)}
    assert (len(counts), counts["63.example.com"], counts["other"]) == (MAX_RESOURCES + 1, 1, 10)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("OK", "OK"),
        ("CANCELLED", "Canceled"),
        ("UNIMPLEMENTED", "Unimplemented"),
        ("FAILED_PRECONDITION", "FailedPrecondition"),
    ],
)
def test_codes_have_the_names_of_grpc_go(code: str, word: str) -> None:
    assert code_word(code) == word
