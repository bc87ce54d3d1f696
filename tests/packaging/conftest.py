"""One wheel and one environment for all tests of the installed package; both are built once in a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run(*command: str | Path) -> None:
    """Run a command that must succeed; the message of a failure is its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the sources, so that a left-over build directory has no effect."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("PyPI package setuptools>=77")
    scratch = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "node_modules")
    shutil.copytree(REPOSITORY, scratch / "source", ignore=ignored)
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", scratch, scratch / "source")
    (made,) = scratch.glob("*.whl")
    return made


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
