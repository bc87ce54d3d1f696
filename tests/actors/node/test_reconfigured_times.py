"""Timeouts and backoff that change while a node runs: what is under way keeps its own, what begins has the new ones."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.backoff import Backoff
from plugind.protocol.errors import ConfigError
from plugind.protocol.settings.config import Config, Timeouts
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, Hangs, SimulatedNode
from plugind.tests.actors.registration.timelines import at, registered_at, steps_at


def with_times(times: Timeouts) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, timeouts=times)


def with_handler_time(seconds: float) -> Config:
    return with_times(Timeouts(handlers={"Colour": seconds}))


async def test_a_backoff_under_way_ends_when_it_was_to_and_the_next_one_is_another(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red", get_info_fails=4))
        await trio.sleep(0.6)  # The second delay of a second has begun.
        await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, backoff=Backoff(initial=0.1, factor=3.0, jitter=0.0)))
        await node.settled()
        tries = ("dialing", "asking-info", "waiting")
        assert node.timeline("a.sock") == [
            *at(0.0, "waiting"),
            *at(0.5, *tries),
            *at(1.5, *tries),
            *at(2.4, *tries),  # 0.1 s, three times as long twice
            *steps_at(5.1),
        ]


async def test_a_call_to_the_plugin_keeps_its_deadline_and_the_next_one_has_the_new_one(
    autojump_clock: MockClock,
) -> None:
    """GetInfo is under way at 0.5 s, and ends after its second; the try after it has three seconds."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red", hang="get-info"))
        await trio.sleep(0.5)
        await node.reconfigure(with_times(Timeouts(get_info=3.0)))
        await trio.sleep(6.5)
        assert node.timeline("a.sock") == [
            *at(0.2, "asking-info"),
            *at(1.0, "waiting"),
            *at(1.5, "dialing", "asking-info"),
            *at(4.5, "waiting"),
            *at(5.5, "dialing", "asking-info"),
        ]
        reasons = [entry.cause for entry in node.history("a.sock") if entry.state.value == "waiting"]
        assert reasons == ["GetInfo failed: no answer in 1 s", "GetInfo failed: no answer in 3 s"]


