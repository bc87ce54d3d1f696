"""The fault points of a simulated node: crashes of its actors, and the list of resources that it holds."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.testing import FakeHandler, FakePlugin, SimulatedNode


@pytest.mark.parametrize(
    ("actor", "of", "reported"),
    [
        ("watcher", "", "watcher /plugins"),
        ("reconciler", "", "node"),
        ("status", "", "status"),
        ("registration", "a.sock", "registration /plugins/a.sock"),
    ],
)
async def test_an_actor_that_crashes_is_started_again_and_the_plugin_stays_registered(
    autojump_clock: MockClock, actor: str, of: str, reported: str
) -> None:
    """Fault 85."""
    crashes: list[str] = []
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.supervisor.internals.crashes.watch(lambda name, _error: crashes.append(name))
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()
        assert node.crash(actor, of)  # type: ignore[arg-type]  # parametrized
        await trio.sleep(20.0)
        await node.settled()
        assert node.state("a.sock") == "registered"
        node.plug("b.sock", FakePlugin("Colour", "blue"))
        await node.settled()
        assert node.state("b.sock") == "registered"
    assert len(crashes) == 1
    assert crashes[0].startswith(reported)


async def test_an_actor_that_does_not_exist_is_an_error_that_lists_the_actors(autojump_clock: MockClock) -> None:
    async with SimulatedNode() as node:
        with pytest.raises(ValueError, match="'nosuchactor'; there are watcher, reconciler, registration"):
            node.crash("nosuchactor")  # type: ignore[arg-type]  # what a test without a type checker may write


async def test_resources_that_a_node_without_plugins_still_holds_are_listed(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()
        assert node.actors() == ["/plugins/a.sock"]
        assert node.leftovers() == ["/plugins/a.sock has an actor"]
        async with node.supervisor.watch():
            assert node.leftovers() == ["/plugins/a.sock has an actor", "2 readers of the stream of changes"]
        plugin.stop()
        await node.settled()
        assert (node.actors(), node.leftovers()) == ([], [])
