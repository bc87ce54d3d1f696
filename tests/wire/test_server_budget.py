"""The frame budget as a unit, with bytes and times as its input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.actors.grpc.server.budget import (
    PREFACE,
    Allowance,
    FloodError,
    FrameBudget,
    FrameKind,
    OverlongFrameError,
)
from plugind.tests.wire.server_helpers import frame

PING = frame(6, b"8 bytes.")
ALLOWANCES = {kind: Allowance(3, 2) for kind in FrameKind}


def budget() -> FrameBudget:
    return FrameBudget(ALLOWANCES, max_frame_size=100, now=0.0)


def test_a_burst_is_allowed_and_one_more_is_a_flood() -> None:
    counted = budget()
    counted.feed(PREFACE + PING * 3, 0.0)
    with pytest.raises(FloodError) as caught:
        counted.feed(PING, 0.0)
    assert caught.value.kind is FrameKind.PING


def test_time_refills_a_budget_up_to_its_burst() -> None:
    counted = budget()
    counted.feed(PREFACE + PING * 3, 0.0)
    counted.feed(PING * 2, 1.0)
    counted.feed(PING * 3, 1000.0)
    with pytest.raises(FloodError):
        counted.feed(PING, 1000.0)


def test_an_overlong_frame_is_recognised_by_its_header() -> None:
    """Fault 50."""
    with pytest.raises(OverlongFrameError, match="a frame announces 101 bytes, more than 100"):
        budget().feed(PREFACE + frame(0, b"x" * 101)[:9], 0.0)


@given(cuts=st.lists(st.integers(1, 40), max_size=30), pings=st.integers(0, 6), filler=st.binary(max_size=60))
def test_frames_are_counted_the_same_however_their_bytes_are_split(cuts: list[int], pings: int, filler: bytes) -> None:
    data = PREFACE + frame(0, filler).join([PING] * pings)
    counted = budget()
    flooded = False
    try:
        while data:
            step = cuts.pop() if cuts else 1
            counted.feed(data[:step], 0.0)
            data = data[step:]
    except FloodError:
        flooded = True

    # Empty filler is counted too, but there is less of it than there are PINGs.
    assert flooded == (pings > 3)
