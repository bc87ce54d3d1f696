"""``import plugind``: the public names, the modules that they load, and the types that a type checker finds."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import plugind

REPOSITORY = Path(__file__).parents[2]
PUBLIC = [
    "AllocationError",
    "Backoff",
    "CSIConfig",
    "Channel",
    "Config",
    "ConfigError",
    "DRAAnswerError",
    "DRACallError",
    "DRAClaim",
    "DRAClaimError",
    "DRAConfig",
    "DRADriver",
    "DRADriverUnknownError",
    "DRAError",
    "DevicePluginDirectory",
    "DevicesSnapshot",
    "GaveUpError",
    "Handler",
    "Health",
    "HealthChecks",
    "InfoLimits",
    "InstancePolicy",
    "LaggedError",
    "Lease",
    "LeaseChanged",
    "LeaseLimits",
    "LeaseUsers",
    "LeasesConfig",
    "LeasesSnapshot",
    "Limits",
    "Link",
    "LogLimits",
    "MetricsConfig",
    "NoConnectionError",
    "NodeEndedError",
    "Plugin",
    "PluginChanged",
    "PluginCounts",
    "PluginError",
    "Pool",
    "Ports",
    "PreparedDevice",
    "Problem",
    "Released",
    "ResourceChanged",
    "RestartIntensity",
    "RetryAnswer",
    "Root",
    "RootBusyError",
    "Snapshot",
    "StaticResource",
    "StatusConfig",
    "Supervisor",
    "Timeouts",
    "Trust",
    "__version__",
]
VALUES = [
    "Backoff",
    "Config",
    "ConfigError",
    "HealthChecks",
    "InstancePolicy",
    "Limits",
    "MetricsConfig",
    "Plugin",
    "PluginError",
    "Root",
    "Timeouts",
    "Trust",
    "__version__",
]


def run_python(code: str) -> str:
    """Run ``code`` in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plugind_has_exactly_the_public_names() -> None:
    assert dir(plugind) == plugind.__all__ == PUBLIC


def test_importing_plugind_binds_nothing_public_and_loads_no_other_module_of_it() -> None:
    code = (
        "import plugind, sys\n"
        "print([name for name in vars(plugind) if not name.startswith('_')])\n"
        "print([name for name in sys.modules if name.startswith('plugind.') or name in ('trio', 'attrs', 'google')])"
    )
    assert run_python(code) == "[]\n[]\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    value = getattr(plugind, name)
    assert value is not None
    if name != "__version__":
        assert value is getattr(importlib.import_module(value.__module__), name)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_imported_without_trio(name: str) -> None:
    heavy = ("trio", "grpclib", "asyncio")
    code = f"import sys\nfrom plugind import {name}\nprint([name for name in {heavy} if name in sys.modules])"
    assert run_python(code) == "[]\n"


def test_a_star_import_gives_the_public_names() -> None:
    code = "before = set(globals())\nfrom plugind import *\nprint(sorted(set(globals()) - before - {'before'}))"
    assert run_python(code) == f"{PUBLIC}\n"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'plugind' has no attribute 'Supervisr'"):
        plugind.Supervisr  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.extended
def test_mypy_rejects_a_misspelt_import_and_finds_the_types_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (PyPI package mypy, in the extra dev)")
    source = tmp_path / "program.py"
    source.write_text("from plugind import Config, Supervisr\n\nreveal_type(Config().rescan)\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert 'Module "plugind" has no attribute "Supervisr"' in done.stdout, done.stdout + done.stderr
    assert 'Revealed type is "float"' in done.stdout, done.stdout


def test_the_version_of_the_metadata_is_that_of_the_source() -> None:
    assert version("plugind") == plugind.__version__


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def package_modules() -> list[Path]:
    """Return every module of the package, as a path relative to the repository."""
    inside = [
        *(REPOSITORY / "actors").rglob("*.py"),
        *(REPOSITORY / "protocol").rglob("*.py"),
        *REPOSITORY.glob("*.py"),
    ]
    return sorted(path.relative_to(REPOSITORY) for path in inside)


@pytest.mark.parametrize("path", package_modules(), ids=str)
def test_imports_inside_of_the_package_are_relative_and_never_of_its_root(path: Path) -> None:
    for node in imports(REPOSITORY / path):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "plugind" for alias in node.names), ast.unparse(node)
        elif node.level == 0:
            assert (node.module or "").split(".")[0] != "plugind", ast.unparse(node)
        elif node.level == len(path.parts) and node.module is None:
            assert not {alias.name for alias in node.names} & set(PUBLIC), ast.unparse(node)
