"""The imports inside the package: the graph of files has no circle, and every import of our own files is relative.

The graph is read from the source text, so it includes imports under ``TYPE_CHECKING`` and inside functions. The layers
are a contract of import-linter (pyproject.toml), which compares packages and cannot find a circle between two files of
one layer.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
#: Folders of the repository that are not part of the package: they import it as a user does, or contain no source.
OUTSIDE = {"tests", "benchmarks", "examples", "deploy", "docs", "build", "dist"}


def files_of(package: Path) -> list[Path]:
    """Return the Python files of the package, relative to it."""
    found = (path.relative_to(package) for path in package.rglob("*.py"))
    return sorted(path for path in found if path.parts[0] not in OUTSIDE and not path.parts[0].startswith("."))


def imports_in(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def imported(package: Path, file: Path, statement: ast.ImportFrom) -> Iterator[Path]:
    """Yield the files that a relative import names.

    ``from .a import b`` names the module ``a/b.py`` if there is one, and otherwise ``b`` in ``a.py`` or in
    ``a/__init__.py``.
    """
    assert statement.level <= len(file.parts), f"{file}:{statement.lineno} goes above the package"
    base = file.parents[statement.level - 1].joinpath(*(statement.module or "").split("."))
    for alias in statement.names:
        candidates = (base / f"{alias.name}.py", base / alias.name / "__init__.py", Path(f"{base}.py"))
        yield next((path for path in candidates if (package / path).is_file()), base / "__init__.py")


def graph_of(package: Path) -> dict[Path, set[Path]]:
    """Return, for each file of the package, the files that it imports."""
    return {
        file: {
            target
            for statement in imports_in(package / file)
            if isinstance(statement, ast.ImportFrom) and statement.level
            for target in imported(package, file, statement)
        }
        for file in files_of(package)
    }


def circle_in(graph: dict[Path, set[Path]]) -> list[str]:
    """Return the files of one circle, with the first one repeated at the end, or an empty list."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # graphlib lists each file before the one that imports it.
        return [str(path) for path in reversed(error.args[1])]
    return []


def absolute_imports(package: Path, name: str) -> Iterator[str]:
    """Yield the places where a file of the package imports ``name``, the package itself, absolutely."""
    for file in files_of(package):
        for statement in imports_in(package / file):
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            else:
                names = [statement.module or ""] if not statement.level else []
            yield from (f"{file}:{statement.lineno}" for module in names if module.partition(".")[0] == name)


def test_the_graph_of_files_has_no_circle() -> None:
    graph = graph_of(PACKAGE)
    node = graph[Path("actors/node/node.py")]
    assert node >= {Path("actors/world/reconciler.py"), Path("protocol/messages/reconciler.py")}
    assert circle_in(graph) == []


def test_imports_inside_the_package_are_relative() -> None:
    assert list(absolute_imports(PACKAGE, "plugind")) == []


# --- the test's own tools ---------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of three files without a circle."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "top.py").write_text("from .inner import low\n")
    (tmp_path / "inner/__init__.py").write_text("")
    (tmp_path / "inner/low.py").write_text("VALUE = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_top.py").write_text("from package.top import low\n")
    return tmp_path


def test_a_tree_without_a_circle_passes(tree: Path) -> None:
    assert graph_of(tree)[Path("top.py")] == {Path("inner/low.py")}
    assert circle_in(graph_of(tree)) == []
    assert list(absolute_imports(tree, "package")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ..top import low\n",
        "from .. import top\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..top import low\n",
        "def late():\n    from ..top import low\n",
    ],
    ids=["name", "module", "type-checking", "in-a-function"],
)
def test_a_circle_is_found_however_it_is_imported(tree: Path, text: str) -> None:
    (tree / "inner/low.py").write_text(text)
    circle = circle_in(graph_of(tree))
    assert set(circle) == {"top.py", "inner/low.py"}
    assert circle[0] == circle[-1]


@pytest.mark.parametrize("text", ["import package.top\n", "import os, package\n", "from package.top import low\n"])
def test_an_absolute_import_of_the_package_is_found(tree: Path, text: str) -> None:
    (tree / "inner/low.py").write_text("VALUE = 1\n" + text)
    assert list(absolute_imports(tree, "package")) == ["inner/low.py:2"]
