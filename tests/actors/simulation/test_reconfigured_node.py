"""Whole runs of a simulated node whose settings change amid registrations, crashes and removals."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.plugins.info import InfoLimits
from plugind.protocol.plugins.status import StateName
from plugind.protocol.settings.config import Config, Root, Timeouts
from plugind.testing import DEFAULT_CONFIG, Fails, FakeHandler, FakePlugin, PluggedIn, SimulatedNode, Takes

PLUGINS = 12
ROOTS = ("/plugins", "/second", "/third")
#: Virtual seconds of a run.
RUN = 20.0


def config_of(rng: random.Random, before: Config) -> Config:
    """Return settings of which many let plugins fail."""
    return attrs.evolve(
        before,
        timeouts=Timeouts(
            dial=rng.choice((0.5, 10.0)),
            get_info=rng.choice((0.05, 0.3, 1.0)),
            notify=rng.choice((0.05, 0.3, 5.0)),
            handlers={"Colour": rng.choice((0.1, 1.0, 60.0))},
        ),
        backoff=Backoff(initial=rng.choice((0.05, 0.5, 2.0)), cap=4.0, jitter=rng.choice((0.0, 0.5))),
        stable_after=rng.choice((0.0, 0.5, 10.0)),
        max_instances=rng.choice((1, 2, 64)),
        info_limits=InfoLimits(max_versions=rng.choice((1, 128))),
    )


async def change_settings(node: SimulatedNode, rng: random.Random) -> None:
    while trio.current_time() < RUN:
        await node.reconfigure(config_of(rng, node.config))
        if rng.random() < 0.1:
            node.crash("reconciler")
        await trio.sleep(rng.choice((0.0, 0.05, 0.4, 2.0)))


async def disturb(plugins: list[PluggedIn], rng: random.Random) -> None:
    while trio.current_time() < RUN:
        plugin = rng.choice(plugins)
        plugin.crash()
        await trio.sleep(rng.choice((0.0, 0.1)))
        plugin.restart()
        await trio.sleep(rng.choice((0.1, 0.5, 1.5)))


def held(handler: FakeHandler) -> set[tuple[str, int]]:
    """Return the instances with more registers than deregisters, of which a crash may cause one more."""
    counts: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for ask, plugin in handler.plugins:
        counts[plugin.socket, plugin.generation][ask] += 1
    return {key for key, count in counts.items() if count["register"] > count["deregister"]}


@pytest.mark.parametrize("seed", range(2))
async def test_plugins_are_registered_whatever_was_changed_meanwhile_and_go_by_what_was_set_last(
    seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    handler = FakeHandler()
    for _ in range(200):
        behaviour = rng.choice((Takes(0.0), Takes(0.2), Takes(2.0), Fails("no")))
        handler.script(rng.choice(("validate", "register")), behaviour)
    first = attrs.evolve(DEFAULT_CONFIG, seed=seed, intensity=RestartIntensity(restarts=1000))
    async with SimulatedNode(first, handlers={"Colour": handler}) as node:
        # Two share each name, and may wait for room under it.
        fakes = [
            FakePlugin("Colour", f"{number // 2}", ("1", "2"), delay=rng.choice((0.0, 0.1, 0.4)))
            for number in range(PLUGINS)
        ]
        plugins = [node.plug(f"{number}.sock", fake) for number, fake in enumerate(fakes)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_settings, node, rng)
            nursery.start_soon(disturb, plugins, rng)
        handler.calm()
        last = attrs.evolve(first, timeouts=Timeouts(get_info=0.75), backoff=Backoff(initial=0.25, jitter=0.0))
        await node.reconfigure(last)
        await node.settled(patience=300.0)
        assert {status.state for status in node.statuses.values()} == {StateName.REGISTERED}
        assert held(handler) == {(status.socket, status.generation) for status in node.statuses.values()}
        await trio.sleep(20.0)
        assert {status.state for status in node.statuses.values()} == {StateName.REGISTERED}
        for plugin, fake in zip(plugins, fakes, strict=True):
            fake.hang = "get-info"
            plugin.restart()
        # Its actor begins after the last change.
        node.plug("late.sock", FakePlugin("Colour", "late", hang="get-info"))
        await trio.sleep(0.8)
        assert [status.cause for status in node.statuses.values()] == ["GetInfo failed: no answer in 0.75 s"] * (
            PLUGINS + 1
        )
        assert {round(status.next_try or 0.0, 6) for status in node.statuses.values()} == {round(node.now + 0.2, 6)}


async def change_roots(node: SimulatedNode, rng: random.Random) -> None:
    while trio.current_time() < RUN:
        others = rng.sample(ROOTS[1:], rng.randrange(len(ROOTS)))
        await node.reconfigure(attrs.evolve(config_of(rng, node.config), roots=(*map(Root, (ROOTS[0], *others)),)))
        for actor in ("reconciler", "watcher", "status"):
            if rng.random() < 0.1:
                node.crash(actor)
        await trio.sleep(rng.choice((0.0, 0.05, 0.4, 2.0)))


@pytest.mark.parametrize("seed", range(2))
async def test_the_plugins_of_the_roots_that_were_set_last_are_registered_and_no_others(
    seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(f"roots {seed}")
    handler = FakeHandler()
    for _ in range(100):
        handler.script(rng.choice(("validate", "register", "deregister")), rng.choice((Takes(0.0), Takes(0.3))))
    first = attrs.evolve(DEFAULT_CONFIG, seed=seed, intensity=RestartIntensity(restarts=1000))
    async with SimulatedNode(first, handlers={"Colour": handler}) as node:
        plugins = [
            node.plug(f"{ROOTS[number % len(ROOTS)]}/{number}.sock", FakePlugin("Colour", f"{number}", delay=0.05))
            for number in range(PLUGINS)
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_roots, node, rng)
            nursery.start_soon(disturb, plugins, rng)
        handler.calm()
        for roots in (ROOTS[:2], ROOTS[1:], ROOTS):
            await node.reconfigure(attrs.evolve(first, roots=(*map(Root, roots),)))
            await node.settled(patience=300.0)
            await trio.sleep(20.0)
            wanted = {plugin.path for plugin in plugins if plugin.path.rpartition("/")[0] in roots}
            assert {path: status.state for path, status in node.statuses.items()} == dict.fromkeys(
                wanted, StateName.REGISTERED
            )
            assert held(handler) == {(status.socket, status.generation) for status in node.statuses.values()}
            assert {report.root for report in (await node.snapshot()).roots} == set(roots)
            assert sorted(node.leftovers()) == sorted(f"{path} has an actor" for path in wanted)
