"""The benchmark of good plugins beside hostile ones measures what it reports, and each limit gets its verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugind.benchmarks.hostile import peers_of
from plugind.benchmarks.hostile_run import HostileRun
from plugind.benchmarks.report.hostile_tables import Pair, verdicts
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def run_of(kind: str = "silent", **changes: Any) -> HostileRun:
    run = HostileRun(kind=kind, peers=128, dialed=True, plugins=400, p50_ms=2.0, p99_ms=10.0, max_ms=12.0)
    run.rss_kib, run.peak_kib, run.cpu_s, run.cpu_percent, run.stop_s, run.lasted_s = 45_000, 46_000, 2.0, 5.0, 0.1, 8.0
    for name, changed in changes.items():
        setattr(run, name, changed)
    return run


def missed(pairs: Mapping[str, Pair]) -> list[str]:
    return [verdict.limit for verdict in verdicts(pairs) if not verdict.kept]


@pytest.mark.parametrize(
    ("kind", "changes", "limit"),
    [
        ("closing", {"lost": 1}, "good plugins lost, refused or notified twice"),
        ("closing", {"refused": 1}, "good plugins lost, refused or notified twice"),
        ("closing", {"notified_twice": 1}, "good plugins lost, refused or notified twice"),
        ("many-versions", {"stop_s": 11.1}, "SIGTERM"),
        ("many-versions", {"stop_s": None}, "SIGTERM"),
        ("tiny-data", {"p99_ms": 35.1}, "p99 of the good ones"),
        ("big-info", {"peers": 1000, "rss_kib": 45_000 + 24_100}, "memory of a hostile socket"),
        ("chmod", {"dials": 11}, "dials of one socket"),
        ("crash-loop", {"notified": 7}, "registrations of one socket"),
        ("many-nodes", {"peers": peers_of("many-nodes", None), "healthz_p95_ms": 100.1}, "p95 of /healthz"),
        ("silent", {"peers": 5000, "max_ms": 100.1}, "the slowest newcomer after the burst"),
        ("full-backlog", {"peers": 5000, "max_ms": 100.1}, "the slowest newcomer after the burst"),
    ],
)
def test_each_limit_can_be_missed(kind: str, changes: dict[str, Any], limit: str) -> None:
    assert missed({kind: Pair(run_of(kind, **changes), run_of(kind, dialed=False))}) == [limit]


def test_the_command_compares_runs_and_writes_rows(tmp_path: Path) -> None:
    """However busy the machine is, the daemon meets the hostile plugins, and good ones appear beside them."""
    out = tmp_path / "rows.json"
    options = ["--kind", "closing", "--peers", "2", "--good", "40", "--rate", "20", "--seconds", "0.4", "--settle", "0"]
    options.append("--no-pin")  # Pinned, the hostile plugins get only what other programs leave of a core.
    line = [sys.executable, "-m", "benchmarks.hostile", *options, "--json", str(out)]
    done = finish(line, cwd=ROOT)
    assert (done.returncode, done.stderr) == (int("MISSED" in done.stdout), ""), done.stdout
    assert "closing" in done.stdout
    dialed, undialed = json.loads(out.read_text())
    assert (dialed["failure"], undialed["failure"]) == ("", "")
    assert dialed["dials"] > 0 == undialed["dials"]
    assert dialed["plugins"] > 8 < undialed["plugins"]
    assert dialed["p99_ms"] > 0 < undialed["p99_ms"]
    assert dialed["rss_kib"] > 10_000
