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
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any, ForwardRef, Literal, Protocol, get_args, get_origin

import attrs
import grpclib.client

import plugind
import plugind.client
import plugind.testing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
MODULES = (plugind, plugind.client, plugind.testing)
INTRODUCTION = """# The public interface

*This page is made from the docstrings by `python -m tests.tools.api_page --write`; a test compares them.*

## What is promised

plugind follows [Semantic Versioning](https://semver.org). What this page lists is public: the names of `plugind`, those
of `plugind.client` and `plugind.testing`, and of each class the attributes and methods below. Only a major release
removes a public name, or changes one in a way that breaks programs; before 1.0 a minor release may do so too. A patch
release never does.
`CHANGELOG.md` says what changed.

Everything else is private, wherever it can be imported from: names that begin with `_`, names that this page does not
list, and the generated code under `plugind.protocol.proto`, but for the modules of which `docs/testing.md` imports
something. Every type that a signature names is one of these names, or one of another distribution. New parameters are
keyword-only or have a default. The commands' options and exit codes, the JSON of the status socket and the names of
metrics are public as well: `--help` describes the first, and `docs/status-socket.md` the others.

`import plugind` loads nothing else. A name is loaded when it is first used, and the values (`Config` and its parts,
`Plugin`, `PluginError`, `ConfigError`, `InstancePolicy`) do not import Trio.

## Beside your own generated code

plugind's protobuf messages live in a descriptor pool of their own. A program may import its own stubs for the same
packages (`pluginregistration`, `csi.v1`, `v1beta1`, …) before or after plugind. The pure-Python implementation of
protobuf (`PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python`) does not separate pools, and there the second import fails.

## How to read this page

Each name has its signature and the first paragraph of its docstring. `help(plugind.Link)` shows the whole docstring,
and those of its methods. An entry without parentheses is an attribute or a property. `docs/handlers.md` says what a
handler may do, and `docs/configuration.md` describes all settings.

"""
#: Attributes without an underscore that are not part of the promise: the daemon and the test kit use them themselves.
#: A class with ``__init__`` among them is one of which users make no instances.
NOT_PROMISED = {
    f"{owner}.{name}"
    for owner, names in {
        "Answer": "access identities needs_container",
        "Backoff": "delay",
        "Channel": """
            __init__ flush flushed is_idle look needs_reader open request request_now send_now send_rest takes_calls
            unary until wait wait_turn
        """,
        "DRAConfig": "health_services",
        "DRADriver": "__init__",
        "DevicePluginDirectory": "is_usual",
        "Call": "peer_pid reaction",
        "Fails": "exception",
        "FakeCSIDriver": "note",
        "FakeDevices": "allocate note prefer send",
        "FakePlugin": "decide info",
        "HealthChecks": "checks next_period of_type on_grid why_not_checked",
        "HeldLease": "__init__",
        "Lease": "for_uid job moved owner request withheld_until",
        "LeaseUsers": "socket_mode",
        "MemoryDirectory": """
            __init__ check_above delaying_events dropping_events events follow hold identity inode leads_to_socket look
            look_at_all make owner_above release scan sockets target
        """,
        "PluggedIn": """
            __init__ accepted alive become connections pid process reads_since serves_itself suspended suspended_at uid
        """,
        "PluginProcess": "__init__ told",
        "Pool": "admits has is_closed",
        "PluginStatus": "step steps",
        "HistoryEntry": "step",
        "ResourceStatus": "changed instances listed",
        "RestartIntensity": "admit",
        "RootStatus": "conditions degraded_by directories made remade",
        "RunningDaemon": "__init__ end wait_answering",
        "Serving": "__init__ answer begin",
        "SimulatedNode": "actors begin_kill check_progress health history leftovers record register statuses",
        "Supervisor": "internals",
        "SyncWatch": "__init__",
        "Trust": "includes names refusal",
        "Watch": "__init__",
    }.items()
    for name in names.split()
}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION + _contents()]
    for module in MODULES:
        about = "" if module is plugind else markdown(inspect.getdoc(module) or "") + "\n"
        parts += [f"## {module.__name__}\n", *([about] if about else [])]
        parts += [_entry(module, name) for name in names_of(module)]
    return "\n".join(parts)


