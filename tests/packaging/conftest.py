"""One wheel and one environment for all tests of the installed package; both are built once in a session."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from plugind.tests.packaging.building import REPOSITORY, run, wheel_of


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that a left-over build directory has no effect."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("PyPI package setuptools>=77")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "node_modules")
    return shutil.copytree(REPOSITORY, tmp_path_factory.mktemp("source") / "plugind", ignore=ignored)


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made by the backend that pyproject.toml names."""
    directory = tmp_path_factory.mktemp("sdist")
    made = f"from setuptools.build_meta import build_sdist; build_sdist({str(directory)!r})"
    run(sys.executable, "-c", made, cwd=source)
    (archive,) = directory.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the python of an environment with the wheel; its dependencies come from the environment of the tests."""
    environment = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # Python ignores .pth files in a directory that a .pth file adds, so an editable plugind there has no effect.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
