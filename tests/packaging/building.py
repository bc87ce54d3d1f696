"""How the tests of packages build them: without an index, from what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

from plugind.tests.end_to_end.processes import finish

REPOSITORY = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command that must succeed; the message of a failure is its output."""
    done = finish(command, cwd=cwd, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def wheel_of(source: Path, directory: Path) -> Path:
    """Build a wheel in ``directory``, of a copy of the tree or of a source distribution."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", directory, source)
    (made,) = directory.glob("*.whl")
    return made
