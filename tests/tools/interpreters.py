"""Run README's commands with each CPython of this machine that plugind supports, as a reader would.

::

    python3 -m tests.tools.interpreters                    # every interpreter
    python3 -m tests.tools.interpreters --list
    python3 -m tests.tools.interpreters /usr/bin/python3 --blocks test

The commands run as they are printed, in fresh clones of what is committed, in which nothing is installed before. The
clones of one interpreter run side by side: what the tests print is shown as it comes, and the rest at the end. This
module needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[2]
#: Where version managers keep interpreters that are not on the path.
MANAGED: Final = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin", ".local/share/mise/installs/python/*/bin")
#: README's blocks of commands. Those of one line share a clone, since each uses what the first one has installed.
#: The last line is what takes the longest.
CLONES: Final = (("demo", "try", "devices", "site"), ("test",))
BLOCKS: Final = tuple(name for names in CLONES for name in names)
#: The demonstration runs until Ctrl-C; its last plugin has its state when this is shown.
SETTLED: Final = " registered   faulty.example.com"
#: Seconds for one block. The tests take the longest.
_PATIENCE: Final = 3600.0
_NAME = re.compile(r"python3(\.\d+)?")
_IDENTITY = (
    "import os, sys; print(os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable), "
    "*sys.version_info[:3], sys.implementation.name, sep='|')"
)


class Interpreter(NamedTuple):
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


def block(name: str) -> str:
    """Return the commands of README between ``<!-- name -->`` and ``<!-- -->``, as a reader would paste them."""
    text = (REPOSITORY / "README.md").read_text().split(f"<!-- {name} -->\n")[1].split("<!-- -->")[0]
    lines = text.splitlines()
    if not all(line.startswith("    ") for line in lines):
        raise ValueError(f"README's block {name!r} has a line that is no command")
    return "\n".join(line[4:] for line in lines)


class Clone(NamedTuple):
    """A fresh clone, and the environment in which ``python3`` is the interpreter to try."""

    directory: Path
    environment: dict[str, str]

    def run(self, name: str, out: IO[str]) -> bool:
        """Run one block of README, and return whether it succeeded."""
        print(f"-- {name}", file=out, flush=True)
        with subprocess.Popen(
            ["bash", "-euc", block(name)],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE if name == "demo" else out,
            stderr=out,
            text=True,
            # A terminal sends Ctrl-C to the whole process group.
            start_new_session=True,
        ) as shell:
            try:
                if shell.stdout is not None:
                    self._interrupt_when_settled(shell, out)
                return shell.wait(_PATIENCE) in ((0, -signal.SIGINT, 128 + signal.SIGINT) if name == "demo" else (0,))
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGKILL)

    @staticmethod
    def _interrupt_when_settled(shell: subprocess.Popen[str], out: IO[str]) -> None:
        assert shell.stdout is not None
        for line in shell.stdout:
            print(line, end="", file=out, flush=True)
            if SETTLED in line:
                os.killpg(shell.pid, signal.SIGINT)


@contextmanager
def clone(interpreter: Interpreter) -> Iterator[Clone]:
    """Make a clone for one interpreter, and remove it at exit."""
    with tempfile.TemporaryDirectory() as scratch:
        directory, path = Path(scratch) / "plugind", Path(scratch) / "path"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, directory], check=True)
        path.mkdir()
        # This is a script and not a link, since a virtual environment records the path of the python that made it.
        (path / "python3").write_text(f'#!/bin/sh\nexec {interpreter.executable} "$@"\n')
        (path / "python3").chmod(0o755)
        environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        environment.pop("VIRTUAL_ENV", None)
        yield Clone(directory, environment)


def run(interpreter: Interpreter, blocks: Sequence[str]) -> list[str]:
    """Run these blocks of README, and return those that failed."""
    print(f"== {interpreter.executable}, CPython {'.'.join(map(str, interpreter.version))}", flush=True)

    def run_in_a_clone(names: Sequence[str], out: IO[str]) -> list[str]:
        with clone(interpreter) as fresh:
            return [name for name in names if not fresh.run(name, out)]

    *others, longest = [wanted for names in CLONES if (wanted := [name for name in names if name in blocks])]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in others]
        running = [pool.submit(run_in_a_clone, *one) for one in zip(others, files, strict=True)]
        failed = run_in_a_clone(longest, sys.stdout)
        for ended, file in zip(running, files, strict=True):
            failed += ended.result()
            file.seek(0)
            print(file.read(), end="", flush=True)
    return failed


def main(arguments: list[str]) -> int:
    """Run the commands with the chosen interpreters; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.tools.interpreters", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the interpreters and exit")
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=BLOCKS, help="the blocks to run; default: all")
    parser.add_argument("commands", nargs="*", type=Path, metavar="PYTHON", help="the interpreters; default: all")
    options = parser.parse_args(arguments)
    found = [identify(command) for command in options.commands] if options.commands else interpreters()
    chosen = list(dict.fromkeys(one for one in found if one is not None))
    if options.list:
        print(*(f"{'.'.join(map(str, one.version))}\t{one.executable}" for one in chosen), sep="\n")
        return 0
    failed = {one: names for one in chosen if (names := run(one, options.blocks))}
    for one, names in failed.items():
        print(f"failed with {one.executable}: {', '.join(names)}")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