async def test_the_command_after_a_call_has_the_deadline_that_came_during_the_call(autojump_clock: MockClock) -> None:
    """Nothing reads the inbox between the end of GetInfo and the beginning of the notification."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = FakePlugin("Colour", "red", delay=0.5)
        node.plug("a.sock", plugin)
        await trio.sleep(0.25)
        await node.reconfigure(with_times(Timeouts(notify=0.2)))
        await trio.sleep(0.6)
        assert node.timeline("a.sock") == [
            *at(0.2, "asking-info"),
            *at(0.5, "validating", "registering", "notifying"),
            *at(0.7, "dialing", "notifying"),
        ]


async def test_a_call_of_a_handler_keeps_its_deadline_and_the_next_one_has_the_new_one(
    autojump_clock: MockClock,
) -> None:
    handler = FakeHandler().script("validate", Hangs(), Hangs())
    async with SimulatedNode(with_handler_time(10.0), handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(4.0)
        await node.reconfigure(with_handler_time(2.0))
        await node.settled()
        assert node.timeline("a.sock") == [
            *at(0.2, "validating"),
            *at(10.0, "notifying", "waiting"),
            *at(10.5, "dialing", "asking-info", "validating"),
            *at(12.5, "notifying", "waiting"),
            *steps_at(13.5),
        ]
        causes = [entry.cause for entry in node.history("a.sock") if entry.state.value == "waiting"]
        words = "plugin validation failed: the handler did not finish in"
        assert causes == [f"{words} 10 s", f"{words} 2 s"]


async def test_the_handlers_of_a_type_have_times_of_their_own_also_those_that_are_added_later(
    autojump_clock: MockClock,
) -> None:
    slow = FakeHandler().always("validate", Hangs())
    async with SimulatedNode(handlers={"Colour": slow}) as node:
        await node.reconfigure(with_times(Timeouts(handlers={"Colour": 3.0, "Shape": 4.0})))
        await node.supervisor.add_handler("Shape", FakeHandler().always("validate", Hangs()))
        node.plug("a.sock", FakePlugin("Colour", "red"))
        node.plug("b.sock", FakePlugin("Shape", "round"))
        await trio.sleep(4.25)
        assert [time for time, state in node.timeline("a.sock") if state == "notifying"] == [3.0]
        assert [time for time, state in node.timeline("b.sock") if state == "notifying"] == [4.0]


async def test_a_handler_that_may_wait_longer_than_its_calls_would_have_refuses_the_whole_change(
    autojump_clock: MockClock,
) -> None:
    handler = FakeHandler()
    handler.longest_call = 20.0  # type: ignore[attr-defined]  # a handler may have it
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        wrong = attrs.evolve(with_handler_time(25.0), expected=("red",))
        with pytest.raises(ConfigError, match="the handler for Colour may wait for 20 s, and is ended after 25 s"):
            await node.reconfigure(wrong)
        assert node.supervisor.config == DEFAULT_CONFIG
        await node.reconfigure(with_handler_time(26.0))


async def test_a_stop_has_the_grace_that_was_set_last(autojump_clock: MockClock) -> None:
    """A Register that hangs keeps a node for the whole grace, which is ten seconds by default."""
    handler = FakeHandler().script("register", Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(1.0)
        await node.reconfigure(with_times(Timeouts(stop_grace=4.0)))
        await node.stop()
        assert handler.asked() == ["validate", "register"]
        assert node.now == 5.0


async def test_a_life_is_judged_by_the_time_that_was_set_before_its_end(autojump_clock: MockClock) -> None:
    """A plugin that has lived for two seconds was short-lived by the ten of the start, and is not by one second."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        short = node.plug("a.sock", FakePlugin("Colour", "red"))
        long = node.plug("b.sock", FakePlugin("Colour", "blue"))
        await trio.sleep(2.0)
        short.restart()
        await trio.sleep(0.1)
        await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, stable_after=1.0))
        long.restart()
        await node.settled()
        # The one that waits already waits on.
        assert node.timeline("a.sock")[-6:] == steps_at(2.5)
        assert node.timeline("b.sock")[-2:] == [*at(2.1, "leaving"), *registered_at(2.1)]


async def test_a_reconciler_that_crashes_with_the_change_in_its_inbox_starts_with_it(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(2.0)
        node.crash("reconciler")
        await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, stable_after=1.0, max_instances=1))
        await node.settled()
        registered = node.now
        await trio.sleep(2.0)
        plugin.restart()
        await node.settled()
        assert node.timeline("a.sock")[-2:] == [(registered + 2.0, "leaving"), *registered_at(registered + 2.0)]
        node.plug("b.sock", FakePlugin("Colour", "red"))
        await trio.sleep(0.1)
        crowded = node.status("b.sock")
        assert crowded is not None
        assert crowded.cause is not None
        assert "has 1 instances already" in crowded.cause


async def test_two_changes_in_a_row_leave_the_second(autojump_clock: MockClock) -> None:
    """Both come during one call, and are read after it; the first must not be in force again."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red", get_info_fails=2, delay=0.5))
        await trio.sleep(0.25)
        for initial in (7.0, 3.0):
            await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, backoff=Backoff(initial=initial, jitter=0.0)))
        await trio.sleep(10.0)
        assert node.timeline("a.sock")[:5] == [
            *at(0.2, "asking-info"),
            *at(0.5, "waiting"),
            *at(3.5, "dialing", "asking-info"),
            *at(4.0, "waiting"),
        ]


async def test_what_needs_another_node_is_refused(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        with pytest.raises(ConfigError, match=r"does not take another value of Config\.strict: start another node"):
            await node.reconfigure(attrs.evolve(DEFAULT_CONFIG, strict=True, expected=("red",)))
        assert node.supervisor.config == DEFAULT_CONFIG
