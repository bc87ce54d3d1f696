"""Comparisons for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

from plugind.benchmarks.report.comparison import Comparison, Run, Side

BASE = Side(name="base", tree="/old", python="/old/bin/python", version="3.11.2", revision="abc1234")
THIS = Side(name="this", tree="/new", python="/new/bin/python")


def run(turn: int, side: Side, figures: Mapping[str, float], case: str = "storm 1000") -> Run:
    return Run(turn=turn, case=case, side=side.name, figures=figures, load=1.5)


def comparison(*runs: Run, cases: tuple[str, ...] = ("storm 1000",)) -> Comparison:
    return Comparison(sides=[BASE, THIS], cases=list(cases), turns=3, seed=7, machine="a machine", runs=list(runs))
