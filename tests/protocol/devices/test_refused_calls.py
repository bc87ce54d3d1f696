"""The last refusals of Register calls."""

from __future__ import annotations

import attrs

from plugind.protocol.devices.refused_calls import MAX_KEPT, MAX_TEXT, RefusedCalls
from plugind.protocol.messages.status import RegisterRefused

GPU = "vendor.com/gpu"
REFUSED = RegisterRefused("/dp", GPU, "a.sock", 0, 812, "no socket at /dp/a.sock after 10 s")


def test_the_last_refusal_of_a_resource_is_told_with_its_time_and_process() -> None:
    calls = RefusedCalls()
    calls.note(attrs.evolve(REFUSED, reason="an earlier one"), 1.0)
    calls.note(REFUSED, 8.0)
    assert calls.words(GPU, 20.0) == (
        "the last Register call for it, by pid 812, was refused 12 s ago: no socket at /dp/a.sock after 10 s"
    )
    (shown,) = calls.to_json(20.0, 1_700_000_012.0)
    assert shown == {
        "resource": GPU,
        "endpoint": "a.sock",
        "uid": 0,
        "pid": 812,
        "reason": REFUSED.reason,
        "age": 12.0,
        "since": "2023-11-14T22:13:20.000Z",
    }


def test_a_resource_that_was_registered_since_then_has_no_refusal() -> None:
    calls = RefusedCalls()
    calls.note(REFUSED, 0.0)
    calls.forget("v.com/another")
    assert calls.words(GPU, 0.0) is not None
    calls.forget(GPU)
    assert (calls.words(GPU, 0.0), [*calls.to_json(0.0, 0.0)]) == (None, [])


def test_a_flood_of_refusals_takes_no_more_than_its_room() -> None:
    """Fault 73: the refusals of 64 resources are kept, each cut, and none for what is no name of a resource."""
    calls = RefusedCalls()
    for number in range(MAX_KEPT + 1):
        calls.note(attrs.evolve(REFUSED, resource=f"v.com/r{number:03}", reason="x" * 5000), float(number))
    calls.note(attrs.evolve(REFUSED, resource="gpu"), 99.0)
    shown = [*calls.to_json(100.0, 100.0)]
    assert [call["resource"] for call in shown] == [f"v.com/r{number:03}" for number in range(1, MAX_KEPT + 1)]
    assert shown[0]["reason"] == "x" * MAX_TEXT + f"…(+{5000 - MAX_TEXT})"
