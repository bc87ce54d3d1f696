"""A handler follows its plugins through links: from Register's success until just before Deregister."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.handlers.handler import Handler
from plugind.actors.handlers.link import Link
from plugind.actors.handlers.links import Links, LinksConfig
from plugind.actors.health.endpoint_checks import EndpointChecks
from plugind.actors.simulation.faults import InjectedError
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.protocol.errors import ConfigError, NoConnectionError, PluginError
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import StatusMessage
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.settings.config import Config, Timeouts
from plugind.supervisor import Supervisor
from plugind.testing import FakeHandler, FakePlugin, Hangs, PluggedIn, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import shown

Follow = Callable[[Plugin, Link], Awaitable[None]]


async def for_ever(plugin: Plugin, link: Link) -> None:
    await trio.sleep_forever()


def raising(plugin: Plugin, link: Link) -> Awaitable[None]:
    raise ValueError("lost the thread")


@attrs.define
class Following:
    """A handler that follows as ``does`` says, and records when each of its calls began and ended."""

    does: Follow = for_ever
    refuses: bool = False
    instances: InstancePolicy = InstancePolicy.NEWEST
    calls: list[tuple[float, str]] = attrs.Factory(list)
    links: list[Link] = attrs.Factory(list)

    def note(self, what: str) -> None:
        self.calls.append((round(trio.current_time(), 6), what))

    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin, link: Link) -> None:
        self.links.append(link)
        self.note(f"register {plugin.generation}")
        if self.refuses:
            raise PluginError("no room")

    async def follow(self, plugin: Plugin, link: Link) -> None:
        self.note(f"follow {plugin.generation}")
        try:
            await self.does(plugin, link)
        finally:
            self.note(f"unfollow {plugin.generation}")

    async def deregister(self, plugin: Plugin) -> None:
        self.note(f"deregister {plugin.generation}")


def node_with(handler: Handler) -> SimulatedNode:
    return SimulatedNode(handlers={"Colour": handler})


def red() -> FakePlugin:
    return FakePlugin("Colour", "red.example.com")


@asynccontextmanager
async def followed(handler: Handler) -> AsyncIterator[tuple[SimulatedNode, PluggedIn]]:
    """Run a node on which the plugin ``red.sock`` is registered and followed."""
    async with node_with(handler) as node:
        plugin = node.plug("red.sock", red())
        await node.settled()
        yield node, plugin


async def test_a_plugin_is_followed_from_register_until_just_before_deregister(autojump_clock: MockClock) -> None:
    handler = Following()
    async with followed(handler) as (node, plugin):
        await trio.sleep(3600)
        plugin.stop()
        await node.settled()
    assert handler.calls == [(0.0, "register 1"), (0.0, "follow 1"), (3600.0, "unfollow 1"), (3600.0, "deregister 1")]


async def test_a_report_that_waits_for_room_at_a_stop_is_dropped_with_its_link(autojump_clock: MockClock) -> None:
    """It was ended by an error when the node closed the inbox, and that error was the end of the node."""
    reconciler, _ = trio.open_memory_channel[ReconcilerMessage](1)
    status, inbox = trio.open_memory_channel[StatusMessage](0)
    checks = EndpointChecks(HealthChecks(), status, random.Random(7))
    links = Links(LinksConfig(lambda plugin, file: pytest.fail("nothing is dialed"), reconciler, status, checks, 7))
    link = links.open(Plugin("Colour", "red.example.com", "/r/red.sock", ("1.0.0",), "/r/red.sock", 1), None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.serve)
        link.report(Health.HEALTHY)
        await wait_all_tasks_blocked()
        assert inbox.statistics().tasks_waiting_send == 1
        links.cancel_all()
        await links.close_all()
        status.close()
        await wait_all_tasks_blocked()
        assert not nursery.cancel_scope.cancel_called
        nursery.cancel_scope.cancel()


async def test_a_follow_that_raises_is_started_again_and_touches_nothing(autojump_clock: MockClock) -> None:
    """It raises 100 times: 1 s doubling to 30 s apart. Neither the registration nor another plugin notices."""
    handler = Following(raising)
    async with node_with(handler) as node:
        node.plug("red.sock", red())
        other = node.plug("blue.sock", FakePlugin("Colour", "blue.example.com"))
        await node.settled()
        before = node.timeline("red.sock"), node.timeline("blue.sock")
        await trio.sleep(100 * 30)
        assert (node.timeline("red.sock"), node.timeline("blue.sock")) == before
        assert node.state("red.sock") == "registered"
        status = shown(node, "red.sock")
        assert (status.generation, status.health) == (1, Health.UNKNOWN)
        assert status.health_reason == "its handler failed to follow it: the handler broke: ValueError: lost the thread"
        assert len(other.calls) == 2
    began = [time for time, what in handler.calls if what == "follow 1"]
    assert len(began) >= 100
    assert [later - earlier for earlier, later in pairwise(began)][:7] == [1, 2, 4, 8, 16, 30, 30]


async def test_a_crash_of_the_reconciler_ends_the_links_with_the_registrations(autojump_clock: MockClock) -> None:
    """Fault 85: all plugins are deregistered, and registered and followed anew."""
    handler = Following()
    async with followed(handler) as (node, _):
        node.crash("reconciler")
        await trio.sleep(10)
        calls = [what.partition(" ")[0] for _, what in handler.calls]
        assert calls == ["register", "follow", "unfollow", "deregister", "register", "follow"]
        assert len(node.supervisor.internals.links) == 1


async def test_a_stop_ends_the_follow_of_a_plugin_that_stays_registered(autojump_clock: MockClock) -> None:
    """Behaviour 42: nothing is deregistered."""
    handler = Following()
    async with followed(handler):
        await trio.sleep(5)
    assert handler.calls == [(0.0, "register 1"), (0.0, "follow 1"), (5.0, "unfollow 1")]


async def shielded(plugin: Plugin, link: Link) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(60)


async def test_a_follow_that_shields_itself_holds_deregister_for_five_seconds(autojump_clock: MockClock) -> None:
    handler = Following(shielded)
    async with followed(handler) as (node, plugin):
        plugin.stop()
        await node.settled()
        unfinished = node.supervisor.internals.unfinished().calls
        assert unfinished == ("follow of red.example.com (/plugins/red.sock) in the handler for Colour",)
        await trio.sleep(100)
        assert node.supervisor.internals.unfinished().calls == ()
    assert handler.calls == [(0.0, "register 1"), (0.0, "follow 1"), (5.0, "deregister 1"), (60.0, "unfollow 1")]


async def test_a_follow_that_shields_itself_holds_up_no_other_actor_when_the_node_stops(
    autojump_clock: MockClock,
) -> None:
    """All else has ended after five seconds, and the node can say all the time what it waits for."""
    handler = Following(shielded)
    async with followed(handler) as (node, _), trio.open_nursery() as nursery:
        supervisor = node.supervisor
        nursery.start_soon(node.stop)
        for seconds in (3.0, 2.5):
            await trio.sleep(seconds)
            calls = supervisor.internals.unfinished().calls
            assert calls == ("follow of red.example.com (/plugins/red.sock) in the handler for Colour",)
        assert supervisor.internals.unfinished().actors == ("links",)


# --- channels ---------------------------------------------------------------------------------------------------------


async def test_a_link_connects_to_the_endpoint_and_notices_its_end(autojump_clock: MockClock) -> None:
    ends: list[float] = []

    async def connect(plugin: Plugin, link: Link) -> None:
        while True:
            channel = await link.connect()
            assert link.channel is channel
            assert await link.connect() is channel
            await channel.wait_closed()
            ends.append(trio.current_time())
            await wait_all_tasks_blocked()
            with pytest.raises(NoConnectionError, match="it is not open"):
                _ = link.channel

    handler = Following(connect)
    async with followed(handler) as (node, plugin):
        await trio.sleep(7)
        assert plugin.connections == 1
        plugin.reset()
        await trio.sleep(3)
        assert plugin.connections == 1
        assert node.state("red.sock") == "registered"
    assert ends == [7.0]


async def test_an_endpoint_that_comes_later_is_awaited(autojump_clock: MockClock) -> None:
    """ENOENT, then ECONNREFUSED: tried each 100 ms."""
    connected: list[float] = []

    async def connect(plugin: Plugin, link: Link) -> None:
        await link.connect()
        connected.append(round(trio.current_time(), 6))
        await trio.sleep_forever()

    handler = Following(connect)
    async with node_with(handler) as node:
        node.plug("red.sock", FakePlugin("Colour", "red.example.com", endpoint="/plugins/own/service"))
        await trio.sleep(1.25)
        node.directory.mkdir("/plugins/own")
        endpoint = node.plug("own/service", FakePlugin("Other", "service"), listening=False)
        await trio.sleep(1)
        assert connected == []
        endpoint.listen()
        await trio.sleep(1)
    assert connected == [2.3]


async def test_a_link_that_has_ended_connects_no_more(autojump_clock: MockClock) -> None:
    handler = Following()
    async with followed(handler) as (node, plugin):
        plugin.unlink()
        await node.settled()
        with pytest.raises(NoConnectionError, match="the link has ended"):
            await handler.links[0].connect()


# --- roles ------------------------------------------------------------------------------------------------------------


async def test_a_link_says_which_instance_is_active(autojump_clock: MockClock) -> None:
    """Behaviour 37: the newest, unless the handler says that it cannot be used yet, or any more."""
    roles: list[tuple[float, str, bool]] = []

    async def watch(plugin: Plugin, link: Link) -> None:
        while True:
            active = await link.role_changed()
            roles.append((trio.current_time(), plugin.socket, active))

    handler = Following(watch)
    async with node_with(handler) as node:
        node.plug("a", red())
        await node.settled()
        a = handler.links[0]
        a.role(usable=True)
        await trio.sleep(1)
        node.plug("b", red())
        await trio.sleep(1)
        b = handler.links[1]
        assert not b.active
        b.role(usable=True)
        await trio.sleep(1)
        b.role(usable=False)
        await trio.sleep(1)
        status = shown(node, "b")
        assert status.active is False
    assert sorted(roles) == [
        (0.0, "/plugins/a", True),
        (2.0, "/plugins/a", False),
        (2.0, "/plugins/b", True),
        (3.0, "/plugins/a", True),
        (3.0, "/plugins/b", False),
    ]


async def test_a_link_says_whether_another_plugin_has_the_endpoint(autojump_clock: MockClock) -> None:
    """Fault 79: a plugin that is shown as standing by was told that it is active (seed 40404 of 40 events)."""
    roles: list[tuple[float, bool]] = []

    async def watch(plugin: Plugin, link: Link) -> None:
        while plugin.name == "squatter":
            active = await link.role_changed()
            roles.append((trio.current_time(), active))
        await trio.sleep_forever()

    handler = Following(watch)
    async with node_with(handler) as node:
        node.plug("a.sock", FakePlugin("Colour", "squatter", endpoint="/plugins/b.sock"))
        await node.settled(patience=0.0)
        await trio.sleep(1)
        b = node.plug("b.sock", red())
        await trio.sleep(1)
        assert [link.active for link in handler.links] == [False, True]
        status = shown(node)
        assert status.active is False
        b.stop()
        await trio.sleep(1)
        assert handler.links[0].active
    assert roles == [(0.0, True), (1.0, False), (2.0, True)]


async def test_a_plugin_that_lost_its_endpoint_before_it_was_registered_is_told_so(autojump_clock: MockClock) -> None:
    """Fault 79: its link is opened after another plugin has come to serve there."""
    handler = FakeHandler(follows=True).script("validate", Takes(5.0), name="slow")
    async with node_with(handler) as node:
        node.plug("a.sock", FakePlugin("Colour", "slow", endpoint="/plugins/b.sock"))
        await trio.sleep(1)
        node.plug("b.sock", red())
        await trio.sleep(10)
        assert {socket: link.active for socket, link in handler.links.items()} == {
            "/plugins/a.sock": False,
            "/plugins/b.sock": True,
        }


async def test_the_role_of_a_plugin_that_is_being_deregistered_is_dropped(autojump_clock: MockClock) -> None:
    async def late(plugin: Plugin, link: Link) -> None:
        try:
            await trio.sleep_forever()
        finally:
            link.role(usable=True)
            link.report(Health.HEALTHY)
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    handler = Following(late)
    async with node_with(handler) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        plugin.unlink()
        await trio.sleep(0.5)
        assert node.state("a.sock") == "leaving"
        status = shown(node)
        assert status.health is None
        await node.settled()


# --- health -----------------------------------------------------------------------------------------------------------


async def test_reported_health_and_facts_are_shown(autojump_clock: MockClock) -> None:
    handler = Following()
    async with followed(handler) as (node, _):
        (link,) = handler.links
        await trio.sleep(1)
        link.report(Health.HEALTHY, facts={"node-id": "n-7"})
        await trio.sleep(1)
        status = shown(node, "red.sock")
        assert (status.health, status.facts, status.health_since) == (Health.HEALTHY, (("node-id", "n-7"),), 1.0)
        link.report(Health.UNHEALTHY, "driver responded but is not ready")
        await wait_all_tasks_blocked()
        status = shown(node, "red.sock")
        assert (status.health, status.health_reason) == (Health.UNHEALTHY, "driver responded but is not ready")
        assert status.facts == (("node-id", "n-7"),)


async def test_health_outlives_a_crash_of_the_status_actor(autojump_clock: MockClock) -> None:
    """Fault 85: what the actor was told when it crashed is told again."""
    handler = Following()
    async with followed(handler) as (node, _):
        await trio.sleep(1)
        node.crash("status")
        handler.links[0].report(Health.HEALTHY)
        await trio.sleep(10)
        status = shown(node, "red.sock")
        assert status.health is Health.HEALTHY


# --- how long a call may take -----------------------------------------------------------------------------------------


@attrs.define
class Patient(Following):
    """A handler that sets deadlines of its own."""

    longest_call: float = 55.0


def test_a_handler_whose_calls_need_more_time_than_they_have_is_refused_at_the_start() -> None:
    """Both values are named, and what to do. Five seconds are for what the handler does besides waiting."""
    said = (
        "a call of the handler for Colour may wait for 55 s, and is ended after 60 s: give it more than 60 s, for"
        " example with --handler-timeout Colour=65"
    )
    with pytest.raises(ConfigError, match=f"^{said}$"):
        Supervisor(handlers={"Colour": Patient()})
    Supervisor(handlers={"Colour": Patient(longest_call=54.9)})
    Supervisor(Config(timeouts=Timeouts(handlers={"Colour": 65.0})), handlers={"Colour": Patient()})
    Supervisor(handlers={"CSIPlugin": Patient(longest_call=169.0)})


async def test_the_calls_of_each_type_have_a_deadline_of_their_own(autojump_clock: MockClock) -> None:
    """Fault 82."""
    config = attrs.evolve(DEFAULT_CONFIG, timeouts=Timeouts(handlers={"Colour": 5.0}))
    handlers = {name: FakeHandler().script("validate", Hangs()) for name in ("Colour", "Other")}
    async with SimulatedNode(config, handlers=handlers) as node:
        node.plug("a.sock", red())
        node.plug("b.sock", FakePlugin("Other", "other.example.com"))
        await node.settled()
        ended = {
            socket: [time for time, state in node.timeline(socket) if state == "waiting"]
            for socket in ("a.sock", "b.sock")
        }
        assert ended == {"a.sock": [5.0], "b.sock": [60.0]}


async def test_a_crash_of_the_links_begins_all_follows_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: the registrations are untouched; the channels are closed, and each follow connects anew."""

    async def connect(plugin: Plugin, link: Link) -> None:
        await (await link.connect()).wait_closed()
        await trio.sleep_forever()

    handler = Following(connect)
    async with followed(handler) as (node, plugin):
        outbox = node.supervisor.internals.links.outbox

        async def crash() -> object:
            monkeypatch.undo()
            raise InjectedError

        monkeypatch.setattr(outbox, "next", crash)
        handler.links[0].report(Health.HEALTHY)
        await trio.sleep(1)
        handler.links[0].report(Health.STARTING)
        await trio.sleep(10)
        assert [what for _, what in handler.calls] == ["register 1", "follow 1", "unfollow 1", "follow 1"]
        assert (plugin.connections, node.state("red.sock")) == (1, "registered")
        status = shown(node, "red.sock")
        assert status.health is Health.STARTING
        plugin.stop()
        await node.settled()
        assert [what for _, what in handler.calls][-2:] == ["unfollow 1", "deregister 1"]


