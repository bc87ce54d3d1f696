"""The benchmark of the start measures each command until it has done its work, and fails if one costs too much."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from plugind.benchmarks.start import EMPTY, WORDS, commands, measure
from plugind.tests.end_to_end.go_programs import peer
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def test_each_command_is_measured_in_each_turn() -> None:
    names = [EMPTY, *WORDS]
    with commands(Path(sys.executable), names) as asked:
        times = measure(asked, names, 1)
    assert {name: len(spent) for name, spent in times.items()} == dict.fromkeys(names, 1)
    # The daemon imports Trio, and the others do not.
    assert max(times, key=lambda name: min(times[name])) == "run"
    assert all(spent > 0 for each in times.values() for spent in each)


def test_daemons_are_measured_until_they_have_registered_what_was_there(tmp_path: Path) -> None:
    peer("kubelet-pm")
    command = [sys.executable, "-m", "plugind.benchmarks.start", "--daemon", "plugind", "kubelet", "--there", "0", "3"]
    done = finish([*command, "--turns", "1", "--json", str(tmp_path / "figures")], cwd=ROOT, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads((tmp_path / "figures").read_text())
    assert [(row["there"], row["daemon"]) for row in rows] == [
        (0, "plugind"),
        (0, "kubelet"),
        (3, "plugind"),
        (3, "kubelet"),
    ]
    assert all(min(row["cpu_ms"], row["wall_ms"]) > 0 for row in rows)
    assert len(done.stdout.splitlines()) == 3 + 2 + len(rows)
