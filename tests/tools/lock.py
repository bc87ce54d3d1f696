"""Writes the lock files in ``.ci/requirements``.

``run.txt`` is for plugind itself, ``dev.txt`` for its development, and ``ray.txt`` for plugind beside Ray.

::

    pip install uv
    python -m tests.tools.lock            # keeps the versions that still satisfy pyproject.toml
    python -m tests.tools.lock --upgrade  # takes the newest

Each file names one version of each package, for every CPython that plugind supports, with the hashes of its files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
#: The lock files and the extras that each of them includes.
LOCKS = {"run": (), "dev": ("dev",), "ray": ("ray",)}
HEADER = "# Written by `python -m tests.tools.lock`; install it with `pip install --require-hashes -r`.\n"


def write(name: str, arguments: list[str]) -> None:
    """Write one lock file."""
    target = REPOSITORY / ".ci/requirements" / f"{name}.txt"
    extras = [f"--extra={extra}" for extra in LOCKS[name]]
    options = ["--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--python-version=3.11"]
    command = ["uv", "pip", "compile", *options, *extras, *arguments, "--output-file", str(target), "pyproject.toml"]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    target.write_text(HEADER + target.read_text().removeprefix(HEADER))


if __name__ == "__main__":
    for lock in LOCKS:
        write(lock, sys.argv[1:])
