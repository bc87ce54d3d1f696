"""Values of settings as JSON and as TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..leases.mapped import ResourceConfig
from ..plugins.static_devices import StaticResource
from . import static
from .kinds import OFF
from .pools import PoolGiven, limits_given

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def to_json(value: Any) -> Any:
    """Return the value of a setting for JSON."""
    match value:
        case tuple():
            return list(map(_item, value))
        case Mapping():
            return {name: _item(each) for name, each in value.items()}
        case _:
            return value


def _item(value: Any) -> Any:
    """Return one value of a list; a pair of numbers is a range of uids."""
    match value:
        case (first, last):
            return f"{first}-{last}"
        case PoolGiven():
            pool = {"name": value.name, "resource": value.resource, "ids": value.ids, "users": value.users}
            return {**{name: to_json(each) for name, each in pool.items() if each}, **limits_given(value.limits)}
        case ResourceConfig():
            return {"env": dict(value.env), **limits_given(value.limits)}
        case StaticResource():
            return {name: to_json(each) for name, each in static.given(value).items()}
        case _:
            return value


def to_toml(value: Any) -> str:
    """Return a JSON value as TOML, in one line; null is ``"off"``."""
    match value:
        case None:
            return string(OFF)
        case bool():
            return "true" if value else "false"
        case str():
            return string(value)
        case list():
            return f"[{', '.join(map(to_toml, value))}]"
        case dict():
            pairs = ", ".join(f"{_key(name)} = {to_toml(member)}" for name, member in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case _:
            return repr(value)


def string(text: str) -> str:
    """Return ``text`` as a TOML string in which each character is visible."""
    return f'"{"".join(map(_character, text))}"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else string(name)
