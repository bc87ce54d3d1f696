"""A name that begins with an underscore is used only in its own module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("actors", "protocol", "deploy", "tests/fuzz", "tests/tools")
MODULES = sorted(
    path
    for path in (
        *(ROOT / f"{name}.py" for name in ("supervisor", "testing", "client")),
        *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py")),
    )
    if not path.name.endswith(("_pb2.py", "_grpc.py")) and not path.name.startswith("test_")
)
#: Names that are public despite their underscore: methods of named tuples, and a function of the standard library.
PUBLIC = {"_replace", "_asdict", "_exit"}
#: Module and private name: the reason why it may be used there.
ALLOWED = {
    ("actors/health/stacks.py", "_current_frames"): "the only account of the stack of another thread",
    (
        "actors/simulation/pytest_plugin.py",
        "_force_trio_fixture",
    ): "pytest-trio's mark of a fixture that it is to run in any mode",
    (
        "actors/simulation/pytest_plugin.py",
        "_fixtureinfo",
    ): "pytest's only account of the fixtures of a test at collection",
    ("deploy/completions.py", "_actions"): "argparse has no public account of what a parser takes",
    ("deploy/man_pages.py", "_actions"): "as above",
    ("actors/simulation/scheduling.py", "_r"): "Trio shuffles tasks by it and has no other way to seed that",
    ("actors/simulation/scheduling.py", "_ALLOW_DETERMINISTIC_SCHEDULING"): "as above",
    ("actors/simulation/scheduling.py", "_virtual_base"): "the number that Trio's clock of virtual time computes from",
    **{
        ("tests/tools/registration_bugs.py", name): "the place in a registration's code is its state"
        for name in ("_pause_until_looked_at", "_interrupted", "_leave", "_refuse")
    },
    ("tests/tools/commands_page.py", "_actions"): "argparse's only account of the options of a parser",
    ("tests/tools/commands_page.py", "_action_groups"): "argparse's only account of the groups of options",
    ("tests/tools/commands_page.py", "_group_actions"): "as above",
    ("tests/tools/commands_page.py", "_SubParsersAction"): "the class of what add_subparsers returns",
}
#: Functions that take an object and the name of one of its attributes.
BY_NAME = {"object", "setattr", "getattr", "delattr"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines: functions, variables, and attributes of its own objects."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                names.add(node.attr)
            case _:
                pass
    return names


def reaches(source: str) -> Iterator[tuple[int, str]]:
    """Yield the private names of other modules that ``source`` uses, with their lines."""
    tree = ast.parse(source)
    own = defined(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute():
                name: object = node.attr
            case ast.Call(
                func=ast.Attribute(attr=function) | ast.Name(id=function), args=[_, ast.Constant(value=name), *_]
            ) if function in BY_NAME:
                pass
            case _:
                continue
        if is_private(name) and name not in own:
            yield node.lineno, str(name)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_uses_a_private_name_of_another(path: Path) -> None:
    module = str(path.relative_to(ROOT))
    found = [reach for reach in reaches(path.read_text()) if (module, reach[1]) not in ALLOWED]
    assert found == []


def test_every_exception_is_still_used() -> None:
    modules = {module for module, _ in ALLOWED}
    used = {(module, name) for module in modules for _, name in reaches((ROOT / module).read_text())}
    assert used >= ALLOWED.keys()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("node._statuses", ["_statuses"]),
        ("self.node._handlers = 1", ["_handlers"]),
        ("patch.object(Supervisor, '_start', None)", ["_start"]),
        ("getattr(item, '_fixtureinfo', None)", ["_fixtureinfo"]),
        ("class A:\n  def __eq__(self, other):\n    self._x = 1\n    return self._x == other._x", []),
        ("row._replace(active=True)", []),
        ("self._own", []),
        ("node.statuses", []),
    ],
)
def test_the_use_of_a_private_name_of_another_module_is_found(source: str, names: list[str]) -> None:
    assert [name for _, name in reaches(source)] == names
