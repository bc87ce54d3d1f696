"""``plugind simulate`` as a process: its progress bar, a closed pipe, an interrupt."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

ERASE_LINE, SHOW_CURSOR = "\x1b[2K", "\x1b[?25h"
COMMAND = [sys.executable, "-m", "plugind", "simulate"]


@contextmanager
def _on_a_terminal(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run the command with standard error on a terminal of 80 columns; the second value returns all its output."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    # The output is read all the time, since a full terminal would block the command.
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, ours)
        try:
            yield command, lambda: shown.result(timeout=60).decode()
        finally:
            command.kill()
            command.communicate()
    os.close(ours)


def _read_all(terminal: int) -> bytes:
    read = b""
    with suppress(OSError):  # EIO: the last process that had the terminal has ended.
        while more := os.read(terminal, 4096):
            read += more
    return read


def test_an_interrupt_ends_the_command_at_once_and_keeps_its_results() -> None:
    with _on_a_terminal("--seeds", "0..9999", "--events", "10", "--jobs", "2") as (command, terminal):
        assert command.stdout is not None
        first = command.stdout.readline()
        # A terminal sends the signal to the command and all its children.
        os.killpg(command.pid, signal.SIGINT)
        rest, _ = command.communicate(timeout=60)
        shown = terminal()
    assert first.startswith(b"seed 0 ")
    assert b"interrupted after " in rest.splitlines()[-1]
    assert command.returncode == 130
    assert "/10000" in shown
    assert "Traceback" not in shown
    assert SHOW_CURSOR in shown
    assert ERASE_LINE in shown.rpartition("violated")[2], "the bar must be erased after it was last drawn"


def test_without_a_terminal_standard_error_stays_empty() -> None:
    done = subprocess.run(
        [*COMMAND, "--seeds", "0..2", "--events", "5"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["seed", "seed", "seed", "3"]


def test_results_do_not_pass_through_the_terminal_of_the_bar() -> None:
    with _on_a_terminal("--seeds", "0..2", "--events", "5", "--jobs", "1") as (command, terminal):
        results, _ = command.communicate(timeout=60)
        shown = terminal()
    assert len(results.splitlines()) == 4
    assert "trace" not in shown


@pytest.mark.parametrize("options", [("--trace",), ("--seeds", "0..2", "--jobs", "1")])
def test_a_closed_output_is_not_an_error(options: tuple[str, ...]) -> None:
    command = subprocess.Popen(
        [*COMMAND, "--events", "10", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr is not None
    assert command.stderr.read() == ""
    assert command.wait(timeout=60) == 0
    command.stderr.close()
