"""Each benchmark runs on a small scale and writes what it has measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "figure", "rows"),
    [
        ("storm --sockets 3 --runs 1 --idle-seconds 0 --settle 0 --no-floor --no-pin", "last_notified_s", 1),
        ("churn --rates 40 --seconds 0.3 --life 0.5 --standing 2 --no-pin", "p50_ms", 1),
        ("idle --registered 0 3 --seconds 0.2 --settle 0", "rss_mib", 2),
        ("memory --registered 0 5 --settle 0", "pss_mib", 2),
        ("scrape --registered 0 --times 1", "ms_socket", 1),
        (
            "wire --sockets 8 --runs 1 --seconds 0 --clients floor grpcio-aio --concurrency 1 4",
            "conversations_per_s",
            4,
        ),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_a_benchmark_writes_a_row_for_each_measurement(command: str, figure: str, rows: int, tmp_path: Path) -> None:
    """The code says whether a limit was missed, as one may be on a busy machine."""
    name, *options = command.split()
    line = [sys.executable, "-m", f"benchmarks.{name}", *options, "--json", str(tmp_path / "rows.json")]
    done = finish(line, cwd=ROOT, timeout=300)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    assert [row[figure] > 0 for row in json.loads((tmp_path / "rows.json").read_text())] == [True] * rows
