"""The wheel and the source distribution, as the tools of an index judge them."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from plugind.protocol.version import __version__
from plugind.tests.end_to_end.processes import finish
from plugind.tests.packaging.building import REPOSITORY, wheel_of

pytestmark = pytest.mark.extended


def judged(tool: str, *arguments: str | Path) -> tuple[int, str]:
    """Return the exit code of a tool that is a Python package, and what it says; skip the test without it."""
    pytest.importorskip(tool, reason=f"PyPI package {tool.replace('_', '-')}, in the extra dev")
    command = [sys.executable, "-m", tool, *arguments]
    done = finish(command, timeout=180)
    return done.returncode, done.stdout + done.stderr


def test_twine_finds_nothing_wrong_with_the_wheel_and_the_source_distribution(wheel: Path, sdist: Path) -> None:
    code, said = judged("twine", "check", "--strict", wheel, sdist)
    assert code == 0, said
    assert said.count("PASSED") == 2, said


def test_check_wheel_contents_finds_nothing_wrong_with_the_wheel_but_equal_generated_types(wheel: Path) -> None:
    """Two versions of a service may have the same messages, and then protoc describes them in the same words."""
    tool = ("check_wheel_contents", "--no-config", "--toplevel", "plugind")
    code, said = judged(*tool, "--ignore", "W002", wheel)
    assert (code, said) == (0, f"{wheel}: OK\n")
    _, said = judged(*tool, "--select", "W002", wheel)
    assert [line for line in said.splitlines() if line.startswith("  ") and not line.endswith("_pb2.pyi")] == []


def test_the_source_distribution_gives_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    again = wheel_of(sdist, tmp_path / "wheel")
    with ZipFile(wheel) as first, ZipFile(again) as second:
        contents = [{name: archive.read(name) for name in archive.namelist()} for archive in (first, second)]
    assert contents[0] == contents[1]
    assert f"plugind-{__version__}.dist-info/licenses/LICENSE" in contents[0]


def test_the_source_distribution_has_nothing_but_sources_and_metadata(sdist: Path) -> None:
    made = {"PKG-INFO", "setup.cfg"}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {""}
    files = {name for name in names if not name.startswith("plugind.egg-info")} - made
    assert {"pyproject.toml", "README.md", "LICENSE", "supervisor.py", "actors/world/reconciler.py"} <= files
    assert [name for name in sorted(files) if not (REPOSITORY / name).exists()] == []
    assert not [name for name in files if "__pycache__" in name]
