"""Two sides that were measured in turns: medians, least values, spread and ratios; as tables and as JSON."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, Self

import attrs

from plugind.benchmarks.report.table import Cell, Row, figure, table

#: Of the JSON.
FORMAT = 1


@attrs.frozen(kw_only=True)
class Side:
    """What is compared: a checkout with its interpreter, and the daemon that it starts.

    ``made_of`` has the versions of what a daemon that is not in Python is built from.
    """

    name: str
    tree: str
    python: str
    daemon: str = "plugind"
    #: The version of the interpreter and the commit of the checkout, where they are known.
    version: str = ""
    revision: str = ""
    made_of: str = ""

    def __str__(self) -> str:
        python = f"Python {self.version}" if self.version else self.python
        parts = [self.tree, self.revision, self.daemon, self.made_of or python]
        return f"{self.name}: {', '.join(filter(None, parts))}"


@attrs.frozen(kw_only=True)
class Run:
    """One benchmark, run once on one side.

    ``figures`` are those that are compared, and ``rows`` is all that the benchmark has written. ``cpu_s`` and
    ``wall_s`` are those of the benchmark with all of its processes, and ``load`` is that of the machine. If the
    benchmark failed, ``failed`` says why, and there are no figures.
    """

    turn: int
    case: str
    side: str
    figures: Mapping[str, float] = attrs.field(factory=dict)
    rows: Sequence[Row] = ()
    cpu_s: float = 0.0
    wall_s: float = 0.0
    load: float = 0.0
    failed: str = ""


@attrs.frozen
class Values:
    """The runs of one figure on one side. ``spread`` is the distance of the quartiles, relative to the median."""

    median: float
    least: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return what at least one value has."""
        middle = median(values)
        if len(values) < 2 or not middle:
            return cls(middle, min(values), None)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, min(values), (high - low) / middle)


@attrs.frozen
class Ratio:
    """One side relative to the other one.

    ``least`` is the ratio of the least values. The others are the median and the quartiles of the ratios of each turn,
    in which both sides had about the same load.
    """

    least: float
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, base: Mapping[int, float], other: Mapping[int, float]) -> Self | None:
        """Return ``other`` relative to ``base``, by turns; None if they share no turn, or ``base`` has been 0."""
        if not base.keys() & other.keys() or not min(base.values()):
            return None
        ratios = [other[turn] / base[turn] for turn in base if turn in other]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return cls(min(other.values()) / min(base.values()), median(ratios), low, high)


@attrs.frozen(kw_only=True)
class Comparison:
    """All runs, and the conditions under which they were made. The first side is what the others are compared with."""

    sides: Sequence[Side]
    cases: Sequence[str]
    turns: int
    seed: int
    machine: str
    runs: Sequence[Run] = ()

    def values(self, case: str, name: str, side: Side) -> dict[int, float]:
        """Return one figure of one side, by turn."""
        return {
            run.turn: run.figures[name]
            for run in self.runs
            if (run.case, run.side) == (case, side.name) and name in run.figures
        }

    def names(self, case: str) -> list[str]:
        """Return the names of the figures of a case, in the order of the benchmark."""
        return [*dict.fromkeys(name for run in self.runs if run.case == case for name in run.figures)]

    def rows(self, benchmark: str, side: Side) -> list[Row]:
        """Return what one benchmark has written on one side, over all its cases."""
        return [
            row for run in self.runs if run.side == side.name and run.case.split()[0] == benchmark for row in run.rows
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as values for JSON."""
        return {"format": FORMAT, **attrs.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the comparison that :meth:`to_json` was made of.

        Raises:
          ValueError: if the data has another form.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"this is no comparison of format {FORMAT}")
        own = {key: value for key, value in data.items() if key != "format"}
        own["sides"] = [Side(**side) for side in own["sides"]]
        own["runs"] = [Run(**run) for run in own["runs"]]
        return cls(**own)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return one comparison with all cases and runs of several.

        Raises:
          ValueError: if they do not compare the same.
        """
        first = parts[0]
        if any(part.sides != first.sides for part in parts):
            raise ValueError("these files do not compare the same sides")
        runs: list[Run] = []
        for part in parts:
            later = 1 + max((run.turn for run in runs), default=-1)
            runs += [attrs.evolve(run, turn=run.turn + later) for run in part.runs]
        cases = [*dict.fromkeys(case for part in parts for case in part.cases)]
        machines = "; ".join(dict.fromkeys(part.machine for part in parts))
        return attrs.evolve(first, cases=cases, machine=machines, runs=runs)


def plan(cases: Sequence[str], sides: Sequence[str], turns: int, seed: int) -> Iterator[tuple[int, str, str]]:
    """Yield turn, case and side of each run: in each turn all cases in random order, with the sides next to each other.

    Runs that are next to each other have about the same load. Which side is the first one is random, too.
    """
    chance = random.Random(seed)
    for turn in range(turns):
        for case in chance.sample(cases, len(cases)):
            for side in chance.sample(sides, len(sides)):
                yield turn, case, side


def summary(found: Comparison) -> str:
    """Return the table and what it was made of, as text."""
    lines = [_line(found, case, name) for case in found.cases for name in found.names(case)]
    head = ["case", "figure"]
    for side in found.sides:
        head += [side.name, "least", "spread %"]
    for side in found.sides[1:]:
        # The name is needed where there are several, and the columns are those of one side otherwise.
        of = f"{side.name} " if len(found.sides) > 2 else ""
        head += [f"{of}ratio of least", f"{of}of turns", "from", "to"]
    body = [table(head, lines)] if lines else ["nothing was measured"]
    title = "In turns: medians, least values, spread"
    return "\n".join([title, *map(str, found.sides), _about(found), "", *body, *_failures(found)])


def _about(found: Comparison) -> str:
    loads = [run.load for run in found.runs]
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return f"{found.turns} turns, seed {found.seed}{load}; {found.machine}"


def _failures(found: Comparison) -> list[str]:
    return [f"{run.case}, {run.side}, turn {run.turn}: {run.failed}" for run in found.runs if run.failed]


def markdown(found: Comparison) -> str:
    """Return a table of the medians for a page: what all sides have, bold where another one is ahead of the first."""
    kinds = [*dict.fromkeys(case.split()[0] for case in found.cases)]
    lines = [["case", "figure", *(side.name for side in found.sides)], ["---"] * (2 + len(found.sides))]
    for case in sorted(found.cases, key=lambda case: kinds.index(case.split()[0])):
        for name in found.names(case):
            values = [median(of) for side in found.sides if (of := found.values(case, name, side).values())]
            if len(values) == len(found.sides):
                lines.append([case, name, *_ahead(values)])
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*rows, "", *map(str, found.sides), _about(found), *_failures(found)])


def _ahead(values: Sequence[float]) -> Iterator[str]:
    yield figure(values[0])
    for value in values[1:]:
        yield f"**{figure(value)}**" if value < values[0] else figure(value)


def _line(found: Comparison, case: str, name: str) -> list[Cell]:
    line: list[Cell] = [case, name]
    by_side = [found.values(case, name, side) for side in found.sides]
    for values in by_side:
        line += _cells(values)
    for values in by_side[1:]:
        ratio = Ratio.of(by_side[0], values)
        line += [ratio.least, ratio.median, ratio.low, ratio.high] if ratio else [None] * 4
    return line


def _cells(values: Mapping[int, float]) -> list[Cell]:
    if not values:
        return [None, None, None]
    shown = Values.of(list(values.values()))
    return [shown.median, shown.least, None if shown.spread is None else shown.spread * 100]
