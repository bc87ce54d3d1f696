"""The benchmark of scrapes: its verdicts, and its command on a daemon without plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.benchmarks import scrape

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]


def measured(registered: int, ms: float, percent: float) -> scrape.Scrape:
    return scrape.Scrape(
        registered=registered,
        series=231,
        kib=22.0,
        ms_socket=ms,
        ms_port=0.5,
        percent_at_15_s=ms / 150,
        flood_per_s=250.0,
        flood_percent=percent,
    )


def test_a_scrape_of_ten_thousand_plugins_and_a_client_without_a_pause_have_limits() -> None:
    found = [measured(100, 500.0, 31.0), measured(10_000, 51.0, 29.0), measured(10_000, 49.0, 1.0)]
    assert [verdict.kept for verdict in scrape.verdicts(found)] == [False, False, True, True, True]
    assert "51" in scrape.summary(found)


def test_the_command_prints_a_table_and_writes_rows(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks.scrape", "--registered", "0", "--times", "1"]
    done = subprocess.run(
        [*line, "--json", str(tmp_path / "rows.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    assert "──" in done.stdout
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["series"] > 100
    assert row["kib"] > 10
    assert row["ms_socket"] > 0
