"""The contents of a wheel, and its behaviour once it is installed."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from plugind.protocol.version import __version__

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).parents[2]
#: The directories of the repository that are part of the package.
PACKAGE = ("actors", "protocol")


def test_the_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    """The wheel has each module and data file of the package, and no test, benchmark or stray file."""
    sources = [path for name in PACKAGE for path in (REPOSITORY / name).rglob("*")] + list(REPOSITORY.glob("*"))
    modules = {path for path in sources if path.suffix == ".py" or path.name == "py.typed"}
    generated = {path for path in sources if path.suffix in (".proto", ".pyi")}
    documents = {path for path in sources if path.suffix in (".html", ".css", ".js", ".json")}
    expected = {f"plugind/{path.relative_to(REPOSITORY)}" for path in modules | generated | documents}
    metadata = f"plugind-{__version__}.dist-info"
    expected |= {
        f"{metadata}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    }

    with ZipFile(wheel) as archive:
        contents = set(archive.namelist())

    assert sorted(contents - expected) == []
    assert sorted(expected - contents) == []


def test_every_package_of_the_repository_is_named_in_pyproject() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [path.parent for name in PACKAGE for path in (REPOSITORY / name).rglob("__init__.py")]
    names = ["plugind", *("plugind." + ".".join(path.relative_to(REPOSITORY).parts) for path in found)]
    assert sorted(declared) == sorted(names)


def check_types(installed: Path, program: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy as for a user of the wheel: strict, and without our configuration."""
    command: list[str | Path] = [
        installed,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        directory / "cache",
        program,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=directory)


def test_the_installed_package_is_typed(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (PyPI package mypy, in the extra dev)")
    program = tmp_path / "embed.py"
    program.write_text((REPOSITORY / "examples" / "embed.py").read_text())

    done = check_types(installed, program, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    program.write_text(program.read_text().replace("Root(root)", "Root(3)"))
    done = check_types(installed, program, tmp_path)
    assert 'Argument 1 to "Root" has incompatible type "int"; expected "str | PathLike[str]"' in done.stdout


REWRITING = """
import pkgutil, sys
from importlib import import_module

import plugind


def test_no_module_of_plugind_is_rewritten():
    assert "site-packages" in plugind.__file__
    names = [module.name for module in pkgutil.walk_packages(plugind.__path__, "plugind.")]
    modules = [plugind, *(import_module(name) for name in names)]
    assert len(modules) > 100
    rewritten = [module.__name__ for module in modules if "@pytest_ar" in vars(module)]
    assert rewritten == ["plugind.actors.simulation.pytest_plugin"]
    assert "@pytest_ar" in globals()
"""


def test_pytest_does_not_rewrite_the_installed_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_ours.py").write_text(REWRITING)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["plugind.actors.simulation.pytest_plugin"]\n')
    command: list[str | Path] = [installed, "-m", "pytest", "-q", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
