"""Checks of configured values. A value out of range is an error of the operator, and the error names its field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .errors import ConfigError

#: A validator of attrs, called with the instance, the attribute and the value.
Check = Callable[[object, "attrs.Attribute[Any]", Any], None]


def _number(allowed: Callable[[float], bool], words: str) -> Check:
    """Return a validator that accepts only finite numbers that are ``allowed``."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not (isinstance(value, int | float) and math.isfinite(value) and allowed(value)):
            raise ConfigError(f"{type(owner).__name__}.{attribute.name} is {value!r}: it must be {words}")

    return check


above_zero = _number(lambda value: value > 0, "a finite number above 0")
not_negative = _number(lambda value: value >= 0, "a finite number, 0 or more")
at_least_one = _number(lambda value: value >= 1, "a finite number, 1 or more")
at_least_ten = _number(lambda value: value >= 10, "a finite number, 10 or more")


def instance_of(kind: type) -> Check:
    """Return a validator that accepts only instances of ``kind``."""

    def check(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise ConfigError(f"{type(owner).__name__}.{attribute.name} is {value!r}: it must be a {kind.__name__}")

    return check


def refusing_text(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Have the fields of a class that are collections refuse a text, whose characters would be their members.

    It is a ``field_transformer`` of attrs.
    """
    return [
        _refusing_text(field) if str(field.type).startswith(("tuple[", "frozenset[")) else field for field in fields
    ]


def _refusing_text(field: attrs.Attribute[Any]) -> attrs.Attribute[Any]:
    def refuse(value: object, owner: object, attribute: attrs.Attribute[Any]) -> object:
        if isinstance(value, str):
            example = f"Root({value!r})" if str(attribute.type).startswith("tuple[Root,") else repr(value)
            raise ConfigError(
                f"{type(owner).__name__}.{attribute.name} is {value!r}: it must be a collection, such as ({example},)"
            )
        return value

    first = attrs.Converter(refuse, takes_self=True, takes_field=True)
    return field.evolve(converter=first if field.converter is None else attrs.converters.pipe(first, field.converter))


def each_instance_of(kind: type) -> Check:
    """Return a validator that accepts only tuples and lists of instances of ``kind``."""
    each = instance_of(kind)

    def check(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, tuple | list):
            words = f"a tuple, each of which is a {kind.__name__}"
            raise ConfigError(f"{type(owner).__name__}.{attribute.name} is {value!r}: it must be {words}")
        for one in value:
            each(owner, attribute, one)

    return check


class FixedSeconds(dict[str, float]):
    """Seconds by plugin type, never changed, so that they have a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def by_type(seconds: Mapping[str, float]) -> FixedSeconds:
    """Return a copy of ``seconds`` by plugin type."""
    return FixedSeconds(seconds)


def each_above_zero(owner: object, attribute: attrs.Attribute[Mapping[str, float]], value: Mapping[str, float]) -> None:
    """Check that all values of a mapping are above 0."""
    for seconds in value.values():
        above_zero(owner, attribute, seconds)


def or_none(check: Check) -> Check:
    """Return a validator that accepts None besides what ``check`` accepts."""

    def check_unless_none(owner: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            check(owner, attribute, value)

    return check_unless_none


def copied(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return a copy, which whoever has given it does not change."""
    return dict(given)
