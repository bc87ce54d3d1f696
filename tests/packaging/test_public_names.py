"""``import plugind``: the public names, the modules that they load, and the types that a type checker finds."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import plugind
from plugind.tests.end_to_end.processes import finish

REPOSITORY = Path(__file__).parents[2]
#: What needs no Trio.
VALUES = """
    Backoff Config ConfigError HealthChecks InstancePolicy MetricsConfig Plugin PluginError Root Timeouts Trust
    WireLimits __version__
"""

PROGRAM = """
from plugind import Config, Handler, Link, Plugin, Supervisr

reveal_type(Config().rescan)


class Idle:
    follow = None

    async def validate(self, plugin: Plugin) -> None: ...
    async def register(self, plugin: Plugin, link: Link) -> None: ...
    def deregister(self, plugin: Plugin) -> None: ...


class Following(Idle):
    async def follow(self, plugin: Plugin, link: Link) -> None: ...  # type: ignore[override]


class Misspelt:
    validate, register, deregister = Idle.validate, Idle.register, Idle.deregister

    async def folow(self, plugin: Plugin, link: Link) -> None: ...


handlers: list[Handler] = [Idle(), Following()]
wrong: Handler = Misspelt()
"""


def run_python(code: str) -> str:
    """Run ``code`` in a fresh interpreter and return what it prints."""
    done = finish([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_plugind_binds_nothing_public_and_loads_no_other_module_of_it() -> None:
    code = (
        "import plugind, sys\n"
        "print([name for name in vars(plugind) if not name.startswith('_')])\n"
        "print([name for name in sys.modules if name.startswith('plugind.') or name in ('trio', 'attrs', 'google')])"
    )
    assert run_python(code) == "[]\n[]\n"


def test_each_public_name_is_the_object_of_its_module() -> None:
    assert dir(plugind) == plugind.__all__
    for name in set(plugind.__all__) - {"__version__"}:
        value = getattr(plugind, name)
        assert value is getattr(importlib.import_module(value.__module__), name)


def test_values_are_imported_without_trio() -> None:
    code = (
        "import plugind, sys\n"
        f"for name in {VALUES.split()}:\n"
        "    getattr(plugind, name)\n"
        "    print(*(f'{name} loads {it}' for it in ('trio', 'grpclib', 'asyncio') if it in sys.modules), end='')\n"
    )
    assert run_python(code) == ""


def test_a_star_import_gives_the_public_names() -> None:
    code = "before = set(globals())\nfrom plugind import *\nprint(sorted(set(globals()) - before - {'before'}))"
    assert run_python(code) == f"{plugind.__all__}\n"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'plugind' has no attribute 'Supervisr'"):
        plugind.Supervisr  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.extended
def test_mypy_rejects_a_misspelt_import_and_a_misspelt_follow_and_finds_the_types_of_the_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (PyPI package mypy, in the extra dev)")
    source = tmp_path / "program.py"
    source.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml"), str(source)]
    done = finish(command, cwd=REPOSITORY)
    assert 'Module "plugind" has no attribute "Supervisr"' in done.stdout, done.stdout + done.stderr
    assert 'Revealed type is "float"' in done.stdout, done.stdout
    refused = re.findall(r'"(\w+)" is missing following "Handler" protocol member', done.stdout)
    assert refused == ["Misspelt"], done.stdout


def test_the_version_of_the_metadata_is_that_of_the_source() -> None:
    assert version("plugind") == plugind.__version__


def test_imports_inside_of_the_package_are_relative_and_never_of_its_root() -> None:
    inside = [path for folder in ("actors", "protocol") for path in (REPOSITORY / folder).rglob("*.py")]
    inside += REPOSITORY.glob("*.py")
    suspects = [path for path in inside if re.search(r"(?:import|from) plugind|from \.+ import", path.read_text())]
    wrong = [
        f"{path}: {ast.unparse(node)}"
        for path in suspects
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_wrong(node, path.relative_to(REPOSITORY))
    ]
    assert (len(suspects) > 5, wrong) == (True, [])


def _is_wrong(node: ast.Import | ast.ImportFrom, path: Path) -> bool:
    names = {alias.name for alias in node.names}
    if isinstance(node, ast.Import):
        return any(name.split(".")[0] == "plugind" for name in names)
    if node.level == 0:
        return (node.module or "").split(".")[0] == "plugind"
    return node.level == len(path.parts) and node.module is None and bool(names & {*plugind.__all__})
