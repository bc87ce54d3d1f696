"""Messages that come while a registration is busy: some end what is under way, and others wait for its end."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.handlers import Ask
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, Hangs, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import asked, asks, at, notified, red, shown


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


@pytest.mark.parametrize("deregister", [False, True])
async def test_a_stop_that_waits_for_a_register_ends_the_actor_when_a_newer_socket_ends_the_register(
    autojump_clock: MockClock, *, deregister: bool
) -> None:
    """Behaviour 36; found by seed 7001827: the newer socket took the name of a plugin that the stop left registered."""
    handler = FakeHandler().script("register", Hangs())
    config = attrs.evolve(DEFAULT_CONFIG, deregister_at_stop=deregister)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node, trio.open_nursery() as nursery:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        nursery.start_soon(node.stop)
        await trio.sleep(1.0)
        plugin.restart()
        await trio.sleep(1.0)
        assert asks(handler) == [(0.0, "validate"), (0.0, "register"), (2.0, "deregister")]
        assert plugin.calls == [asked(0.0)]
        assert node.timeline("a.sock")[-2:] == at(2.0, "leaving", "gone")


async def test_a_retry_that_comes_during_a_dial_ends_the_pause_after_a_try_that_is_refused(
    autojump_clock: MockClock,
) -> None:
    """It is kept while the plugin is asked for its info, and while it is told that this is not acceptable."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", ""), listening=False)
        await trio.sleep(0.3)
        (answer,) = await node.supervisor.retry(node.path("a.sock"))
        assert (answer.tried, answer.why) == (True, "an attempt is under way: dial")
        await trio.sleep(0.2)
        plugin.listen()
        await trio.sleep(0.4)
        # The next of the dials that wait for a listener, some 50 ms apart.
        heard = plugin.calls[0].time
        steps = at(heard, "asking-info", "notifying", "waiting")
        assert node.timeline("a.sock") == [(0.2, "dialing"), *steps, (heard, "dialing"), *steps]
        assert notified(plugin) == [(heard, False), (heard, False)]
        assert asks(handler) == []


@pytest.mark.parametrize("deregister", [False, True])
async def test_a_notification_under_way_at_a_stop_finishes_unless_the_stop_deregisters(
    autojump_clock: MockClock, *, deregister: bool
) -> None:
    """Behaviour 42."""
    handler = FakeHandler()
    config = attrs.evolve(DEFAULT_CONFIG, deregister_at_stop=deregister)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(delay=0.6))
        await trio.sleep(1.0)
        await node.stop()
        assert node.now == (1.0 if deregister else 1.2)
        assert notified(plugin) == [(0.6, True)]
        undone = [(1.0, "deregister")] if deregister else []
        assert asks(handler) == [(0.6, "validate"), (0.6, "register"), *undone]


@pytest.mark.parametrize(("ask", "undone"), [("validate", []), ("register", [(60.0, "deregister")])])
async def test_a_touch_during_a_call_shows_the_new_owner_and_brings_no_try_forward(
    autojump_clock: MockClock, ask: Ask, undone: list[tuple[float, str]]
) -> None:
    """Fault 49: a call has the newest state of the world, so its failure is followed by the whole backoff."""
    handler = FakeHandler().script(ask, Hangs())
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep(1.0)
        node.directory.chown(plugin.path, 1234)
        await trio.sleep(1.0)
        status = shown(node)
        assert status.owner == 1234
        await trio.sleep_until(100.0)
        assert notified(plugin) == [(60.0, False), (60.5, True)]
        before = [(0.0, "validate"), (0.0, "register")]
        assert asks(handler) == [
            *before[: 1 if ask == "validate" else 2],
            *undone,
            *((60.5, "validate"), (60.5, "register")),
        ]


async def test_a_silent_first_try_is_shown_at_once_when_a_report_is_asked_for(autojump_clock: MockClock) -> None:
    """Fault 85: the status actor crashes, and knows no plugin when it begins again."""
    handler = FakeHandler().script("register", Takes(1.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await trio.sleep(0.1)
        node.crash("status")
        await node.settled()
        # What is shown is the time at which the phase began, and not that of the report.
        assert node.timeline("a.sock") == [(0.0, "registering"), *at(1.0, "notifying", "registered")]
        assert asks(handler) == [(0.0, "validate"), (0.0, "register")]
