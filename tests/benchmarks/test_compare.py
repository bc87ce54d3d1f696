"""``benchmarks.compare`` runs the benchmarks of each tree in turns, and shows, writes and draws their figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from plugind.benchmarks.compare import Bench, measure
from plugind.benchmarks.compare_cases import Case
from plugind.benchmarks.report.comparison import Run, Side
from plugind.benchmarks.report.table import Row
from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


BASE = Side(name="base", tree="/old", python="/old/bin/python", version="3.11.2", revision="abc1234")
THIS = Side(name="this", tree="/new", python="/new/bin/python")


def figures(rows: Sequence[Row]) -> dict[str, float]:
    return {"words": float(len(rows))}


CASE = Case(name="wire", benchmark="wire", options=("--runs", "1"), figures=figures)


def test_a_tiny_storm_is_measured_in_two_trees_written_and_shown(tmp_path: Path) -> None:
    """Both trees are this one, once by the path of a link."""
    (tmp_path / "base").symlink_to(ROOT)
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.compare", "--base", str(tmp_path / "base")]
    command += ["--base-python", sys.executable, "--cases", "storm", "--sockets", "3", "--turns", "1", "--seed", "5"]
    done = finish([*command, "--json", str(file)], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "storm 3  CPU ms each" in done.stdout
    written = json.loads(file.read_text())
    assert [(one["turn"], one["case"]) for one in written["runs"]] == [(0, "storm 3")] * 2
    assert {one["side"] for one in written["runs"]} == {"base", "this"}
    for one in written["runs"]:
        assert min(one["figures"]["wall s"], one["cpu_s"], one["wall_s"]) > 0
        # The daemon's CPU time is counted in ticks of 10 ms, and three sockets may take less than one.
        assert one["figures"]["CPU ms each"] >= 0
    again = finish([*command[:3], "--from", str(file)], cwd=ROOT, check=True)
    assert again.stdout == done.stdout


def test_plugind_and_the_kubelets_plugin_manager_are_compared_in_a_table_for_the_page(tmp_path: Path) -> None:
    peer("kubelet-pm")
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.compare"]
    chosen = ["--daemons", "plugind", "kubelet", "--quick", "--turns", "1", "--sockets", "3"]
    chosen += ["--cases", "storm", "existing", "latency", "idle", "--json", str(file)]
    done = finish([*command, *chosen], cwd=ROOT, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    shown = finish([*command, "--from", str(file), "--markdown"], cwd=ROOT, check=True).stdout
    assert re.search("^kubelet: .*, Kubernetes v1.*, go1", shown, re.MULTILINE)
    rows = [line.split(" | ")[:2] for line in shown.splitlines() if line.startswith("| ")]
    figures = {
        "storm": {"CPU ms each", "wall s", "removal wall s", "removal CPU ms each", "peak MiB"},
        "existing": {"CPU ms each", "wall s", "peak MiB"},
        "latency": {"CPU ms each", "wall ms, median"},
        "idle": {"CPU % of a core", "MiB"},
    }
    for kind, names in figures.items():
        assert names <= {name for case, name in rows if case == f"| {kind} 3"}


def test_a_benchmark_that_fails_is_named_and_not_run_again_on_that_side(tmp_path: Path) -> None:
    tried: list[Run] = []
    sides = [Bench(attrs.evolve(side, tree=str(tmp_path), python="/bin/false"), "") for side in (BASE, THIS)]
    runs = list(measure(sides, [CASE], 3, 1, tried.append))
    assert [(one.case, one.failed) for one in runs] == [("wire", "it wrote no figures")] * 2
    assert {one.side for one in runs} == {"base", "this"}
    assert tried == runs
