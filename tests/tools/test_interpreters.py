from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.tests.tools import interpreters


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_is_identified_by_its_real_executable_and_version(tmp_path: Path) -> None:
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    found = interpreters.identify(link)
    assert found is not None
    assert found.executable.is_file()
    assert not found.executable.is_symlink()
    assert found.version == sys.version_info[:3]


def test_only_a_cpython_that_runs_is_an_interpreter(tmp_path: Path) -> None:
    assert interpreters.identify(script(tmp_path / "python3.12", "echo not installed >&2; exit 127")) is None
    assert interpreters.identify(script(tmp_path / "python3.11", "echo '/opt/pypy|3|11|1|pypy'")) is None
    assert interpreters.identify(tmp_path / "python3.13") is None


def test_each_interpreter_is_found_once_and_old_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = tmp_path / "home" / ".pyenv" / "versions" / "3.13.1" / "bin"
    managed.mkdir(parents=True)
    path = tmp_path / "path"
    path.mkdir()
    script(path / "python3", "echo '/usr/bin/python3.11|3|11|2|cpython'")
    script(path / "python3.11", "echo '/usr/bin/python3.11|3|11|2|cpython'")
    script(path / "python3.10", "echo '/usr/bin/python3.10|3|10|9|cpython'")
    script(path / "python3-config", "echo '/usr/bin/python3.12|3|12|1|cpython'")
    script(managed / "python3.13", "echo '/opt/python3.13|3|13|1|cpython'")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert interpreters.interpreters() == [
        interpreters.Interpreter(Path("/usr/bin/python3.11"), (3, 11, 2)),
        interpreters.Interpreter(Path("/opt/python3.13"), (3, 13, 1)),
    ]


def test_the_command_is_the_one_that_readme_shows() -> None:
    assert interpreters.test_command().startswith("python3 -m venv .venv")
    assert interpreters.test_command().endswith(".venv/bin/pytest -q -n auto --dist worksteal")


def test_another_build_of_the_same_version_leaves_out_what_one_build_is_enough_for() -> None:
    first, patched, newer = (
        interpreters.Interpreter(Path(f"/opt/{number}/python3"), version)
        for number, version in enumerate([(3, 11, 7), (3, 11, 2), (3, 13, 1)])
    )
    everything = interpreters.test_command()
    assert interpreters.test_command_beside(first, newer) == everything
    assert interpreters.test_command_beside(None, patched) == everything
    left_out = interpreters.test_command_beside(first, patched).removeprefix(everything).split()
    assert left_out == [f"--ignore={path}" for path in interpreters.ONE_BUILD]
    assert all((interpreters.REPOSITORY / path).exists() for path in interpreters.ONE_BUILD)


#: What differs between two builds, if anything does: what the operating system is asked for.
SYSTEM = {"fcntl", "pty", "select", "selectors", "signal", "socket", "threading", "plugind.tests.end_to_end.processes"}
#: Those of the tests for one build that start programs, since that is what they are about.
STARTS_PROGRAMS = ("tests/benchmarks", "tests/packaging", "tests/tools", "tests/end_to_end/")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_what_uses_sockets_signals_and_daemons_runs_with_each_build() -> None:
    paths = [interpreters.REPOSITORY / path for path in interpreters.ONE_BUILD if not path.startswith(STARTS_PROGRAMS)]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    assert len(files) > 15
    assert {str(file): used for file in files if (used := SYSTEM.intersection(imports_of(file)))} == {}
