"""In what the managers differ, and which rule of docs/rules.md allows it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import trio

from plugind.tests.differential.acts import HANDLED, Act, Plugin, Script
from plugind.tests.differential.play import Played, play


@attrs.frozen
class Difference:
    """What differs for one plugin, or in what one process was told."""

    about: str
    #: The number of the act after which it was seen, from 1; 0 is the start, and None the end.
    after: int | None
    ours: Sequence[str]
    theirs: Sequence[str]
    #: The rule that allows it; None if none does.
    rule: str | None

    def __str__(self) -> str:
        when = "at the end" if self.after is None else f"after act {self.after}"
        lines = [f"{self.about}, {when}: {self.rule or 'no rule allows this'}"]
        lines += [
            f"    plugind: {', '.join(self.ours) or 'nothing'}",
            f"    kubelet: {', '.join(self.theirs) or 'nothing'}",
        ]
        return "\n".join(lines)


def differences(played: Played) -> list[Difference]:
    """Return all differences, allowed or not: in each step of a paced script, in the end of another one."""
    return list(_of_steps(played) if played.script.paced else _of_end(played))


def _of_steps(played: Played) -> Iterator[Difference]:
    facts = _Facts()
    for act in played.script.before:
        facts.add(act)
    #: What each side has done, and how much of it there was at the last difference, which was allowed by that rule.
    so_far: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    allowed: dict[str, tuple[int, int, str | None]] = {}
    for number, step in enumerate(played.steps):
        if step.act is not None:
            facts.add(step.act)
        for side, new in zip(so_far, (step.ours, step.theirs), strict=True):
            for about, done in new.items():
                side.setdefault(about, []).extend(done)
        for about in sorted(step.ours.keys() | step.theirs.keys()):
            ours, theirs = (list(side.get(about, ())) for side in so_far)
            first, second, rule = allowed.get(about, (0, 0, None))
            if ours != theirs and ours[first:] != theirs[second:]:
                rule = facts.rule(about, ours, theirs) or facts.rule(about, ours[first:], theirs[second:])
                allowed[about] = (len(ours), len(theirs), rule)
                yield Difference(about, number, ours, theirs, rule)


def _of_end(played: Played) -> Iterator[Difference]:
    """Compare both with what is there: who answers is registered, and nobody whose socket has gone."""
    facts = _Facts()
    for act in (*played.script.before, *played.script.acts):
        facts.add(act)
    there, answering = (
        {f"{plugin.name} at {path}" for path, plugin in found.items() if _is_accepted(plugin)}
        for found in (played.there, played.answering)
    )
    for about in sorted(there | played.held_by_ours | played.held_by_theirs):
        ours, theirs = (
            ["registered"] if about in held else [] for held in (played.held_by_ours, played.held_by_theirs)
        )
        right = [["registered"]] if about in answering else [["registered"], []] if about in there else [[]]
        if ours not in right:
            yield Difference(about, None, ours, theirs, None)
        elif theirs not in right:
            yield Difference(about, None, ours, theirs, facts.rule(about, ours, theirs))


def _is_accepted(plugin: Plugin) -> bool:
    return plugin.type == HANDLED and plugin.verdict == "accept"


async def compare_all(
    scripts: Iterable[Script],
    kubelet: str,
    report: Callable[[Script, list[Difference]], None],
    *,
    side_by_side: int = 30,
) -> None:
    """Play the scripts to plugind and to the program ``kubelet``; report the differences of each when it has ended."""
    limiter = trio.CapacityLimiter(side_by_side)

    async def compare(script: Script) -> None:
        try:
            report(script, differences(await play(script, kubelet)))
        finally:
            limiter.release_on_behalf_of(script)

    async with trio.open_nursery() as nursery:
        for script in scripts:
            await limiter.acquire_on_behalf_of(script)
            nursery.start_soon(compare, script)


@attrs.define
class _Facts:
    """What has happened at each path, as far as rules ask for it."""

    #: The paths at which the socket of each process was, by the number of the process.
    places: list[list[str]] = attrs.Factory(list)
    renamed: set[str] = attrs.Factory(set)
    #: Where each link leads.
    linked: dict[str, str] = attrs.Factory(dict)
    #: Directories that were removed.
    removed: set[str] = attrs.Factory(set)
    #: How many sockets there have been at each path.
    sockets: Counter[str] = attrs.Factory(Counter)
    #: The paths at which a process is frozen, and those at which the socket of one was removed.
    frozen: set[str] = attrs.Factory(set)
    removed_frozen: set[str] = attrs.Factory(set)

    def add(self, act: Act) -> None:
        match act.kind:
            case "start" | "replace":
                self.places.append([act.path])
                self.sockets[act.path] += 1
                if act.kind == "replace":
                    self.renamed.add(f"{act.path}.tmp")  # Where its socket was before it took its place.
            case "rename":
                self.renamed.add(act.path)
                for places in self.places:
                    if places[-1] == act.path:
                        places.append(act.to)
                self.sockets[act.to] += 1
            case "link":
                self.linked[act.path] = act.to
            case "remove":
                self.removed.add(act.path)
                self.removed_frozen |= {path for path in self.frozen if path.startswith(f"{act.path}/")}
            case "freeze":
                self.frozen.add(act.path)
            case "thaw":
                self.frozen.discard(act.path)
            case "unlink":
                self.removed_frozen |= {act.path} & self.frozen
            case _:
                pass

    def rule(self, about: str, ours: Sequence[str], theirs: Sequence[str]) -> str | None:
        """Return the rule that allows the difference."""
        kind, _, rest = about.partition(" ")
        places = self.places[int(rest)] if kind == "process" else [rest.removeprefix("at ")]
        path = places[0]
        if any(part.startswith(".") for part in os.path.dirname(path).split("/")) and not ours:
            return "behaviour 6"
        by_a_link = any(path == link or path.startswith(f"{link}/") for link in self.linked)
        if (by_a_link and not ours) or (kind == "process" and set(places) & set(self.linked.values())):
            return "behaviour 7"
        if path in self.renamed and (_without_end(ours) == _without_end(theirs) or _registered_alone(ours, theirs)):
            return "behaviour 4"
        if len(theirs) > len(ours) and _without_repetitions(theirs) == _without_repetitions(ours):
            return "behaviour 9"
        if self.sockets[path] > 1 and theirs == ours[: len(theirs)]:
            return "behaviour 24"
        if path in self.removed_frozen and theirs[: len(ours)] == ours and theirs[-1] in ("registered", "deregistered"):
            return "fault 38"
        if os.path.dirname(path) in self.removed and theirs == ours[: len(theirs)]:
            return "behaviour 11"
        return None


def _registered_alone(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether the kubelet registered the plugin, by its old path, and plugind never saw that path."""
    return not ours and bool(theirs) and theirs[0].startswith("registered")


def _without_end(done: Sequence[str]) -> Sequence[str]:
    return done[:-1] if done and done[-1] == "deregistered" else done


def _without_repetitions(done: Sequence[str]) -> Sequence[str]:
    """Return it with one registration in place of several in a row, whether the ones before were ended or not."""
    kept: list[str] = []
    for one in done:
        if kept[-2:] == [one, "deregistered"]:
            kept.pop()
        elif kept[-1:] != [one]:
            kept.append(one)
    return kept
