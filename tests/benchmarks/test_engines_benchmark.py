"""The benchmark of engines compares jobs with plugind's parts to jobs without."""

from __future__ import annotations

import json
import sys

import pytest

from plugind.benchmarks.engines import AT_ONCE, ROW
from plugind.benchmarks.peers.slurm import namespaces
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, finish

pytestmark = pytest.mark.extended


def test_it_measures_jobs_of_slurm() -> None:
    for name in ("slurmctld", "slurmd", "sbatch", "munged"):
        program(name)
    if lacks := namespaces.lacking():
        pytest.skip(lacks)
    small = ["--way", "count", "--row", "1", "--at-once", "2", "--rounds", "1", "--within", str(2 * DEADLINE)]
    command = [sys.executable, "-P", "-m", "plugind.benchmarks.engines", *small, "-o", "json"]
    done = finish(command, timeout=3 * DEADLINE)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["way"], row["load"], row["jobs"]) for row in rows] == [("count", ROW, 1), ("count", AT_ONCE, 2)]
    for row in rows:
        assert row["adds_ms"] == row["with_ms"] - row["without_ms"]
        assert row["ratio"] == row["with_ms"] / row["without_ms"]
