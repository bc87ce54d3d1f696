"""Writes the JSON Schemas of what plugind and a handler in another process say, and of ``plugind inventory``.

::

    python -m tests.tools.schemas           # print the schemas
    python -m tests.tools.schemas --write   # write them into the package
"""

from __future__ import annotations

import argparse
import enum
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import attrs
import jsonschema

from plugind.protocol.client import asks_forms
from plugind.protocol.client.asks_forms import AnswersBody, CountedAnswer, ErrorForm, HealthBody, HeldAnswer, HeldBody
from plugind.protocol.status import inventory_forms

Schema = dict[str, Any]
_LINE = "A line of the stream that is not empty. Ignore one that is not valid: it is of a newer plugind."


@attrs.frozen(eq=False)
class Described:
    """What a schema describes."""

    path: Path
    title: str
    #: The parts that are named by what they are for; each of them is a schema of its own, and the first is the whole.
    parts: Mapping[str, Any]
    #: What is posted may have no other keys; what plugind says may.
    posted: Collection[str] = ()


HANDLERS = Described(
    Path(asks_forms.__file__).with_name("handlers.schema.json"),
    "What plugind and a handler in another process say to each other: docs/remote-handlers.md",
    {
        "line": Annotated[asks_forms.Line, ("description", _LINE)],
        "held": HeldBody,
        "answers": AnswersBody,
        "health": HealthBody,
        "heldAnswer": HeldAnswer,
        "countedAnswer": CountedAnswer,
        "error": ErrorForm,
    },
    ("held", "answers", "health"),
)
INVENTORY = Described(
    Path(inventory_forms.__file__).with_name("inventory.schema.json"),
    "What plugind inventory prints: docs/fleet.md",
    {"inventory": inventory_forms.InventoryForm},
)
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def schema(of: Described = HANDLERS, *, of_newer: bool = True) -> Schema:
    """Return the whole schema; a JSON text is valid if it is the first part.

    Unless it is to be that ``of_newer`` versions of plugind, too, there may be no other keys.
    """
    forms = {
        each.__name__: _object(each, closed=name in of.posted or not of_newer)
        for name, form in of.parts.items()
        for each in _forms_in(form)
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": of.title,
        "$ref": f"#/$defs/{next(iter(of.parts))}",
        "$defs": {name: _schema_of(form) for name, form in of.parts.items()} | dict(sorted(forms.items())),
    }


def _forms_in(kind: Any) -> Iterator[Any]:
    """Yield the forms of objects in a type, that of the type first."""
    if is_typeddict(kind):
        yield kind
        for inner in get_type_hints(kind).values():
            yield from _forms_in(inner)
    for inner in get_args(kind):
        yield from _forms_in(inner)


def _object(form: Any, *, closed: bool) -> Schema:
    hints = get_type_hints(form, include_extras=True)
    found: Schema = {
        "description": inspect.getdoc(form),
        "type": "object",
        "properties": {key: _schema_of(hint) for key, hint in hints.items()},
        "required": [key for key, hint in hints.items() if get_origin(hint) is not NotRequired],
    }
    return {**found, "additionalProperties": False} if closed else found


def _schema_of(kind: Any) -> Schema:
    """Return the schema of a type."""
    match get_origin(kind), get_args(kind):
        case (origin, (of,)) if origin is NotRequired:
            return _schema_of(of)
        case (origin, (of, *keywords)) if origin is Annotated:
            return {**_schema_of(of), **dict(keywords)}
        case (origin, words) if origin is Literal:
            return {"enum": [*words]}
        case (origin, several) if origin in (Union, UnionType):
            return {"anyOf": [_schema_of(of) for of in several]}
        case (origin, (of,)) if origin is list:
            return {"type": "array", "items": _schema_of(of)}
        case (origin, (_, of)) if origin is dict:
            return {"type": "object", "additionalProperties": _schema_of(of)}
        case _ if is_typeddict(kind):
            return {"$ref": f"#/$defs/{kind.__name__}"}
        case _ if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        case _:
            return {"type": _PLAIN[kind]}


def check(part: str, content: object, of: Described = HANDLERS, *, of_newer: bool = False) -> None:
    """Check that what was said is a valid ``part``.

    Raises:
      jsonschema.ValidationError: if it is not.
    """
    _validator(part, of, of_newer=of_newer).validate(content)


@cache
def _validator(part: str, of: Described, *, of_newer: bool) -> Any:
    return jsonschema.Draft202012Validator({**schema(of, of_newer=of_newer), "$ref": f"#/$defs/{part}"})


def text(of: Described) -> str:
    """Return the text of the file."""
    return json.dumps(schema(of), indent=2) + "\n"


def main() -> None:
    """Print the schemas, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files into the package")
    write = parser.parse_args().write
    for of in (HANDLERS, INVENTORY):
        if write:
            of.path.write_text(text(of))
        else:
            print(text(of), end="")


if __name__ == "__main__":
    main()
