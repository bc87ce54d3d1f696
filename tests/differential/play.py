"""Plays a script to both managers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import trio

from plugind.tests.differential.acts import Act, Plugin, Script
from plugind.tests.differential.managers import Manager, ours, theirs
from plugind.tests.differential.programs import Programs
from plugind.tests.differential.world import World

#: Seconds without anything new after which a manager is quiet. The kubelet looks at its plugins once a second, and its
#: backoff doubles from half a second.
QUIET = 2.5
#: Seconds after which the next act comes although something new happens.
PATIENCE = 60.0
LOOK = 0.1


#: What was done with each name and what each process was told, after one act.
Seen = dict[str, list[str]]


@attrs.frozen
class Step:
    """An act, and what both sides did until they were quiet."""

    act: Act | None
    ours: Seen
    theirs: Seen


@attrs.frozen
class Played:
    """What happened in a script."""

    script: Script
    steps: Sequence[Step]
    #: The plugins that are registered at the end, as ``NAME at PATH``.
    held_by_ours: set[str]
    held_by_theirs: set[str]
    #: The plugin behind each path at the end: of all sockets, and of those that answer.
    there: dict[str, Plugin]
    answering: dict[str, Plugin]


class _Side:
    """A manager in its world, and how much of what they did was taken."""

    def __init__(self, manager: Manager, world: World) -> None:
        self.manager = manager
        self.world = world
        self._taken: dict[str, int] = {}

    def news(self) -> Seen:
        """Return what has happened since it was last taken."""
        everything = self.manager.done | self.world.verdicts
        news = {key: done[self._taken.get(key, 0) :] for key, done in everything.items()}
        return {key: done for key, done in news.items() if done}

    def take(self) -> Seen:
        """Return it, and take it."""
        news = self.news()
        for key, done in news.items():
            self._taken[key] = self._taken.get(key, 0) + len(done)
        return news


async def play(script: Script, kubelet: str) -> Played:
    """Play ``script`` to plugind and to the program ``kubelet``."""
    plugins = [act.plugin for act in (*script.before, *script.acts) if act.plugin is not None]
    steps: list[Step] = []
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="d"))
        programs = stack.enter_context(Programs())
        worlds = [World(Path(scratch, name), programs) for name in ("ours", "theirs")]
        for world in worlds:
            world.root.mkdir(0o755)
        for act in script.before:
            for world in worlds:
                world.perform(act)
        sides = [
            _Side(await stack.enter_async_context(ours(worlds[0].root, plugins)), worlds[0]),
            _Side(await stack.enter_async_context(theirs(kubelet, worlds[1].root, plugins)), worlds[1]),
        ]
        if script.paced:
            steps.append(await _quiet(None, sides))
        for act in script.acts:
            await trio.sleep(0 if script.paced else act.after)
            for world in worlds:
                world.perform(act)
            if script.paced:
                steps.append(await _quiet(act, sides))
        if not script.paced:
            steps.append(await _quiet(None, sides, QUIET * 2))
        ours_held, theirs_held = (side.manager.held() for side in sides)
        there, answering = (worlds[0].there(answering=only) for only in (False, True))
        return Played(script, steps, ours_held, theirs_held, there, answering)


async def _quiet(act: Act | None, sides: Sequence[_Side], seconds: float = QUIET) -> Step:
    """Wait until neither side does anything new for so many seconds, or three times as many if they differ.

    The looks are counted, and not the seconds: on a busy machine both sides and this process are late alike. Return
    what they did.
    """
    with trio.move_on_after(PATIENCE):
        seen, looks = [side.news() for side in sides], 0
        while looks * LOOK < seconds * (1 if seen[0] == seen[1] else 3):
            await trio.sleep(LOOK)
            looks = 0 if seen != (seen := [side.news() for side in sides]) else looks + 1
    return Step(act, *(side.take() for side in sides))
