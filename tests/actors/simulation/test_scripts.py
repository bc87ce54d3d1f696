"""Random lives of plugins against a handler: what they find, and how they are repeated."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind import Plugin, PluginError
from plugind.actors.handlers.link import Link
from plugind.actors.simulation.scripts import PluginLives
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode, play

PLUGINS = [FakePlugin("Colour", "red"), FakePlugin("Colour", "green"), FakePlugin("Colour", "old", ["0.1.0"])]


class Names:
    """A handler with a planted bug: it forgets a name when the first of two plugins of that name goes."""

    follow = None

    def __init__(self) -> None:
        self.known = set[str]()

    def validate(self, plugin: Plugin) -> None:
        if "1.0.0" not in plugin.versions:
            raise PluginError("version 1.0.0 is required")

    async def register(self, plugin: Plugin) -> None:
        self.known.add(plugin.name)

    async def deregister(self, plugin: Plugin) -> None:
        self.known.discard(plugin.name)


@attrs.define
class Followed:
    """A handler without that bug, which follows its plugins and uses links."""

    known: dict[tuple[str, int], str] = attrs.field(factory=dict)
    follows: list[str] = attrs.field(factory=list)

    async def validate(self, plugin: Plugin) -> None:
        if "1.0.0" not in plugin.versions:
            raise PluginError("version 1.0.0 is required")

    async def register(self, plugin: Plugin, link: Link) -> None:
        assert link.plugin == plugin
        self.known[plugin.socket, plugin.generation] = plugin.name

    async def follow(self, plugin: Plugin, link: Link) -> None:
        assert link.plugin == plugin
        self.follows.append(plugin.name)
        try:
            await trio.sleep_forever()
        finally:
            self.follows.remove(plugin.name)

    def deregister(self, plugin: Plugin) -> None:
        self.known.pop((plugin.socket, plugin.generation), None)


def knows_its_names(handler: Names, plugins: Sequence[Plugin]) -> None:
    assert handler.known == {plugin.name for plugin in plugins}


def has_its_plugins(handler: Followed, plugins: Sequence[Plugin]) -> None:
    assert handler.known == {(plugin.socket, plugin.generation): plugin.name for plugin in plugins}
    assert sorted(handler.follows) == sorted(plugin.name for plugin in plugins)
    assert "old" not in handler.known.values()


def failure(seed: int, acts: int = 40) -> AssertionError:
    with pytest.raises(AssertionError) as caught:
        play(Names, PLUGINS, invariant=knows_its_names, seed=seed, acts=acts)
    return caught.value


@pytest.mark.parametrize("seed", range(6))
def test_a_handler_without_errors_passes_with_any_seed(seed: int) -> None:
    most = 0

    def check(handler: Followed, plugins: Sequence[Plugin]) -> None:
        nonlocal most
        most = max(most, len(plugins))
        has_its_plugins(handler, plugins)

    play(Followed, PLUGINS, invariant=check, seed=seed)
    assert most >= 2


def test_a_planted_bug_is_found_and_its_note_repeats_it() -> None:
    """The last note names the seed and the acts, which give the same acts and the same error."""
    acts, repeat = failure(seed=0).__notes__
    found = re.fullmatch(r"Repeat them with play\(\.\.\., seed=0, acts=(\d+)\)\.", repeat)
    assert found is not None
    assert failure(seed=0, acts=int(found[1])).__notes__ == [acts, repeat]
    assert acts.splitlines()[0] == "The acts of seed 0:"
    assert re.fullmatch(r"  [\d.]+ s: .*", acts.splitlines()[-1])


def test_a_call_of_pytest_fail_gets_the_notes_too() -> None:
    def fail(_: Names, __: Sequence[Plugin]) -> None:
        pytest.fail("as planned")

    with pytest.raises(pytest.fail.Exception, match="as planned") as caught:
        play(Names, PLUGINS, invariant=fail, seed=0)
    assert caught.value.__notes__[-1].startswith("Repeat them with play(..., seed=0, acts=")


def test_an_error_of_the_handler_is_raised_whatever_the_invariant_says() -> None:
    class Broken(Names):
        async def deregister(self, plugin: Plugin) -> None:
            raise KeyError(plugin.name)

    with pytest.raises(KeyError) as caught:
        play(Broken, PLUGINS, invariant=lambda _, __: None, seed=0)
    assert caught.traceback[-1].name == "deregister"
    assert caught.value.__notes__[-1].startswith("Repeat them with play(..., seed=0, acts=")


async def test_every_kind_of_act_is_played(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        lives = PluginLives(node, PLUGINS, random.Random(0))
        for _ in range(200):
            await lives.act()
        lives.recover()
        await node.settled()
        there = {socket for socket, (_, plugin) in lives.plugged.items() if plugin.name != "old"}
        assert there <= {socket for socket in lives.plugged if node.state(socket) == "registered"}
    played = "\n".join(lives.acts)
    for words in ("appears", "pass", "removes", "killed", "restarts\n", "two calls", "each", "hangs", "suspended"):
        assert words in played


def test_what_cannot_be_played_is_refused() -> None:
    async def never_run(_: Names, __: Sequence[Plugin]) -> None:
        raise NotImplementedError

    with pytest.raises(TypeError, match="write it with def"):
        play(Names, PLUGINS, invariant=never_run, seed=0)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="at least one FakePlugin"):
        play(Names, [], invariant=knows_its_names, seed=0)
    with pytest.raises(TypeError, match=r"Colour cannot be used: object.validate is missing"):
        play(object, PLUGINS, invariant=knows_its_names, seed=0)  # type: ignore[misc]  # on purpose
