"""A registration and the reconciler crash in the same instant: no Deregister is lost (fault 85, behaviour 36)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from plugind.actors.handlers.served import Served
from plugind.actors.registration.inbox import RegistrationInbox
from plugind.actors.simulation.faults import Actor, PoisonMessage
from plugind.actors.simulation.handlers import Takes
from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.registration.crashes import MOST_CRASHES
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode

PATIENT = attrs.evolve(DEFAULT_CONFIG, intensity=RestartIntensity(1000))
ORDERS: tuple[tuple[Actor, ...], ...] = (
    ("registration", "reconciler"),
    ("reconciler", "registration"),
    ("registration", "reconciler", "registration"),
)


def crash_at(registration: RegistrationInbox) -> None:
    poison: Any = PoisonMessage()
    registration.send_nowait(poison)


def crash(node: SimulatedNode, actors: Sequence[Actor]) -> None:
    for actor in actors:
        assert node.crash(actor, "a.sock")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
@pytest.mark.parametrize("seconds", [3.0, 60.0], ids=["in time", "detached"])
async def test_a_register_under_way_is_followed_by_a_deregister(
    autojump_clock: MockClock, seconds: float, order: tuple[Actor, ...], seed: int
) -> None:
    """The handler takes longer than the grace, too, so that the registration is detached when it deregisters."""
    handler = FakeHandler().script("register", Takes(seconds))
    async with SimulatedNode(attrs.evolve(PATIENT, seed=seed), handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(1)
        assert node.state("a.sock") == "registering"
        crash(node, order)
        await trio.sleep(seconds + 60)
        assert handler.asked() == ["validate", "register", "deregister", "validate", "register"]
        assert node.state("a.sock") == "registered"


async def test_a_registration_that_crashes_while_it_is_detached_deregisters_before_its_successor_begins(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 20: the reconciler is long back, and another registration waits for the path."""
    handler = FakeHandler().script("register", Takes(60.0))
    async with SimulatedNode(PATIENT, handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(1)
        detached = node.supervisor.internals.registrations.current(node.path("a.sock"))
        assert detached is not None
        node.crash("reconciler")
        await trio.sleep(30)
        assert node.supervisor.internals.registrations.detached == {node.path("a.sock")}
        crash_at(detached)
        await trio.sleep(90)
        asked = handler.asked()
        assert asked[:2] == ["validate", "register"]
        assert asked[-3:] == ["deregister", "validate", "register"]
        assert node.state("a.sock") == "registered"


async def test_a_deregistration_that_crashes_each_time_is_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that each successor reaches makes no endless loop, and the next one has the path."""
    handler = FakeHandler()
    async with SimulatedNode(PATIENT, handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()

        def planted(*_: object) -> None:
            raise AssertionError("planted")

        crashes: list[str] = []
        node.supervisor.internals.crashes.watch(lambda name, _: crashes.append(name.partition(" ")[0]))
        with monkeypatch.context() as patched:
            patched.setattr(Served, "deregister", planted)
            crash(node, ORDERS[0])
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(crashes) == ["node", *["registration"] * (1 + MOST_CRASHES)]
        await trio.sleep(60)
        assert node.state("a.sock") == "registered"
