"""The first thing that anybody runs."""

from __future__ import annotations

import subprocess
import sys


def test_the_demo_ends_by_itself_when_all_has_settled() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "plugind", "demo", "--once"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows] == [
        ("NAME", "STATE"),
        ("csi.example.com", "registered"),
        ("shaky.example.com", "registered"),
        ("gpu.example.com", "registered"),
        ("example.com/gpu", "registered"),
        ("odd.example.com", "parked"),
        ("-", "waiting"),
    ]
