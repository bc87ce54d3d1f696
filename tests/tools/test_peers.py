"""The command that builds the Go programs of ``tests/peers``, with modules that need no others."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plugind.tests.tools.peers import PEERS, BuildError, MissingError, built, licence, names

pytestmark = pytest.mark.extended

MAIN = 'package main\n\nfunc main() { println("here") }\n'


@pytest.fixture(name="source")
def _source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small program, and a cache of its own."""
    monkeypatch.setenv("PLUGIND_PEERS", str(tmp_path / "cache"))
    source = tmp_path / "small"
    source.mkdir()
    (source / "go.mod").write_text("module small\n\ngo 1.26\n")
    (source / "main.go").write_text(MAIN)
    try:
        built(source)
    except MissingError as error:
        pytest.skip(str(error))
    return source


def test_a_program_is_built_once_for_its_content(source: Path) -> None:
    said: list[str] = []
    first = built(source, said.append)
    assert said == []
    (source / "main.go").write_text(MAIN.replace("here", "there"))
    second = built(source, said.append)
    assert said != []
    assert [_said(first), _said(second)] == ["here\n", "there\n"]


def test_what_is_asked_for_at_the_same_time_is_built_once(source: Path) -> None:
    (source / "main.go").write_text(MAIN.replace("here", "at once"))
    said: list[str] = []
    with ThreadPoolExecutor(4) as threads:
        programs = list(threads.map(lambda _: built(source, said.append), range(4)))
    assert len(set(programs)) == 1
    assert len([line for line in said if "building" in line]) == 1


def test_a_program_that_does_not_compile_is_an_error_with_what_the_compiler_said(source: Path) -> None:
    (source / "main.go").write_text(MAIN.replace("println", "printline"))
    with pytest.raises(BuildError, match="undefined: printline"):
        built(source)


def test_a_module_without_its_checksum_is_an_error(source: Path) -> None:
    _import(source, "golang.org/x/sys", "v0.47.0")
    with pytest.raises(BuildError, match=r"missing go\.sum entry"):
        built(source)


@pytest.mark.parametrize("proxy", ["off", "http://127.0.0.1:1"])
def test_a_module_that_cannot_be_fetched_is_missing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    _import(source, "golang.org/x/sys", "v0.47.0")
    (source / "go.sum").write_text(
        "golang.org/x/sys v0.47.0 h1:o7XGOvZQCADBQQ4Y7VNq2dRWQR7JmOUW8Kxx4ZsNgWs=\n"
        "golang.org/x/sys v0.47.0/go.mod h1:4GL1E5IUh+htKOUEOaiffhrAeqysfVGipDYzABqnCmw=\n"
    )
    monkeypatch.setenv("GOPROXY", proxy)
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    with pytest.raises(MissingError):
        built(source)


def test_a_newer_go_than_the_installed_one_is_missing(source: Path) -> None:
    (source / "go.mod").write_text("module small\n\ngo 9.1.0\n")
    with pytest.raises(MissingError, match=r"Go 9\.1\.0 or newer is not installed"):
        built(source)


def test_a_licence_is_known_by_its_words(tmp_path: Path) -> None:
    module = tmp_path / "example.com" / "!module@v1.0.0"
    module.mkdir(parents=True)
    assert licence(tmp_path, "example.com/Module", "v1.0.0") == "of its own"
    (module / "LICENSE.txt").write_text("\n   Apache License\n")
    assert licence(tmp_path, "example.com/Module", "v1.0.0") == "Apache-2.0"


@pytest.mark.parametrize("name", names())
def test_a_peer_has_nothing_but_its_module_and_its_sources(name: str) -> None:
    listed = subprocess.run(["git", "ls-files", name], cwd=PEERS, check=True, capture_output=True, text=True)
    files = [Path(line).name for line in listed.stdout.splitlines()]
    assert [file for file in files if file not in ("go.mod", "go.sum") and not file.endswith(".go")] == []
    local = [line for line in (PEERS / name / "go.mod").read_text().splitlines() if "=> ." in line or "=> /" in line]
    assert local == []


def _import(source: Path, module: str, version: str) -> None:
    (source / "go.mod").write_text(f"module small\n\ngo 1.26\n\nrequire {module} {version}\n")
    (source / "main.go").write_text(f'package main\n\nimport _ "{module}/unix"\n\nfunc main() {{}}\n')


def _said(program: Path) -> str:
    return subprocess.run([program], check=True, capture_output=True, text=True).stderr
