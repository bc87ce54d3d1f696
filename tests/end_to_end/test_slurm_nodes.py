"""Debian's Slurm with three nodes on one machine; ``python -m tests.tools.slurm_nodes`` tries all cases.

The nodes are in namespaces of their own, so tests that run at the same time neither see them nor share their ports.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plugind.benchmarks.peers.slurm import namespaces
from plugind.benchmarks.peers.slurm.cgroups import can_confine
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE

pytestmark = pytest.mark.extended

TOOL = (sys.executable, "-P", "-m", "plugind.tests.tools.slurm_nodes", "-o", "json")
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}
ORPHANS = (
    "import sys; from plugind.benchmarks.peers.slurm.namespaces import run_isolated;"
    " sys.exit(run_isolated('plugind.tests.end_to_end.slurm_orphans', sys.argv[1:3], float(sys.argv[3])))"
)


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * DEADLINE, check=False)
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


def with_name(name: str) -> list[str]:
    """Return the processes of this machine whose arguments have this name, but for those of the test."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.encode() in line and b"sleep 600" in line:
            lines.append(line.decode())
    return lines


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["it ends", "its deadline", *SIGNALS])
def test_no_process_outlives_the_one_that_has_made_its_namespaces(tmp_path: Path, how: str) -> None:
    needs_namespaces()
    name = str(tmp_path)
    seconds, within = ("0", "600") if how == "it ends" else ("600", "10" if how == "its deadline" else "600")
    command = [sys.executable, "-P", "-c", ORPHANS, name, seconds, within]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "both run\n"
            if how in SIGNALS:
                wait_for(lambda: len(with_name(name)) == 2)
                process.send_signal(SIGNALS[how])
            code = process.wait(DEADLINE)
        finally:
            process.kill()
    assert (
        code == {"it ends": 7, "its deadline": namespaces.TOO_LONG, "interrupt": 130, "terminate": 143, "kill": -9}[how]
    )
    if how == "kill":
        # Whoever is killed cannot wait until the others have ended.
        wait_for(lambda: not with_name(name))
    assert with_name(name) == []


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "PATH", "/nowhere")
    said = namespaces.lacking({"slurmd": "slurmd", "munged": "munge"})
    assert said == "the Debian packages munge, slurmd are not installed"