# --- facts ------------------------------------------------------------------------------------------------------------


async def test_a_handler_learns_that_its_facts_are_asked_for_and_misses_no_such_call(autojump_clock: MockClock) -> None:
    asked: list[float] = []

    async def answering(plugin: Plugin, link: Link) -> None:
        while True:
            await link.facts_asked()
            asked.append(trio.current_time())
            await trio.sleep(5)

    async with followed(Following(answering)) as (node, _):
        await trio.sleep(10 - trio.current_time())
        (answer,) = await node.supervisor.retry("red.example.com", facts=True)
        assert (answer.tried, answer.why) == (True, "its facts are asked for now")
        # While it is at it, two more callers are one.
        for _ in range(2):
            await trio.sleep(1)
            await node.supervisor.retry("red.example.com", facts=True)
        await trio.sleep(60)
    assert asked == [10, 15]


async def test_a_handler_may_start_a_task_when_its_facts_are_asked_for(autojump_clock: MockClock) -> None:
    """What was asked while nobody was to be notified is said to the next one, as after a crash of the follow."""
    notified: list[tuple[float, str]] = []

    async def answering(plugin: Plugin, link: Link) -> None:
        for name in ("first", "second"):
            link.when_facts_asked(partial(tell, name))
            await trio.sleep(10)
            link.when_facts_asked(None)
            await trio.sleep(10)
            await link.facts_asked()
        await trio.sleep_forever()

    def tell(name: str) -> None:
        notified.append((trio.current_time(), name))

    async with followed(Following(answering)) as (node, _):
        began = trio.current_time()
        for time in (5, 6, 15, 25, 35):
            await trio.sleep_until(began + time)
            (answer,) = await node.supervisor.retry("red.example.com", facts=True)
            assert answer.tried
        assert notified == [(began + 5, "first"), (began + 6, "first"), (began + 25, "second")]


async def test_callers_are_told_that_a_handler_asks_for_no_facts(autojump_clock: MockClock) -> None:
    async with followed(Following()) as (node, _):
        (answer,) = await node.supervisor.retry("red.example.com", facts=True)
        assert (answer.tried, answer.why) == (False, "the handler of its type asks for no facts")
        assert await node.supervisor.retry("nobody", facts=True) == ()
