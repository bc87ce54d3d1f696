"""The oracle of preparations: how long devices are withheld whose call broke off, and crashes of the lease actor."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.tests.fuzz.preparation_oracle import WITHHELD, PreparationOracle, Preparing


@attrs.define
class Judged:
    """The oracle of one device, and what it has found."""

    found: list[str] = attrs.Factory(list)
    oracle: PreparationOracle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.oracle = PreparationOracle(lambda oracle, text: self.found.append(f"{oracle}: {text}"))

    def prepare(self) -> Preparing:
        """Let a plugin be asked to prepare the device."""
        preparing = Preparing("lab.com/gpu", "Allocate", ("d0",), None, trio.current_time())
        self.oracle.begins(preparing)
        return preparing

    async def break_off(self, at: float) -> None:
        """Let a call begin at 1 s and break off at ``at``."""
        await trio.sleep_until(1)
        preparing = self.prepare()
        await trio.sleep_until(at)
        self.oracle.lost(preparing)


@pytest.mark.parametrize(("again_at", "is_right"), [(10 + WITHHELD, True), (10 + WITHHELD - 0.1, False)])
async def test_a_device_is_withheld_for_a_minute_after_its_call_broke_off(
    autojump_clock: MockClock, again_at: float, is_right: bool
) -> None:
    judged = Judged()
    await judged.break_off(10.0)
    await trio.sleep_until(again_at)
    judged.prepare()
    words = (
        "withheld: [('lab.com/gpu', 'd0')] are prepared by Allocate at 69.9; Allocate began at 1 and broke off at 10.0"
    )
    assert judged.found == ([] if is_right else [words])


async def test_a_crash_after_that_minute_withholds_nothing(autojump_clock: MockClock) -> None:
    """The device was free before the lease actor crashed, which knows no lease with it any more."""
    judged = Judged()
    await judged.break_off(10.0)
    await trio.sleep_until(10 + WITHHELD)
    judged.oracle.forsaken()
    await trio.sleep(1)
    judged.prepare()
    assert judged.found == []


@pytest.mark.parametrize(("again_at", "is_right"), [(65 + WITHHELD, True), (65 + WITHHELD - 0.1, False)])
async def test_a_crash_within_that_minute_begins_it_anew(
    autojump_clock: MockClock, again_at: float, is_right: bool
) -> None:
    judged = Judged()
    await judged.break_off(10.0)
    await trio.sleep_until(65)
    judged.oracle.forsaken()
    await trio.sleep_until(again_at)
    judged.prepare()
    assert len(judged.found) == (0 if is_right else 1)


async def test_a_crash_amid_a_call_begins_the_minute_of_that(autojump_clock: MockClock) -> None:
    judged = Judged()
    await trio.sleep_until(1)
    judged.prepare()
    await trio.sleep_until(5)
    judged.oracle.forsaken()
    await trio.sleep_until(5 + WITHHELD - 0.1)
    judged.prepare()
    assert len(judged.found) == 1
