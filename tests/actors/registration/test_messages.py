"""Messages that come while a registration is busy: some end what is under way, and others wait for its end."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from plugind.testing import FakeHandler, FakePlugin, SimulatedNode, Takes
from plugind.tests.actors.timelines import asked, asks, at, notified_ok


def red(**faults: object) -> FakePlugin:
    return FakePlugin("Colour", "red", **faults)  # type: ignore[arg-type]


async def test_a_register_that_a_forced_stop_finds_finishes_and_is_undone(autojump_clock: MockClock) -> None:
    """Behaviour 36, fault 87: the stop comes after one second, and is forced five seconds later."""
    handler = FakeHandler().script("register", Takes(8.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        await node.stop()
        assert node.now == 8.0
        assert asks(handler) == [(0.0, "validate"), (0.0, "register"), (8.0, "deregister")]
        assert plugin.calls == [asked(0.0)]
        assert node.timeline("a.sock") == [(0.2, "registering"), *at(8.0, "notifying", "leaving", "gone")]


async def test_a_retry_that_comes_during_a_notification_ends_the_pause_after_the_tries_that_fail(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 33: the second try follows at once, so the retry is kept during both."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(hang="notify"))
        await trio.sleep(1.0)
        (answer,) = await node.supervisor.retry(node.path("a.sock"))
        assert (answer.tried, answer.why) == (True, "an attempt is under way: notifying")
        await trio.sleep_until(12.0)
        assert node.timeline("a.sock") == [
            (0.2, "notifying"),
            *at(5.0, "dialing", "notifying"),
            *at(10.0, "waiting", "dialing", "notifying"),
        ]
        assert plugin.calls == [asked(0.0), *map(notified_ok, (0.0, 5.0, 10.0))]
        assert asks(handler) == [(0.0, "validate"), (0.0, "register")]
