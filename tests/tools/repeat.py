"""Runs one test many times, to find out how often it fails: ``python -m tests.tools.repeat 100 TEST_ID``.

Each run is a separate pytest process, so that no run inherits what an earlier one cached or left open. ``--load 2``
runs two busy loops at the same time: a test that waits for real time, for a thread or for another process often fails
only on a busy machine. The command prints the output of the first run that failed, and then the count. Exit codes: 0
if every run passed, 1 if one failed, 2 if pytest could not run the test (no such test, a bad option).

Arguments after the test id are passed to pytest, for example ``-p no:randomly`` or ``--timeout 60``.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
#: Spins until its parent has ended, so that no load remains if the command is killed.
_SPIN: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="repeat", description="Run one test many times and count its failures.")
    parser.add_argument("times", type=int, help="how many times to run the test")
    parser.add_argument("test", help="the id of the test, as pytest prints it")
    parser.add_argument("--load", type=int, default=0, metavar="K", help="busy loops that run beside the test")
    options, passed_on = parser.parse_known_args(arguments)
    with busy_loops(options.load):
        return repeat(options.times, [options.test, *passed_on])


def repeat(times: int, pytest_arguments: Sequence[str]) -> int:
    """Run pytest ``times`` times with the same arguments, print the result, and return the exit code."""
    failed, began = 0, time.monotonic()
    for number in range(1, times + 1):
        code, output = _run_once(pytest_arguments)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(output, file=sys.stderr)
            return 2
        if code and not failed:
            print(f"{output}\nrun {number} was the first to fail; its output is above", flush=True)
        failed += bool(code)
    print(f"{failed} of {times} runs failed, in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep ``count`` processes spinning for the duration of the block."""
    with contextlib.ExitStack() as stack:
        loops = []
        for _ in range(count):
            loops.append(stack.enter_context(subprocess.Popen([sys.executable, "-c", _SPIN])))
            stack.callback(loops[-1].kill)
        yield loops


def _run_once(pytest_arguments: Sequence[str]) -> tuple[int, str]:
    # Without -P, pytest would import modules of the working directory as its plugins.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *pytest_arguments]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
