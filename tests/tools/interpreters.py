"""Run README's test command with each CPython of this machine that plugind supports, in a fresh clone each.

::

    python -m tests.tools.interpreters                     # every other interpreter than `python3`
    python -m tests.tools.interpreters --list
    python -m tests.tools.interpreters --locked /usr/bin/python3

The clone contains what is committed. ``--locked`` installs ``.ci/requirements/dev.txt`` first, so that the command
finds its dependencies; otherwise the command installs the newest versions, as it does for readers of README.

An interpreter of another minor version runs all tests. One of the same minor version as `python3` is another build of
the same language and standard library, and leaves out :data:`ONE_BUILD`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

REPOSITORY = Path(__file__).resolve().parents[2]
#: pip's options for the lock file. Modules are compiled when they are first imported; most never are.
LOCKED = "-q --no-compile --require-hashes -r .ci/requirements/dev.txt"
#: Where version managers keep interpreters that are not on the path.
MANAGED = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin", ".local/share/mise/installs/python/*/bin")
_TEXT: Final = "compares text with text"
_SHOWN: Final = "compares what documentation and examples show; other tests run the same commands with each build"
#: The tests for which one build of a minor version is enough, and the reason.
ONE_BUILD: Final = {
    "tests/test_consumers_page.py": _TEXT,
    "tests/test_imports.py": _TEXT,
    "tests/test_leases_page.py": _TEXT,
    "tests/test_private_names.py": _TEXT,
    "tests/test_rules.py": _TEXT,
    "tests/test_words.py": _TEXT,
    "tests/actors/simulation": "plays in memory, by a virtual clock",
    "tests/benchmarks": "tests the benchmarks, which are no part of the package",
    "tests/packaging": "builds and installs the package, with the same setuptools and pip",
    "tests/tools": "tests the tools of the repository; above all, that the simulator finds planted bugs",
    "tests/end_to_end/test_demo.py": _SHOWN,
    "tests/end_to_end/test_examples.py": _SHOWN,
    "tests/end_to_end/test_leases_tutorial.py": _SHOWN,
    "tests/end_to_end/test_readme.py": _SHOWN,
}
_NAME = re.compile(r"python3(\.\d+)?")
_IDENTITY = (
    "import os, sys; print(os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable), "
    "*sys.version_info[:3], sys.implementation.name, sep='|')"
)


@attrs.frozen
class Interpreter:
    """A CPython: its executable, with links resolved, and its version."""

    executable: Path
    version: tuple[int, int, int]


def identify(command: Path) -> Interpreter | None:
    """Return the interpreter behind a command; None if it does not run (a placeholder) or is not CPython."""
    try:
        done = subprocess.run([command, "-I", "-c", _IDENTITY], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    executable, *numbers, implementation = done.stdout.strip().split("|") if done.returncode == 0 else ("", "")
    if implementation != "cpython":
        return None
    major, minor, micro = map(int, numbers)
    return Interpreter(Path(executable), (major, minor, micro))


def commands() -> Iterator[Path]:
    """Yield all commands that are named like Python 3: on the path, then in the directories of version managers."""
    directories = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for pattern in MANAGED:
        directories += sorted(Path.home().glob(pattern))
    for directory in directories:
        yield from sorted(path for path in directory.glob("python3*") if _NAME.fullmatch(path.name))


def oldest_supported() -> tuple[int, int]:
    """Return the oldest version that pyproject.toml allows."""
    text = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"]
    major, minor = text.removeprefix(">=").split(".")
    return int(major), int(minor)


def interpreters() -> list[Interpreter]:
    """Return each supported CPython once, in the order of the path."""
    found = [identify(command) for command in commands()]
    return list(dict.fromkeys(one for one in found if one is not None and one.version >= oldest_supported()))


def test_command() -> str:
    """Return README's test command."""
    _, _, after = (REPOSITORY / "README.md").read_text().partition("<!-- test -->")
    return "\n".join(line.strip() for line in after.partition("<!-- -->")[0].splitlines() if line.startswith("    "))


def test_command_beside(first: Interpreter | None, interpreter: Interpreter) -> str:
    """Return the test command for ``interpreter``, where ``first`` runs all tests."""
    same = first is not None and first.version[:2] == interpreter.version[:2]
    return " ".join([test_command(), *(f"--ignore={path}" for path in ONE_BUILD if same)])


def run(interpreter: Interpreter, tests: str, *, locked: bool) -> bool:
    """Run the command ``tests`` with ``interpreter`` as ``python3``, and return whether it succeeded."""
    print(f"== {interpreter.executable}, CPython {'.'.join(map(str, interpreter.version))}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        clone, path = Path(scratch) / "plugind", Path(scratch) / "path"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        path.mkdir()
        # This is a script and not a link, since a virtual environment records the path of the python that made it.
        (path / "python3").write_text(f'#!/bin/sh\nexec {interpreter.executable} "$@"\n')
        (path / "python3").chmod(0o755)
        environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        environment.pop("VIRTUAL_ENV", None)
        install = f"python3 -m venv .venv && .venv/bin/pip install {LOCKED}"
        script = f"{install}\n{tests}" if locked else tests
        return subprocess.run(["bash", "-euc", script], cwd=clone, env=environment, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Run the command with the chosen interpreters; return 1 if a run failed, 2 if there is nothing to run."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.interpreters", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the interpreters and exit")
    parser.add_argument("--locked", action="store_true", help="install the lock file first")
    parser.add_argument(
        "commands", nargs="*", type=Path, metavar="PYTHON", help="the interpreters; default: all others"
    )
    options = parser.parse_args(arguments)
    first = identify(Path(shutil.which("python3") or sys.executable))
    asked = [identify(command) for command in options.commands] if options.commands else interpreters()
    chosen = [one for one in asked if one is not None and (options.list or one != first)]
    if options.list:
        print(*(f"{'.'.join(map(str, one.version))}\t{one.executable}" for one in chosen), sep="\n")
        return 0
    if not chosen:
        print("no other interpreter: the one that `python3` names is the only one")
        return 2
    failed = [one for one in chosen if not run(one, test_command_beside(first, one), locked=options.locked)]
    print(*(f"failed with {one.executable}" for one in failed), sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
