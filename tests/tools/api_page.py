"""Makes ``docs/api.md``, the page of the public interface, from the docstrings of the names in ``plugind.__all__``.

::

    python -m tests.tools.api_page           # print the page that the docstrings give
    python -m tests.tools.api_page --write   # write it
"""

from __future__ import annotations

import argparse
import ast
import enum
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Protocol

import attrs

import plugind
import plugind.client
import plugind.testing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
INTRODUCTION = """# The public interface

*This page is made from the docstrings by `python -m tests.tools.api_page --write`; a test compares them.*

## What is promised

plugind follows [Semantic Versioning](https://semver.org). What this page lists is public: the names of `plugind`, those
of `plugind.client` and `plugind.testing`, and of each class the attributes and methods below. Only a major release
removes a public name, or changes one in a way that breaks programs; before 1.0 a minor release may do so too. A patch
release never does.
`CHANGELOG.md` says what changed.

Everything else is private, wherever it can be imported from: names that begin with `_`, names that this page does not
list, and the generated code under `plugind.protocol.proto`. Types that a signature names without being listed, such as
`Snapshot`, keep their attributes within a major release, but may move to another module. New parameters are
keyword-only or have a default. The commands' options and exit codes, the JSON of the status socket and the names of
metrics are public as well: `--help` describes the first, and `docs/status-socket.md` the others.

`import plugind` loads nothing else. A name is loaded when it is first used, and the values (`Config` and its parts,
`Plugin`, `PluginError`, `ConfigError`, `InstancePolicy`) do not import Trio.

## Beside your own generated code

plugind's protobuf messages live in a descriptor pool of their own. A program may import its own stubs for the same
packages (`pluginregistration`, `csi.v1`, `v1beta1`, …) before or after plugind. The pure-Python implementation of
protobuf (`PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python`) does not separate pools, and there the second import fails.

## plugind
"""
#: Attributes without an underscore that are not part of the promise: the test kit and the daemon read them.
NOT_PROMISED = {"Supervisor.internals", "Supervisor.config"}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    parts += [_entry(plugind, name) for name in plugind.__all__]
    for module in (plugind.client, plugind.testing):
        parts += [f"## {module.__name__}\n", markdown(inspect.getdoc(module) or "") + "\n"]
        parts += [_entry(module, name) for name in module.__all__ if name not in plugind.__all__]
    return "\n".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if not inspect.isclass(value):
        return f"### {module.__name__}.{name}\n\n{_constant(module, name)}\n"
    lines = [f"### {module.__name__}.{name}", "", *_signature(name, value), markdown(inspect.getdoc(value) or "")]
    rows = list(_attributes(value))
    lines += ["", *rows] if rows else []
    for method, function in _methods(value):
        lines += [
            "",
            f"#### {name}.{method}",
            "",
            *_signature(method, function),
            markdown(inspect.getdoc(function) or ""),
        ]
    return "\n".join(lines) + "\n"


def _constant(module: ModuleType, name: str) -> str:
    if name == "__version__":
        return "The version, as text."
    for candidate in (module.__name__, *sorted(key for key in sys.modules if key.startswith("plugind.actors."))):
        if comment := _comments(candidate).get(name):
            return markdown(comment)
    raise ValueError(f"{module.__name__}.{name} has no comment that begins with #:")


def _signature(name: str, value: object) -> list[str]:
    if isinstance(value, type) and (
        attrs.has(value) or issubclass(value, Exception | enum.Enum) or Protocol in value.__bases__
    ):
        return []
    if not callable(value):
        return []
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    text = str(inspect.signature(value)).replace("(self, ", "(").replace("(self)", "()").replace("'", "")
    text = re.sub(r"<(?:function )?([\w.]+)(?: at|:) [^>]*>", r"\1", text.removesuffix(" -> None"))
    return ["```python", f"{prefix}{name}{text}", "```", ""]


def _methods(value: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that the class or one of our base classes defines, in their order."""
    classes = [one for one in value.__mro__ if one.__module__.startswith("plugind.")]
    for name in dict.fromkeys(name for one in classes for name in vars(one)):
        member = inspect.getattr_static(value, name)
        member = getattr(member, "__func__", member)  # the function of a class method
        method = isinstance(member, property) or (
            inspect.isroutine(member) and not isinstance(member, MemberDescriptorType)
        )
        if method and not name.startswith("_") and f"{value.__name__}.{name}" not in NOT_PROMISED:
            yield name, member


def _attributes(value: type) -> Iterator[str]:
    """Yield a line for each field of an attrs class or each member of an enum."""
    comments = class_comments(value)
    if issubclass(value, enum.Enum):
        for member in value:
            yield f"- `{member.name}`: {markdown(comments.get(member.name, ''))}"
    elif attrs.has(value):
        for field in attrs.fields(value):
            if not field.name.startswith("_") and field.init:
                text = markdown(comments.get(field.name, ""))
                yield f"- `{field.name}: {_annotation(field.type)}{_default(field)}`{': ' + text if text else ''}"


def _annotation(type_: object) -> str:
    return type_ if isinstance(type_, str) else getattr(type_, "__name__", str(type_))


def _default(field: attrs.Attribute[object]) -> str:
    default = field.default
    if default is attrs.NOTHING or isinstance(default, attrs.Factory) or callable(default):  # type: ignore[arg-type]
        return ""
    if attrs.has(type(default)):
        return f" = {type(default).__name__}()" if default == type(default)() else ""
    return f" = {default!r}"


@functools.cache
def _tree(module: str) -> tuple[list[str], ast.Module]:
    source = inspect.getsource(sys.modules[module])
    return source.splitlines(), ast.parse(source)


def class_comments(value: type) -> dict[str, str]:
    """Return the comment above each attribute of a class."""
    lines, tree = _tree(value.__module__)
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == value.__name__)
    return dict(_commented(lines, definition.body))


def _comments(module: str) -> dict[str, str]:
    lines, tree = _tree(module)
    return dict(_commented(lines, tree.body))


def _commented(lines: list[str], body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield each assigned name with the ``#:`` comment above it."""
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        above = itertools.takewhile(lambda line: line.strip().startswith("#:"), reversed(lines[: node.lineno - 1]))
        comment = [line.strip().removeprefix("#:").strip() for line in above]
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and comment:
                yield target.id, " ".join(reversed(comment))


def markdown(text: str) -> str:
    """Convert a docstring from RST to Markdown: literals, roles, literal blocks and ``Raises:`` sections."""
    text = re.sub(
        r":[a-z:]+:`~?([^`]*)`", lambda role: f"`{role[1].removeprefix('plugind.').rpartition('.')[2]}`", text
    )
    text = text.replace("``", "`")
    return "\n".join(_blocks(text.splitlines())).strip()


def _blocks(lines: list[str]) -> Iterator[str]:
    code: list[str] | None = None
    for line in lines:
        if code is not None and (line.startswith("    ") or not line.strip()):
            code.append(line.removeprefix("    "))
            continue
        if code is not None:
            yield _fenced(code)
            code = None
        if line.rstrip().endswith("::"):
            code = []
            if line.strip() != "::":
                yield f"{line.rstrip()[:-1]}\n"
        elif re.fullmatch(r"Raises(, .*)?:", line):
            yield f"{line}\n"
        else:
            yield re.sub(r"^  (\w+): ", r"- `\1`: ", line)
    if code is not None:
        yield _fenced(code)


def _fenced(code: list[str]) -> str:
    text = "\n".join(code).strip("\n")
    return f"```python\n{text}\n```\n"


def main(arguments: list[str]) -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.api_page", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/api.md")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page())
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
