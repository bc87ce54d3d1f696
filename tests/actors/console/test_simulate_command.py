"""``plugind simulate`` as it meets people: its progress, a reader that leaves, an interrupt."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plugind.actors.console.progress import progress_line

COMMAND = [sys.executable, "-m", "plugind", "simulate"]


def test_the_progress_has_a_bar_what_is_done_and_how_long_it_takes() -> None:
    text = "25/100 seeds  1 violated  0:30 left  2.5/s"
    assert progress_line(25, 100, 1, 10.0, 90) == f"{'━' * 10}{'╌' * 30}  {text}"
    assert progress_line(25, 100, 1, 10.0, 57) == f"{'━' * 3}{'╌' * 10}  {text}"
    assert progress_line(25, 100, 1, 10.0, 46) == text
    assert progress_line(25, 100, 1, 10.0, 20) == "25/100 seeds"


@pytest.mark.parametrize("columns", range(1, 120))
def test_the_progress_fits_the_terminal(columns: int) -> None:
    assert len(progress_line(9_999, 10_000, 12, 4000.0, columns)) <= columns


def test_before_the_first_seed_is_done_no_time_is_promised() -> None:
    assert progress_line(0, 41, 0, 0.0, 35) == "0/41 seeds  0 violated  -:-- left"


@contextmanager
def _on_a_terminal(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with standard error on a terminal of 80 columns, and that terminal."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield command, ours
    finally:
        command.kill()
        command.communicate()
        os.close(ours)


def test_an_interrupt_ends_it_at_once_with_what_was_done() -> None:
    with _on_a_terminal("--seeds", "0..9999", "--events", "10", "--jobs", "2") as (command, terminal):
        assert command.stdout is not None
        first = command.stdout.readline()
        # As a terminal does it: to the command and to all that it started.
        os.killpg(command.pid, signal.SIGINT)
        rest, _ = command.communicate(timeout=20)
        shown = os.read(terminal, 1 << 20).decode()
    assert first.startswith(b"seed 0 ")
    assert b"interrupted after " in rest.splitlines()[-1]
    assert command.returncode == 130
    assert "/10000 seeds" in shown
    assert "Traceback" not in shown
    assert shown.endswith("\r\x1b[K"), "nothing is left on the line"


@pytest.mark.parametrize("options", [("--trace",), ("--seeds", "0..2", "--jobs", "1")])
def test_a_reader_that_has_seen_enough_is_no_error(options: tuple[str, ...]) -> None:
    command = subprocess.Popen(
        [*COMMAND, "--events", "10", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr is not None
    assert command.stderr.read() == ""
    assert command.wait(timeout=30) == 0
    command.stderr.close()
