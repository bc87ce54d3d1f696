"""Registrations that crash by a bug in plugind: only the plugin that reaches the bug suffers from it (fault 85)."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.registration import actor, conversation
from plugind.actors.simulation.processes import MemoryProcesses
from plugind.protocol.health.liveness import ConnectAnswer
from plugind.protocol.plugins import info as plugins
from plugind.protocol.plugins.info import PluginInfo
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import asks, at, red, registered_at, resting

#: The plugins whose info is checked by code with a bug.
CRASHING = [f"crashing-{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("bug", "hours"), [(AssertionError("planted"), 24), (MemoryError(), 1)], ids=["assertion", "memory"]
)
async def test_a_bug_that_some_plugins_reach_parks_these_alone_and_never_ends_the_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, bug: Exception, hours: int
) -> None:
    """Fault 85: a planted error, 12 plugins that reach it and 50 good ones beside them, for a day; and MemoryErrors."""
    check_info = plugins.check_info

    def planted(kind: str, name: str, *rest: Any, **named: Any) -> PluginInfo:
        if name in CRASHING:
            raise bug
        return check_info(kind, name, *rest, **named)

    monkeypatch.setattr(conversation, "check_info", planted)
    # Looks at listeners are most of the work of a day in which nothing happens.
    monkeypatch.setattr(MemoryProcesses, "look", lambda *_, **__: (ConnectAnswer.ACCEPTED, None))
    config = attrs.evolve(DEFAULT_CONFIG, rescan=600.0, hung_after=None)
    async with SimulatedNode(config, handlers={"Colour": FakeHandler()}) as node:
        good = [f"good-{number}" for number in range(50)]
        for name in (*good, *CRASHING):
            node.plug(f"{name}.sock", FakePlugin("Colour", name))
        await trio.sleep(hours * 3600.0)
        assert all(node.timeline(f"{name}.sock") == registered_at(0.0) for name in good)
        times = [0.0, 0.5, 1.5, 3.5, 7.5]
        # A crash ends the silence of the first try, and its successors are not silent.
        shown = [at(time, "dialing", "asking-info", "waiting") for time in times[1:]]
        parked = [
            *at(0.0, "asking-info", "waiting"),
            *itertools.chain(*shown[:3]),
            *at(7.5, "dialing", "asking-info", "parked"),
        ]
        assert all(node.timeline(f"{name}.sock") == parked for name in CRASHING)
        reason = node.history("crashing-0.sock")[-1].reason
        assert reason is not None
        assert reason.startswith(f"internal error, 5 times in a row: {type(bug).__name__}")
        monkeypatch.setattr(conversation, "check_info", check_info)
        assert [answer.tried for answer in await node.supervisor.retry(node.path("crashing-0.sock"))] == [True]
        await node.settled()
        assert node.state("crashing-0.sock") == "registered"


async def test_a_plugin_whose_registration_crashes_each_time_it_is_registered_is_deregistered_each_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85, behaviour 36: a pending deregistration comes first, also before the socket is parked."""

    def always(*_: object, **__: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(conversation, "_sendable", always)
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        assert handler.asked() == ["validate", "register", "deregister"] * 5
        assert (node.now, node.state("a.sock")) == (7.5, "parked")


async def test_a_registration_that_crashes_again_as_it_cleans_up_is_deregistered_by_its_successor(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85, behaviour 36."""

    async def planted(_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(actor._Registration, "_clean_up", planted)
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await trio.sleep(1.0)
        node.crash("registration", "a.sock")
        await node.settled()
        assert asks(handler) == [
            *((0.0, ask) for ask in ("validate", "register")),
            (1.0, "deregister"),
            *((1.5, ask) for ask in ("validate", "register")),
        ]
        assert resting(node) == [(0.0, "registered"), (1.0, "leaving"), (1.0, "waiting"), (1.5, "registered")]


async def test_a_registration_that_crashes_even_while_it_is_parked_is_started_ever_more_rarely(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 85: no bug makes a loop without a pause, and a stop does not wait for the pause."""
    crashes: list[float] = []

    def always(*_: object, **__: object) -> None:
        crashes.append(trio.current_time())
        raise AssertionError("planted")

    monkeypatch.setattr(actor._Registration, "_enter", always)
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", red())
        await trio.sleep(30.0)
        assert crashes == [0.0] * 6 + [0.5, 1.5, 3.5, 7.5, 15.5]
    assert trio.current_time() == 30.0
