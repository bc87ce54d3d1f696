"""The lock files match pyproject.toml, have hashes for each package, and name no registry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plugind.tests.tools.lock import LOCKS

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VERSIONS = ("3.11", "3.12", "3.13")


def entries(name: str) -> list[str]:
    """Return the entries of a lock file, each with its hashes on one line."""
    text = (REPOSITORY / ".ci/requirements" / f"{name}.txt").read_text()
    lines = text.replace("\\\n", "").splitlines()
    return [line for line in lines if not line.startswith("#")]


def locked(name: str, python: str) -> dict[str, str]:
    """Return the version of each package that this version of CPython gets on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, str] = {}
    for entry in entries(name):
        pinned, _, marker = entry.partition("--hash")[0].partition(";")
        if not marker.strip() or Marker(marker).evaluate(environment):
            package, version = pinned.strip().split("==")
            assert package not in found
            found[package] = version
    return found


def required(name: str) -> list[Requirement]:
    """Return the requirements in pyproject.toml; the extra ``dev`` includes ``test`` and ``docs``."""
    texts = list(PROJECT["dependencies"])
    extras = ("test", "docs", "dev") if "dev" in LOCKS[name] else LOCKS[name]
    texts += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    return [Requirement(text) for text in texts if not text.startswith("plugind[")]


@pytest.mark.parametrize("python", VERSIONS)
@pytest.mark.parametrize("name", LOCKS)
def test_each_requirement_is_locked_at_a_version_that_it_allows(name: str, python: str) -> None:
    versions = locked(name, python)
    for requirement in required(name):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_each_entry_has_hashes_and_no_line_is_an_option_or_an_address(name: str) -> None:
    assert entries(name)
    for entry in entries(name):
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+( ; [^-]+)?( +--hash=sha256:[0-9a-f]{64})+ *", entry), entry[:100]


@pytest.mark.parametrize("python", VERSIONS)
def test_runtime_dependencies_are_locked_at_the_tested_versions(python: str) -> None:
    assert locked("run", python).items() <= locked("dev", python).items()


def test_the_classifiers_name_the_versions_that_are_locked_and_tested() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert named == list(VERSIONS)
