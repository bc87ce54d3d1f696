"""A daemon imports all that it may need once it is ready: later its files may be others, or be gone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path

from plugind.actors.console import run

#: Where imports are at the start, before READY: what only some daemons have.
AT_START = {"plugind.actors.node.ports", "plugind.actors.node.node", "plugind.actors.node.handlers"}
_LOADED = """
import json, sys
from importlib import import_module
from plugind.actors.console import run
for name in (*run.LOADED_WHEN_READY, *run.LOADED_TO_OBSERVE, *run.LOADED_FOR_METRICS):
    import_module(name, run.__package__)
files = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("plugind")}
print(json.dumps(files))
"""


def loaded_when_ready() -> dict[str, str]:
    """Return the files of our modules that a daemon has once it is ready, by their names."""
    done = subprocess.run((sys.executable, "-P", "-c", _LOADED), capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def late_imports(tree: ast.AST, *, in_function: bool = False) -> Iterator[ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and in_function:
            yield node
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from late_imports(node, in_function=inside)


def modules_of(node: ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules of ours that an import loads."""
    base = resolve_name("." * node.level + (node.module or ""), package)
    if base.startswith("plugind"):
        yield base
        spec = find_spec(base)
        if spec is not None and spec.submodule_search_locations is not None:
            yield from (name for alias in node.names if find_spec(name := f"{base}.{alias.name}") is not None)


def test_a_daemon_that_is_ready_has_every_module_that_one_of_its_functions_imports() -> None:
    files = loaded_when_ready()
    missing = [
        f"{name}:{node.lineno} imports {module}"
        for name in sorted(files.keys() - AT_START)
        for node in late_imports(ast.parse(Path(files[name]).read_text()))
        for module in modules_of(node, name if files[name].endswith("__init__.py") else name.rpartition(".")[0])
        if module not in files
    ]
    assert missing == []


def test_what_is_loaded_once_a_daemon_is_ready_was_not_loaded_before() -> None:
    """Otherwise the list would name modules for no reason."""
    late = (*run.LOADED_WHEN_READY, *run.LOADED_TO_OBSERVE, *run.LOADED_FOR_METRICS)
    names = [resolve_name(name, run.__package__) for name in late]
    there = f"[name for name in {names} if name in sys.modules]"
    code = f"import json, sys; from plugind.actors.console import run; print(json.dumps({there}))"
    done = subprocess.run((sys.executable, "-P", "-c", code), capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
