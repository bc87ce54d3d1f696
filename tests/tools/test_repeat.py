"""The command that repeats a test counts failures, and distinguishes a failing test from one that cannot run."""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path

import pytest

from plugind.tests.tools import repeat

pytestmark = pytest.mark.extended


def test_every_failure_is_counted_and_the_first_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_odd.py").write_text(
        textwrap.dedent("""\
            from pathlib import Path

            def test_fails_on_even_runs():
                runs = Path(__file__).with_name("runs")
                runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
                assert len(runs.read_text()) % 2, "run " + runs.read_text()
            """)
    )

    assert repeat.main(["5", f"{tmp_path}/test_odd.py::test_fails_on_even_runs"]) == 1

    output = capsys.readouterr().out
    assert "AssertionError: run xx\n" in output
    assert "run xxxx\n" not in output
    assert "run 2 was the first to fail" in output
    assert "\n2 of 5 runs failed" in output


def test_a_test_that_always_passes_exits_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    assert repeat.main(["2", f"{tmp_path}/test_good.py::test_good"]) == 0
    assert capsys.readouterr().out.startswith("0 of 2 runs failed")


def test_a_test_that_does_not_exist_is_not_counted_as_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    assert repeat.main(["2", f"{tmp_path}/test_good.py::test_other"]) == 2
    output = capsys.readouterr()
    assert "not found" in output.err
    assert output.out == ""


def test_the_busy_loops_run_for_the_duration_of_the_block() -> None:
    with repeat.busy_loops(2) as loops:
        deadline = time.monotonic() + 30
        while not all(ticks_used(loop.pid) for loop in loops):
            assert time.monotonic() < deadline, "a busy loop uses no processor time"
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL] * 2


def ticks_used(pid: int) -> int:
    """Return the user time of a process in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().split()[13])