def names_of(module: ModuleType) -> list[str]:
    """Return the public names that the page lists under this module: a name of ``plugind`` is listed there alone."""
    return [name for name in module.__all__ if module is plugind or name not in plugind.__all__]


def anchor(heading: str) -> str:
    """Return the anchor of a heading, which GitHub and the site make in the same way."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _contents() -> str:
    lines = ["## Contents", ""]
    for module in MODULES:
        links = (f"[{name}](#{anchor(f'{module.__name__}.{name}')})" for name in names_of(module))
        text = f"[{module.__name__}](#{anchor(module.__name__)}): " + ", ".join(links)
        text = text.replace("[__version__]", r"[\_\_version\_\_]")
        lines += [*textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False), ""]
    return "\n".join(lines)


def _entry(module: ModuleType, name: str) -> str:
    heading = f"### `{module.__name__}.{name}`\n\n"
    value = getattr(module, name)
    if not callable(value):
        return f"{heading}{_constant(module, name)}\n"
    constructor = _constructor(value) if inspect.isclass(value) else _signature(value)
    summary, raises = _summary(value)
    lines = [*(["```python", f"{name}{constructor}", "```", ""] if constructor else []), summary]
    if raises:
        lines += ["", "Raises:", "", *(f"- {line}" for line in raises)]
    if inspect.isclass(value):
        lines += _members(value, "Members:" if raises else "")
    return heading + re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _members(value: type, above: str) -> list[str]:
    members = [*_attributes(value), *itertools.chain.from_iterable(_method(*member) for member in _methods(value))]
    return ["", above, "", *members] if members else []


def _method(name: str, function: object) -> Iterator[str]:
    """Yield the line of a method or a property, and a line for each error that it raises."""
    summary, raises = _summary(function)
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    yield f"- `{prefix}{name}{_signature(function)}`: {' '.join(summary.split())}"
    yield from (f"  - Raises {line}" for line in raises)


def _summary(value: object) -> tuple[str, list[str]]:
    """Return the first paragraph of a docstring, and its errors; all of a protocol, whose docstring has the rules."""
    text = inspect.getdoc(value) or ""
    if Protocol in getattr(value, "__bases__", ()):
        return markdown(text), []
    section = re.search(r"^Raises(?:, [^\n]*)?:\n+((?:[ ]+\S.*\n?)+)", text, re.MULTILINE)
    errors = re.split(r"^ {2,4}(?=\w+: )", section[1], flags=re.MULTILINE)[1:] if section else []
    raises = (" ".join(error.split()).partition(": ") for error in errors)
    return markdown(text.partition("\n\n")[0]), [f"`{error}`: {markdown(when)}" for error, _, when in raises]


def _constant(module: ModuleType, name: str) -> str:
    if name == "__version__":
        return "The version, as text."
    for candidate in (module.__name__, *sorted(key for key in sys.modules if key.startswith("plugind.actors."))):
        if comment := _comments(candidate).get(name):
            return markdown(comment)
    raise ValueError(f"{module.__name__}.{name} has no comment that begins with #:")


class _Verbatim:
    """An annotation or a default, as the signature shows it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _constructor(value: type) -> str:
    """Return the signature of a class; empty where its attributes say it, or nobody makes instances."""
    if attrs.has(value) or issubclass(value, Exception | enum.Enum) or Protocol in value.__bases__:
        return ""
    if f"{value.__name__}.__init__" in NOT_PROMISED:
        return ""
    return _signature(value)


