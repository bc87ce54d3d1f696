"""Debian's Slurm with three nodes on one machine; ``python -m tests.tools.slurm_nodes`` tries all cases.

The nodes are in namespaces of their own, so tests that run at the same time neither see them nor share their ports.
"""

from __future__ import annotations

import json
import sys

import pytest

from plugind.benchmarks.peers.slurm import namespaces
from plugind.benchmarks.peers.slurm.cgroups import can_confine
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, finish

pytestmark = pytest.mark.extended

TOOL = (sys.executable, "-P", "-m", "plugind.tests.tools.slurm_nodes", "-o", "json")


def needs_namespaces() -> None:
    """Skip the test where namespaces cannot be made."""
    if lacks := namespaces.lacking({"unshare": "util-linux", "setpriv": "util-linux"}):
        pytest.skip(lacks)


def tried(way: str, *cases: str) -> dict[str, object]:
    """Try some cases with Slurm; return what was judged in the end."""
    for name in ("slurmctld", "slurmd", "sbatch", "munged"):
        program(name)
    needs_namespaces()
    command = [*TOOL, "--way", way, "--within", str(2 * DEADLINE), "--only", *cases]
    done = finish(command, timeout=3 * DEADLINE)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["ways"]
    assert [case["case"] for case in result["cases"]] == list(cases)
    judged: dict[str, object] = result["judged"]
    return judged


def test_jobs_have_the_devices_that_slurm_chose_until_their_processes_have_ended() -> None:
    judged = tried("ids", "few_jobs", "two_types", "cancelled_amid_the_prolog", "nodes_lost")
    assert judged == {"way": "ids", "confined": can_confine(), "jobs": 7, "tasks": 9, "devices": 19}


def test_jobs_whose_devices_slurm_only_counts_have_so_many() -> None:
    judged = tried("count", "few_jobs", "components", "left_behind")
    assert judged == {"way": "count", "confined": False, "jobs": 6, "tasks": 8, "devices": 12}
