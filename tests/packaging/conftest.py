"""One wheel and one environment for all tests of what is installed: both are built once in a session."""

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
    """Run a command that must succeed; its output is the failure's text."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the sources so that no left-over build directory takes part."""
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
    """The python of an environment with the wheel in it; what the wheel depends on comes from this environment."""
    environment = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # What an entry of a .pth file leads to has its own .pth files ignored, so an editable plugind there is not seen.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