def _signature(value: object) -> str:
    """Return the parameters and the result of a function, or the type of a property."""
    if isinstance(value, property):
        return f": {_annotation(inspect.signature(value.fget).return_annotation)}" if value.fget else ""
    if not callable(value):
        return ""
    signature = inspect.signature(value)
    parameters = [
        one.replace(annotation=_shown(one.annotation, _annotation), default=_shown(one.default, _default_text))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    result = inspect.Signature.empty if signature.return_annotation in (None, "None") else signature.return_annotation
    return str(signature.replace(parameters=parameters, return_annotation=_shown(result, _annotation)))


def _shown(value: object, text: Callable[[object], str]) -> object:
    return value if value is inspect.Parameter.empty else _Verbatim(text(value))


def _methods(value: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that the class or one of our base classes defines, in their order."""
    classes = [one for one in value.__mro__ if one.__module__.startswith("plugind.")]
    for name in dict.fromkeys(name for one in classes for name in vars(one)):
        member = inspect.getattr_static(value, name)
        member = getattr(member, "__func__", member)  # the function of a class method
        method = isinstance(member, property) or (
            inspect.isroutine(member) and not isinstance(member, MemberDescriptorType)
        )
        # A name that begins with a capital letter is a method of a gRPC service.
        if method and name[0].islower() and f"{value.__name__}.{name}" not in NOT_PROMISED:
            yield name, member


def _attributes(value: type) -> Iterator[str]:
    """Yield a line for each field of an attrs class or each member of an enum."""
    comments = class_comments(value)
    if issubclass(value, enum.Enum):
        for member in value:
            text = markdown(comments.get(member.name, ""))
            yield f"- `{member.name}`{': ' + text if text else ''}"
    for field in _fields(value):
        text = markdown(comments.get(field.name, ""))
        yield f"- `{field.name}: {_annotation(field.type)}{_default(field)}`{': ' + text if text else ''}"


def _fields(value: type) -> list[attrs.Attribute[object]]:
    """Return the public fields of an attrs class; none of another class."""
    return [
        field
        for field in (attrs.fields(value) if attrs.has(value) else ())
        if field.init and not field.name.startswith("_") and f"{value.__name__}.{field.name}" not in NOT_PROMISED
    ]


def unimportable() -> Iterator[str]:
    """Yield each type of plugind in a public annotation that cannot be imported from the public modules."""
    public = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    for owner, value in public.items():
        annotations: list[tuple[str, str, object]] = []
        if inspect.isclass(value):
            annotations += [(value.__module__, field.name, field.type) for field in _fields(value)]
            functions: dict[str, Any] = dict(_methods(value))
            if _constructor(value):
                functions["__init__"] = value.__init__
        else:
            functions = {owner: value} if callable(value) else {}
        for name, member in functions.items():
            function = inspect.unwrap(getattr(member, "fget", member))
            hints = getattr(function, "__annotations__", {})
            annotations += [(function.__module__, name, hint) for hint in hints.values()]
        for module, name, annotation in annotations:
            for missing in _types_in(annotation, {**public, "grpclib": grpclib, **vars(sys.modules[module])}):
                if missing not in public.values():
                    yield f"{owner}.{name}: {getattr(missing, '__qualname__', missing)}"


def _types_in(annotation: object, names: dict[str, object]) -> Iterator[object]:
    """Yield the classes of plugind in an annotation, and the names in it that nothing has."""
    match annotation:
        case str() | ForwardRef():
            text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
            try:
                yield from _types_in(eval(text, names), names)
            except NameError as error:
                yield error.name
        case list() | tuple():
            for one in annotation:
                yield from _types_in(one, names)
        case _:
            if get_origin(annotation) is not Literal:
                yield from _types_in([*get_args(annotation)], names)
            for one in (annotation, get_origin(annotation)):
                if inspect.isclass(one) and one.__module__.startswith("plugind."):
                    yield one


def _annotation(type_: object) -> str:
    text = type_ if isinstance(type_, str) else inspect.formatannotation(type_)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text).replace("NoneType", "None")


def _default(field: attrs.Attribute[object]) -> str:
    default = field.default
    if default is attrs.NOTHING or isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return ""
    text = _default_text(default)
    return "" if "<lambda>" in text else f" = {text}"


def _default_text(default: object) -> str:
    """Return a default as a reader writes it: values of the package by their class alone."""
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if attrs.has(type(default)):
        return f"{type(default).__name__}(...)"
    name = getattr(default, "__qualname__", None)
    return repr(default) if name is None else name


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
