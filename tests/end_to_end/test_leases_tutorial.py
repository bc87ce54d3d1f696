"""The tutorial of docs/leases.md, pasted block by block into one shell, shows what the page says."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from plugind.tests.end_to_end.processes import DEADLINE

PAGE = (Path(__file__).parents[2] / "docs" / "leases.md").read_text()
#: Each block of the tutorial, in order, and the output that the page shows below it; empty if it shows none.
BLOCKS = re.findall(r"<!-- [a-z]+ -->\n((?:    .*\n)+)<!-- -->\n(?:\n```\n((?:.*\n)*?)```\n)?", PAGE)
#: What is another one each time: process ids, and times.
CHANGING = re.compile(r"(?<=pid )\d+|(?<=for )[\d.]+(ms|[smh]\d*m?s?)(?=,)|\d\d:\d\d:\d\d([+-]\d\d:\d\d)?")


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
        done = subprocess.run(
            ["bash", "-uc", script],
            cwd=directory,
            env={**os.environ, "TMPDIR": directory},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    # The page was written by root.
    shown = re.sub(rf"\b{getpass.getuser()}\b", "root", done.stdout).split("\nEND\n")
    assert len(shown) == len(BLOCKS) + 1 > 5, done.stdout
    for (block, wanted), output in zip(BLOCKS, shown, strict=False):
        if wanted:
            assert rows(output.strip("\n")) == rows(wanted), f"after\n{block}"
