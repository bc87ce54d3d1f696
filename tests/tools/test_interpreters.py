from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from plugind.tests.tools import interpreters

pytestmark = pytest.mark.extended


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


def test_the_commands_are_those_that_readme_shows() -> None:
    assert interpreters.block("test").startswith("python3 -m venv .venv")
    assert interpreters.block("test").endswith(".venv/bin/pytest -q -n auto --dist worksteal")
    # The first one needs a device of the machine: test_readme.py runs it with one.
    blocks = set(re.findall(r"<!-- (\w+) -->", (interpreters.REPOSITORY / "README.md").read_text()))
    assert blocks == {"first", *interpreters.BLOCKS}


def test_a_block_succeeds_or_fails_as_its_commands_do_in_a_clone_with_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocks = {
        "demo": f"trap 'echo ended; exit 0' INT; echo '{interpreters.SETTLED}'; while :; do sleep 1; done",
        "try": "python3 --version",
        "devices": "echo seen; false; echo not seen",
        "site": "test -e README.md",
        "test": "test ! -e .venv",
    }
    monkeypatch.setattr(interpreters, "block", blocks.__getitem__)
    python = script(tmp_path / "python3", "echo the interpreter")
    assert interpreters.run(interpreters.Interpreter(python, (3, 11, 9)), interpreters.BLOCKS) == ["devices"]
    lines = capfd.readouterr().out.splitlines()
    assert lines[1:] == [
        "-- test",
        "-- demo",
        interpreters.SETTLED,
        "ended",
        "-- try",
        "the interpreter",
        "-- devices",
        "seen",
        "-- site",
    ]
