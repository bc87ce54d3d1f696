"""``benchmarks.compare`` runs the benchmarks of each tree in turns, and shows, writes and draws their figures."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from plugind.benchmarks import compare
from plugind.benchmarks.compare import Bench, NoTreeError, bench_of, measure, sizes_of
from plugind.benchmarks.compare_cases import FULL, KINDS, QUICK, Case, cases
from plugind.benchmarks.report.comparison import Run
from plugind.benchmarks.report.storm_tables import from_rows, rows, summary
from plugind.benchmarks.report.table import Row
from plugind.tests.benchmarks.comparisons import BASE, THIS
from plugind.tests.benchmarks.storms import three_storms
from plugind.tests.end_to_end.go_programs import peer

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def figures(rows: Sequence[Row]) -> dict[str, float]:
    return {"words": float(len(rows))}


CASE = Case(name="wire", benchmark="wire", options=("--runs", "1"), figures=figures)


def test_a_tiny_storm_is_measured_in_two_trees_written_and_shown(tmp_path: Path) -> None:
    """Both trees are this one, once by the path of a link."""
    (tmp_path / "base").symlink_to(ROOT)
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.compare", "--base", str(tmp_path / "base")]
    command += ["--base-python", sys.executable, "--cases", "storm", "--sockets", "3", "--turns", "1", "--seed", "5"]
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "storm 3  CPU ms each" in done.stdout
    written = json.loads(file.read_text())
    assert [(one["turn"], one["case"]) for one in written["runs"]] == [(0, "storm 3")] * 2
    assert {one["side"] for one in written["runs"]} == {"base", "this"}
    for one in written["runs"]:
        assert min(one["figures"]["wall s"], one["cpu_s"], one["wall_s"]) > 0
        # The daemon's CPU time is counted in ticks of 10 ms, and three sockets may take less than one.
        assert one["figures"]["CPU ms each"] >= 0
    again = subprocess.run([*command[:3], "--from", str(file)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout


def test_plugind_and_the_kubelets_plugin_manager_are_compared_in_a_table_for_the_page(tmp_path: Path) -> None:
    peer("kubelet-pm")
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.compare"]
    chosen = ["--daemons", "plugind", "kubelet", "--quick", "--turns", "1", "--sockets", "3"]
    chosen += ["--cases", "storm", "existing", "latency", "idle", "--json", str(file)]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shown = subprocess.run(
        [*command, "--from", str(file), "--markdown"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
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


def test_what_a_benchmark_says_last_is_why_it_failed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho last words >&2\necho >&2\n")
    python.chmod(0o755)
    bench = Bench(attrs.evolve(THIS, tree=str(tmp_path), python=str(python)), "")
    assert bench.run(CASE, 0).failed == "last words"


def test_figures_count_even_if_the_benchmark_has_missed_a_limit(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor last; do :; done\necho "[{}, {}]" > $last\necho missed >&2\nexit 1\n')
    python.chmod(0o755)
    bench = Bench(attrs.evolve(THIS, tree=str(tmp_path), python=str(python)), "")
    found = bench.run(CASE, 4)
    assert (found.turn, found.figures, found.failed, len(found.rows)) == (4, {"words": 2.0}, "", 2)


def test_processes_of_a_tree_import_its_plugind_and_make_their_roots_where_they_should(tmp_path: Path) -> None:
    variables = Bench(THIS, "", tmp_path).variables()
    assert (variables["PYTHONPATH"], variables["PLUGIND_SCRATCH"]) == ("/new/.links", str(tmp_path))
    asked = (
        "from plugind.benchmarks.plugins.server_process import scratch_directory as s\nwith s() as d: print(d.parent)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", asked],
        env={**os.environ, "PLUGIND_SCRATCH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path}\n"


def test_a_directory_without_plugind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoTreeError, match="is no checkout of plugind"):
        bench_of("base", tmp_path, sys.executable, "plugind")
    (tmp_path / ".links" / "plugind").mkdir(parents=True)
    with pytest.raises(NoTreeError, match="imports plugind from None and not from"):
        bench_of("base", tmp_path, sys.executable, "plugind")
    with pytest.raises(NoTreeError, match="/no/python: No such file or directory"):
        bench_of("base", ROOT, "/no/python", "plugind")


def test_each_kind_has_cases_with_names_of_their_own() -> None:
    for sizes in (FULL, QUICK):
        found = list(cases(KINDS, sizes))
        assert len({case.name for case in found}) == len(found)
        assert {case.name.split()[0] for case in found} == set(KINDS)
        assert all(importlib.util.find_spec(f"plugind.benchmarks.{case.benchmark}") for case in found)


def test_the_daemon_is_named_only_if_it_is_not_the_usual_one() -> None:
    (storm,) = cases(["storm"], QUICK)
    assert storm.arguments("kubelet", "/env")[-2:] == ["--daemon", "kubelet"]
    assert storm.arguments("plugind", "/env") == list(storm.options)
    (start,) = cases(["start"], QUICK)
    assert start.arguments("plugind", "/env")[-2:] == ["--installed", "/env"]


def test_a_case_that_one_side_cannot_run_is_left_out() -> None:
    sides = [Bench(attrs.evolve(THIS, daemon=daemon), "") for daemon in ("plugind", "with-links")]
    wanted = list(cases(["storm", "idle", "wire"], QUICK))
    assert compare.left_out(wanted, sides) == {
        "storm 300": "storm 300 is left out: it does not start with-links",
        "wire": "wire is left out: it does not start with-links",
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--base", "/x", "--daemons", "plugind", "kubelet"], "choose one"),
        (["--base-python", "/x"], "--base-python needs --base"),
        (["--turns", "0"], "--turns must be at least 1"),
        (["--cases", "storms"], "invalid choice: 'storms'"),
        (["--plots", "/no/such"], "is no directory"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(line)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_numbers_of_plugins_can_be_chosen() -> None:
    sizes = sizes_of(compare.parse(["--quick", "--sockets", "5", "6"]))
    assert {sizes.storms, sizes.existing, sizes.latency, sizes.idle} == {(5, 6)}
    assert sizes.wire == QUICK.wire


def test_figures_are_named_as_the_table_shows_them() -> None:
    (storm,), (latency,), (idle,), (start,), (wire,) = (
        cases([kind], QUICK) for kind in ("storm", "latency", "idle", "start", "wire")
    )
    assert storm.figures([{"cpu_ms": 0.5, "last_notified_s": 2, "floors": None}]) == {"CPU ms each": 0.5, "wall s": 2}
    assert latency.figures([{"median_ms": 2.0, "min_ms": 1.0}]) == {"wall ms, median": 2.0, "wall ms, least": 1.0}
    assert idle.figures([{"cpu_percent": 0.1, "rss_mib": 40.0}]) == {"CPU % of a core": 0.1, "MiB": 40.0}
    commands = [{"command": "run", "empty_interpreters": 20.0, "cpu_ms": 200.0}]
    assert start.figures(commands) == {"run: CPU, empty interpreters": 20.0, "run: CPU ms": 200.0}
    client = {"client": "floor", "concurrency": 64, "cpu_ms": 0.04, "conversations_per_s": 2000.0}
    assert wire.figures([client]) == {"floor, 64 at once: CPU ms each": 0.04, "floor, 64 at once: wall ms each": 0.5}


def test_storms_are_the_same_after_they_were_written_and_read() -> None:
    outcome = three_storms()
    again = from_rows(json.loads(json.dumps([*rows(outcome), *rows(outcome)])))
    assert [len(runs) for runs in again.runs.values()] == [2, 2, 2]
    assert summary(from_rows(json.loads(json.dumps(rows(outcome))))) == summary(outcome)
