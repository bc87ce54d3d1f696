"""A try that ends in the instant in which its handler is to be called calls it no more.

A method with ``async def`` that never waits runs in a cancelled scope from its begin to its end. So each test lets the
actor go on only once its socket is gone, where a scheduler may let the two happen in either order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio
from trio.testing import MockClock

from plugind.testing import DEFAULT_CONFIG, FakeHandler, PluggedIn, SimulatedNode, Takes
from plugind.tests.actors.registration.suspensions import Suspensions, When
from plugind.tests.actors.registration.timelines import asks, red

#: What there is to be seen: the calls of the handler, and the states of the socket that is removed.
Seen = tuple[list[tuple[float, str]], list[tuple[float, str]]]
Scene = Callable[[SimulatedNode], Awaitable[PluggedIn]]


def seen(scene: Scene, handler: FakeHandler, suspensions: Suspensions) -> Seen:
    async def live() -> Seen:
        with suspensions.watching():
            async with SimulatedNode(
                attrs.evolve(DEFAULT_CONFIG, hung_after=None), handlers={"Colour": handler}
            ) as node:
                plugin = await scene(node)
                suspensions.disturbance = plugin.unlink
                await trio.sleep(100.0)
                return asks(handler), node.timeline(plugin.path)

    return trio.run(live, clock=MockClock(autojump_threshold=0))


def removed_in(function: str, scene: Scene, handler: Callable[[], FakeHandler] = FakeHandler) -> Seen:
    """Return what is seen if the socket is removed once what the actor waits for in ``function`` has come."""
    undisturbed = Suspensions()
    seen(scene, handler(), undisturbed)
    number = next(number for number, place in enumerate(undisturbed.places) if function in dict(place))
    return seen(scene, handler(), Suspensions(at=number, when=When.AFTER))


async def one_plugin(node: SimulatedNode) -> PluggedIn:
    return node.plug("a.sock", red())


def test_a_plugin_that_is_gone_when_its_claim_is_answered_is_not_validated() -> None:
    """Behaviour 36, fault 82."""
    assert removed_in("Tries._answer_to", one_plugin) == ([], [])


async def the_second_of_a_name(node: SimulatedNode) -> PluggedIn:
    """The reconciler crashes. The next one admits the plugin while the first is still deregistered, until 30.0."""
    first = node.plug("a.sock", red())
    await trio.sleep(1.0)
    node.crash("reconciler")
    await trio.sleep(1.0)
    first.unlink()
    return node.plug("b.sock", red())


def test_a_plugin_that_is_gone_when_its_turn_comes_is_not_validated() -> None:
    """Behaviours 21 and 36, fault 82."""
    slow = lambda: FakeHandler().script("deregister", Takes(29.0))  # noqa: E731
    asked, shown = removed_in("NameTurns.take", the_second_of_a_name, slow)
    assert asked == [(0.0, "validate"), (0.0, "register"), (1.0, "deregister")]
    assert shown == [(11.25, "validating"), (30.0, "gone")]
