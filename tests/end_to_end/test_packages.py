"""The skips of tests whose programs or packages are not available."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugind.tests.end_to_end.foreign import npm_ci
from plugind.tests.end_to_end.packages import PACKAGES, go_package, program

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_program_is_a_skip_that_names_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(pytest.skip.Exception, match=rf"{name} \(Debian package {PACKAGES[name]}\) is not installed"):
        program(name)


def test_a_missing_go_package_is_a_skip_that_names_its_debian_package() -> None:
    reason = r"the Go package example\.com/x \(Debian package golang-x-dev\) is not installed"
    with pytest.raises(pytest.skip.Exception, match=reason):
        go_package("example.com/x", "golang-x-dev")


def test_a_program_in_the_path_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setitem(PACKAGES, "python", "python3")
    assert program("python") == str(Path(sys.executable).parent / "python")


@contextmanager
def registry(directory: Path) -> Iterator[socket.socket]:
    """Make a port of this host the npm registry of ``directory``; the port has no listener yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        (directory / ".npmrc").write_text(
            f"registry={url}\ncache={directory / 'cache'}\nproxy=null\nnoproxy=127.0.0.1\n"
        )
        dependency = {"version": "1.0.0", "resolved": f"{url}nothing/-/nothing-1.0.0.tgz"}
        root = {"name": "empty", "version": "1.0.0", "dependencies": {"nothing": "1.0.0"}}
        packages = {"": root, "node_modules/nothing": dependency}
        (directory / "package.json").write_text(json.dumps(root))
        lock = {"name": "empty", "version": "1.0.0", "lockfileVersion": 3, "packages": packages}
        (directory / "package-lock.json").write_text(json.dumps(lock))
        yield bound


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the program npm, which then ignores the settings of the user."""
    program("node")
    for name in list(os.environ):
        if name.lower().startswith("npm_config_") or name.lower() in ("http_proxy", "https_proxy"):
            monkeypatch.delenv(name)
    return program("npm")


def test_a_registry_that_refuses_is_a_reason_to_skip(npm: str, tmp_path: Path) -> None:
    with registry(tmp_path):
        assert npm_ci(npm, tmp_path, 60) == "npm's registry cannot be reached (ECONNREFUSED)"


def test_a_registry_that_never_answers_is_a_reason_to_skip_within_the_deadline(npm: str, tmp_path: Path) -> None:
    with registry(tmp_path) as silent:
        silent.listen()
        assert npm_ci(npm, tmp_path, 3) in (
            "npm's registry did not answer within 3 seconds",
            "npm's registry cannot be reached (ERR_SOCKET_TIMEOUT)",
            "npm's registry cannot be reached (FETCH_ERROR)",
        )


def test_a_broken_lock_file_is_not_a_reason_to_skip(npm: str, tmp_path: Path) -> None:
    with registry(tmp_path):
        (tmp_path / "package-lock.json").write_text("{")
        with pytest.raises(AssertionError, match="npm ci failed"):
            npm_ci(npm, tmp_path, 60)
