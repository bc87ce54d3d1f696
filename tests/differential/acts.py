"""Random sequences of what plugins and file systems do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

#: A type with a handler in both managers, and one without.
HANDLED, UNHANDLED = "GreenPlugin", "GreyPlugin"
PATHS = ("a.sock", "b.sock", "c.sock", "d/a.sock", "d/b.sock", "d/e/a.sock", ".a.sock", ".x/a.sock")
DIRECTORIES = ("d", "d/e", ".x")

Kind = Literal[
    "start",  # a process binds the path; a socket that is there is removed first
    "replace",  # a process binds another name, and renames its socket to the path
    "stop",  # the process removes its socket and ends
    "kill",  # SIGKILL ends the process; its socket stays
    "freeze",  # SIGSTOP stops the process
    "thaw",  # SIGCONT continues it
    "unlink",  # the socket is removed; the process lives
    "rename",
    "link",  # a symbolic link at the path leads to another name
    "touch",  # a regular file, or its end if there is one
    "make",  # a directory
    "remove",  # a directory with all that is in it; the processes live
]
Verdict = Literal["accept", "refuse validate", "refuse register"]


@attrs.frozen
class Plugin:
    """What a plugin says of itself, and what the handlers of both managers do with it."""

    name: str
    type: str = HANDLED
    versions: Sequence[str] = ("1.0.0",)
    verdict: Verdict = "accept"
    #: Seconds that the handler's register takes.
    seconds: float = 0.0


@attrs.frozen
class Act:
    """One thing that happens; one that is not possible, such as the end of a process that has ended, is left out."""

    kind: Kind
    path: str
    #: The new name of ``rename``, and where a ``link`` leads.
    to: str = ""
    plugin: Plugin | None = None
    #: Seconds after the act before it; not counted in a paced sequence.
    after: float = 0.0


@attrs.frozen
class Script:
    """A sequence: what is there before the managers start, and what happens from then on."""

    seed: int
    paced: bool
    before: tuple[Act, ...]
    acts: tuple[Act, ...]


def script(seed: int, length: int = 10) -> Script:
    """Return the sequence of ``seed``; even seeds are paced."""
    chance = random.Random(seed)
    drawn = _Drawn(chance)
    paced = seed % 2 == 0
    before = tuple(drawn.act(paced) for _ in range(chance.randrange(4)))
    return Script(seed, paced, before, tuple(drawn.act(paced) for _ in range(length)))


class _Drawn:
    """Draws acts that mostly are possible."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._plugins: list[Plugin] = []
        #: Paths at which there is a socket with a process, as far as no directory was removed.
        self._used: dict[str, Plugin] = {}
        self._frozen: set[str] = set()
        #: The path of the last act, if a process was started there.
        self._started: str | None = None

    def act(self, paced: bool) -> Act:
        act = next(iter(self._acts()))
        self._started = act.path if act.kind in ("start", "replace") else None
        return act if paced else attrs.evolve(act, after=self._chance.choice((0.0, 0.0, 0.01, 0.1, 0.3, 1.0)))

    def _acts(self) -> Iterator[Act]:
        chance = self._chance
        if self._started is not None and chance.random() < 0.15:
            # Both managers may be about to ask it.
            self._frozen.add(self._started)
            yield Act("freeze", self._started)
        if self._frozen and chance.random() < 0.5:
            path = min(self._frozen)
            self._frozen.remove(path)
            yield Act("thaw", path)
        kind: Kind = chance.choices(
            ("start", "replace", "stop", "kill", "freeze", "unlink", "rename", "link", "touch", "make", "remove"),
            (10, 2, 3, 3, 1, 2, 2, 1, 1, 1, 2),
        )[0]
        if kind in ("make", "remove"):
            yield Act(kind, chance.choice(DIRECTORIES))
        if kind in ("start", "replace"):
            path = chance.choice(PATHS)
            self._used[path] = plugin = self._plugin(path)
            yield Act(kind, path, plugin=plugin)
        if kind == "link":
            yield Act(kind, chance.choice(PATHS), to=chance.choice((*PATHS, *DIRECTORIES)))
        if kind == "touch" or not self._used:
            yield Act("touch", chance.choice(PATHS))
        path = chance.choice(sorted(self._used))
        if kind == "freeze":
            self._frozen.add(path)
            yield Act(kind, path)
        plugin = self._used.pop(path)
        self._frozen.discard(path)
        if kind == "rename":
            to = chance.choice(PATHS)
            self._used[to] = plugin
            yield Act(kind, path, to=to)
        yield Act(kind, path)

    def _plugin(self, path: str) -> Plugin:
        """Return the plugin that was at the path before, as after a restart, or a new one."""
        chance = self._chance
        if path in self._used and chance.random() < 0.5:
            return self._used[path]
        name = f"p{len(self._plugins)}.example.com"
        if self._plugins and chance.random() < 0.05:
            name = chance.choice(self._plugins).name
        verdict: Verdict = chance.choices(("accept", "refuse validate", "refuse register"), (8, 1, 1))[0]
        plugin = Plugin(
            name,
            chance.choices((HANDLED, UNHANDLED), (9, 1))[0],
            chance.choice((("1.0.0",), ("1.0.0", "2.0.0"), ())),
            verdict,
            chance.choice((0.0, 0.0, 0.0, 0.3)),
        )
        # The handlers know a plugin by its name.
        plugin = next((other for other in self._plugins if other.name == name), plugin)
        self._plugins.append(plugin)
        return plugin
