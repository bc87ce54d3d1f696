"""The benchmark of engines compares jobs with plugind's parts to jobs without."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest

from plugind.benchmarks.engines import AT_ONCE, ROW, Turn, added, added_table
from plugind.benchmarks.peers.slurm import namespaces
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE

pytestmark = pytest.mark.extended


def test_what_the_parts_add_is_the_difference_of_the_medians_of_all_turns() -> None:
    turns = [
        Turn("ids", ROW, parts=False, jobs=2, ms=(100.0, 300.0)),
        Turn("ids", AT_ONCE, parts=False, jobs=20, ms=(40.0,)),
        Turn("ids", ROW, parts=True, jobs=2, ms=(900.0, 450.0)),
        Turn("ids", AT_ONCE, parts=True, jobs=20, ms=(100.0,)),
        Turn("ids", ROW, parts=False, jobs=1, ms=(200.0,)),
        Turn("ids", ROW, parts=True, jobs=1, ms=(500.0,)),
    ]
    found = [attrs.asdict(result) for result in added(turns)]
    for row in found:
        assert row.pop("machine_load") >= 0
    assert found == [
        {"way": "ids", "load": ROW, "jobs": 3, "without_ms": 200, "with_ms": 500, "adds_ms": 300, "ratio": 2.5},
        {"way": "ids", "load": AT_ONCE, "jobs": 20, "without_ms": 40, "with_ms": 100, "adds_ms": 60, "ratio": 2.5},
    ]
    assert added_table(added(turns)).splitlines()[2].split() == [
        "ids",
        "in",
        "a",
        "row",
        "3",
        "200",
        "500",
        "300",
        "2.50",
    ]


def test_it_measures_jobs_of_slurm() -> None:
    for name in ("slurmctld", "slurmd", "sbatch", "munged"):
        program(name)
    if lacks := namespaces.lacking():
        pytest.skip(lacks)
    small = ["--way", "count", "--row", "1", "--at-once", "2", "--rounds", "1", "--within", str(2 * DEADLINE)]
    command = [sys.executable, "-P", "-m", "plugind.benchmarks.engines", *small, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["way"], row["load"], row["jobs"]) for row in rows] == [("count", ROW, 1), ("count", AT_ONCE, 2)]
    for row in rows:
        assert row["adds_ms"] == row["with_ms"] - row["without_ms"]
        assert row["ratio"] == row["with_ms"] / row["without_ms"]
