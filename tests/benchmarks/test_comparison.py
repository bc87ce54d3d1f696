"""What is made of measurements in turns: the order, the statistics, the table and the JSON."""

from __future__ import annotations

import json
from itertools import pairwise

import attrs
import pytest

from plugind.benchmarks.report.comparison import Comparison, Ratio, Run, Values, markdown, plan, summary
from plugind.tests.benchmarks.comparisons import BASE, THIS, comparison, run

pytestmark = pytest.mark.extended

CASES = ["storm 1000", "wire", "idle 0"]
SIDES = ["base", "this"]


def test_each_turn_has_each_case_once_on_each_side_with_the_sides_next_to_each_other() -> None:
    steps = list(plan(CASES, SIDES, 20, seed=3))
    for turn in range(20):
        own = [step for step in steps if step[0] == turn]
        assert sorted(own) == sorted((turn, case, side) for case in CASES for side in SIDES)
        assert all(own[at][1] == own[at + 1][1] for at in range(0, len(own), 2))
    assert [turn for turn, _, _ in steps] == sorted(turn for turn, _, _ in steps)


def test_the_order_is_random_and_follows_from_the_seed() -> None:
    steps = list(plan(CASES, SIDES, 20, seed=3))
    assert steps == list(plan(CASES, SIDES, 20, seed=3))
    assert steps != list(plan(CASES, SIDES, 20, seed=4))
    firsts = {(case, side) for _, case, side in steps[::2]}
    assert firsts == {(case, side) for case in CASES for side in SIDES}, "each side comes first at some time"
    assert any(one[1] != other[1] for one, other in pairwise(steps[::6])), "cases change their places"


def test_the_spread_is_the_distance_of_the_quartiles_in_medians() -> None:
    assert Values.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Values(3.0, 1.0, 2 / 3)
    assert Values.of([7.0]) == Values(7.0, 7.0, None)
    assert Values.of([0.0, 0.0]) == Values(0.0, 0.0, None)


def test_ratios_are_those_of_one_turn() -> None:
    """In the second turn the machine was busy, and the third one failed on one side."""
    assert Ratio.of({0: 1.0, 1: 10.0, 2: 3.0}, {0: 2.0, 1: 5.0}) == Ratio(2.0, 1.25, 0.875, 1.625)
    assert Ratio.of({4: 2.0}, {4: 1.0}) == Ratio(0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("base", "other"), [({0: 1.0}, {1: 1.0}), ({0: 0.0}, {0: 1.0}), ({}, {})], ids=["no turn", "nothing", "no run"]
)
def test_there_is_no_ratio_without_a_turn_or_to_nothing(base: dict[int, float], other: dict[int, float]) -> None:
    assert Ratio.of(base, other) is None


def test_the_table_has_a_line_for_each_figure_with_both_sides_and_ratios() -> None:
    found = comparison(
        run(0, BASE, {"CPU ms": 1.0, "wall s": 4.0}),
        run(0, THIS, {"CPU ms": 0.5}),
        run(1, THIS, {"CPU ms": 1.0}),
        run(1, BASE, {"CPU ms": 2.0, "wall s": 8.0}),
    )
    assert summary(found).splitlines() == [
        "In turns: medians, least values, spread",
        "base: /old, abc1234, plugind, Python 3.11.2",
        "this: /new, plugind, /new/bin/python",
        "3 turns, seed 7, load 1.5 to 1.5; a machine",
        "",
        "case        figure  base  least  spread %   this  least  spread %  ratio of least  of turns   from     to",
        "──────────  ──────  ────  ─────  ────────  ─────  ─────  ────────  ──────────────  ────────  ─────  ─────",
        "storm 1000  CPU ms  1.50   1.00      33.3  0.750  0.500      33.3           0.500     0.500  0.500  0.500",
        "storm 1000  wall s  6.00   4.00      33.3      -      -         -               -         -      -      -",
    ]


def test_a_failure_is_told_below_the_table() -> None:
    failed = Run(turn=1, case="wire", side="this", failed="it wrote no figures")
    text = summary(comparison(failed, cases=("wire",)))
    assert text.splitlines()[-2:] == ["nothing was measured", "wire, this, turn 1: it wrote no figures"]


def test_a_comparison_is_the_same_after_it_was_written_and_read() -> None:
    found = comparison(run(0, BASE, {"CPU ms": 1.0}), Run(turn=0, case="wire", side="this", rows=[{"client": "a"}]))
    again = Comparison.from_json(json.loads(json.dumps(found.to_json())))
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())
    assert summary(again) == summary(found)


@pytest.mark.parametrize("data", [[], {}, {"format": 0}])
def test_another_file_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="this is no comparison of format 1"):
        Comparison.from_json(data)  # type: ignore[arg-type]


def test_the_rows_of_one_benchmark_and_one_side_are_found() -> None:
    runs = [
        Run(turn=turn, case=case, side=side.name, rows=[{"is": f"{turn} {case} {side.name}"}])
        for turn in (0, 1)
        for case in ("storm 1", "storm 1000", "wire")
        for side in (BASE, THIS)
    ]
    found = comparison(*runs)
    assert [row["is"] for row in found.rows("storm", THIS)] == [
        "0 storm 1 this",
        "0 storm 1000 this",
        "1 storm 1 this",
        "1 storm 1000 this",
    ]


def test_a_page_shows_the_medians_that_both_have_bold_where_the_other_side_is_ahead() -> None:
    found = comparison(
        *[run(turn, BASE, {"CPU ms": cpu, "status ms": 1.0}) for turn, cpu in enumerate((1.0, 2.0, 9.0))],
        run(0, THIS, {"CPU ms": 1.5}),
        run(0, BASE, {"wall s": 1.0}, "idle 5"),
        run(0, THIS, {"wall s": 1.0}, "idle 5"),
        run(0, BASE, {"CPU ms": 1.0}, "storm 5"),
        run(0, THIS, {"CPU ms": 2.0}, "storm 5"),
        cases=("storm 1000", "idle 5", "storm 5"),
    )
    assert markdown(found).splitlines() == [
        "| case | figure | base | this |",
        "| --- | --- | --- | --- |",
        "| storm 1000 | CPU ms | 2.00 | **1.50** |",
        "| storm 5 | CPU ms | 1.00 | 2.00 |",
        "| idle 5 | wall s | 1.00 | 1.00 |",
        "",
        "base: /old, abc1234, plugind, Python 3.11.2",
        "this: /new, plugind, /new/bin/python",
        "3 turns, seed 7, load 1.5 to 1.5; a machine",
    ]


def test_sizes_that_were_measured_separately_are_shown_together() -> None:
    parts = [
        comparison(run(0, BASE, {"CPU ms": 1.0}), run(1, BASE, {"CPU ms": 3.0})),
        comparison(run(0, BASE, {"CPU ms": 5.0}), run(0, THIS, {}, "idle 5"), cases=("storm 1000", "idle 5")),
    ]
    found = Comparison.joined(parts)
    assert found.cases == ["storm 1000", "idle 5"]
    assert found.values("storm 1000", "CPU ms", BASE) == {0: 1.0, 1: 3.0, 2: 5.0}
    assert Comparison.joined(parts[:1]) == parts[0]


def test_files_that_do_not_compare_the_same_are_not_shown_together() -> None:
    other = attrs.evolve(comparison(), sides=[THIS, BASE])
    with pytest.raises(ValueError, match="do not compare the same sides"):
        Comparison.joined([comparison(), other])
