"""Random scripts of plugins, files and handlers on a node in memory, against what must always hold."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.handlers import Ask, Behaviour
from plugind.actors.simulation.plugins import Step
from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.plugins import InstancePolicy
from plugind.testing import (
    DEFAULT_CONFIG,
    Accepting,
    Fails,
    FakeHandler,
    FakePlugin,
    Hangs,
    PluggedIn,
    SimulatedNode,
    Takes,
)

NAMES = ("red", "green", "blue")
SOCKETS = tuple(f"{letter}.sock" for letter in "abcdef")
STEPS: tuple[Step | None, ...] = (None, None, "get-info", "notify")
ASKS: tuple[Ask, ...] = ("validate", "register", "deregister")


class Script:
    """One random script; everything that it does follows from its seed."""

    def __init__(self, seed: int, policy: InstancePolicy) -> None:
        self.chance = random.Random(seed)
        # One crash of an actor ends it: there is to be none.
        self.config = attrs.evolve(
            DEFAULT_CONFIG, seed=seed, backoff=Backoff(jitter=0.1), intensity=RestartIntensity(restarts=0)
        )
        self.policy = policy
        self.handlers = [FakeHandler(instances=policy)]
        self.node = SimulatedNode(self.config, handlers={"Colour": self.handlers[0]})
        self.plugins: dict[str, PluggedIn] = {}
        self.has_handler = True

    async def run(self, events: int) -> None:
        async with self.node:
            for _ in range(events):
                await self.act()
                await trio.sleep(self.chance.choice((0.0, 0.0, 0.01, 0.1, 1.0, 7.0)))
            await self.calm_down()
            self.check()

    async def act(self) -> None:
        chance, socket = self.chance, self.chance.choice(SOCKETS)
        plugin = self.plugins.get(socket)
        what = chance.randrange(20)
        if plugin is None:
            self.plugins[socket] = self.node.plug(socket, self.fake(), listening=chance.random() < 0.8)
        elif what < 3:
            plugin.stop()
            del self.plugins[socket]
        elif what < 6:
            plugin.plugin = self.fake()
            plugin.restart()
        elif what < 8:
            plugin.crash()
        elif what < 9:
            plugin.listen()
        elif what < 10:
            plugin.reset()
        elif what < 11:
            plugin.accepting = chance.choice(list(Accepting))
        elif what < 12:
            self.node.directory.chmod(plugin.path)
        elif what < 14:
            self.handlers[-1].script(chance.choice(ASKS), self.behaviour(), times=chance.randrange(1, 3))
        elif what < 15:
            await self.node.supervisor.retry(chance.choice(NAMES))
        elif what < 16:
            await self.toggle_handler()
        elif what < 17:
            if self.node.directory.dropping_events:
                self.node.directory.resume_events()
            else:
                self.node.directory.drop_events()
        elif what < 18:
            self.node.directory.overflow()
        elif what < 19 and chance.random() < 0.3:
            await self.restart_daemon()

    def fake(self) -> FakePlugin:
        chance = self.chance
        return FakePlugin(
            "Colour",
            chance.choice(NAMES),
            [f"1.{chance.randrange(9)}.0"],
            get_info_fails=chance.choice((0, 0, 1, 3)),
            notify_fails=chance.choice((0, 0, 1, 9)),
            hang=chance.choice(STEPS),
            die=chance.choice(STEPS),
            delay=chance.choice((0.0, 0.0, 0.3, 2.0)),
        )

    def behaviour(self) -> Behaviour:
        return self.chance.choice((Fails("no"), Hangs(), Takes(0.1), Takes(3.0)))

    async def toggle_handler(self) -> None:
        if self.has_handler:
            with trio.move_on_after(1000.0) as scope:
                await self.node.supervisor.remove_handler("Colour")
            assert not scope.cancelled_caught, "a handler was not removed in time"
            assert not self.handlers[-1].registered
        else:
            self.handlers.append(FakeHandler(instances=self.policy))
            await self.node.supervisor.add_handler("Colour", self.handlers[-1])
        self.has_handler = not self.has_handler

    async def restart_daemon(self) -> None:
        await (self.node.kill() if self.chance.random() < 0.5 else self.node.stop())
        self.handlers.append(FakeHandler(instances=self.policy))
        await self.node.start(handlers={"Colour": self.handlers[-1]})
        self.has_handler = True

    async def calm_down(self) -> None:
        """The faults stop; every plugin is well, and the node gets the time that its longest backoff may take."""
        if not self.has_handler:
            await self.toggle_handler()
        self.node.directory.resume_events()
        self.handlers[-1].calm()
        for plugin in self.plugins.values():
            assert isinstance(plugin.plugin, FakePlugin)
            plugin.plugin = FakePlugin("Colour", plugin.plugin.name, plugin.plugin.versions)
            plugin.accepting = Accepting.SERVES
            if not plugin.alive:
                plugin.listen()
        await trio.sleep(1000.0)
        await self.node.settled(patience=0.0)

    def check(self) -> None:
        for handler in self.handlers:
            lives: defaultdict[tuple[str, int], list[list[Ask]]] = defaultdict(list)
            for ask, plugin in handler.plugins:
                tries = lives[plugin.socket, plugin.generation]
                if ask == "validate":
                    tries.append([])
                tries[-1].append(ask)
            for tries in lives.values():
                for asks in tries:
                    assert asks == list(ASKS[: len(asks)]), (handler.plugins, tries)
                # Only the last try may still be registered, or have been cut off by the end of the daemon.
                assert all(asks != ["validate", "register"] for asks in tries[:-1]), tries
        there = {plugin.path: plugin for plugin in self.plugins.values()}
        registered = self.handlers[-1].registered
        shown = {path for path in there if self.node.state(path) == "registered"}
        assert shown == registered.keys()
        if self.policy is InstancePolicy.REJECT:
            names = [plugin.name for plugin in registered.values()]
            wanted = {plugin.plugin.name for plugin in there.values() if isinstance(plugin.plugin, FakePlugin)}
            assert sorted(names) == sorted(wanted)
        else:
            assert shown == there.keys()


def play(seed: int, policy: InstancePolicy, events: int) -> None:
    trio.run(partial(Script(seed, policy).run, events), clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("seed", "policy"), list(enumerate(InstancePolicy)))
def test_whatever_happens_what_is_registered_is_what_is_there_in_the_end(seed: int, policy: InstancePolicy) -> None:
    """Per try Validate, Register, Deregister in order; no actor crashes; nothing leaks; the view tells the truth."""
    play(seed, policy, 60)
