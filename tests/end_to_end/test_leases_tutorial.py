"""The tutorial of docs/leases.md, pasted block by block into one shell, shows what the page says."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from plugind.tests.end_to_end.processes import DEADLINE

PAGE = (Path(__file__).parents[2] / "docs" / "leases.md").read_text()
#: Each block of the tutorial, in order, and the output that the page shows below it; empty if it shows none.
BLOCKS = re.findall(r"<!-- [a-z]+ -->\n((?:    .*\n)+)<!-- -->\n(?:\n```\n((?:.*\n)*?)```\n)?", PAGE)
#: What is another one each time: process ids, and times.
CHANGING = re.compile(r"(?<=pid )\d+|\b[\d.]+(ms|[smh]\d*m?s?)(?=,|  )|\d\d:\d\d:\d\d([+-]\d\d:\d\d)?")


def commands(block: str) -> str:
    return "".join(line[4:] + "\n" for line in block.splitlines())


def rows(text: str) -> list[list[str]]:
    """Return the words of each line, but not what is another one each time, nor that the shell tells of a kill."""
    return [CHANGING.sub("#", line).split() for line in text.splitlines() if " Killed " not in line]


def test_the_tutorial_shows_what_the_page_says() -> None:
    """A pipe ends when no process can write to it any more: the last block has ended all that the first one started."""
    script = "".join(f"{commands(block)}printf '\\n%s\\n' END\n" for block, _ in BLOCKS)
    # The path of a device plugin's socket may have 107 bytes, so the directory must have a short one.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.symlink(sys.prefix, f"{directory}/.venv")
        with subprocess.Popen(
            ["bash", "-uc", script],
            cwd=directory,
            env={**os.environ, "TMPDIR": directory},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell:
            try:
                said, _ = shell.communicate(timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                logs = [f"{log}:\n{log.read_text()}" for log in Path(directory).glob("tmp.*/*") if log.is_file()]
                pytest.fail("\n".join(["it did not end:", shell.communicate()[0], *logs]))
    # The page was written by root.
    shown = re.sub(rf"\b{getpass.getuser()}\b", "root", said).split("\nEND\n")
    assert len(shown) == len(BLOCKS) + 1 > 5, said
    for (block, wanted), output in zip(BLOCKS, shown, strict=False):
        if wanted:
            assert rows(output.strip("\n")) == rows(wanted), f"after\n{block}"
