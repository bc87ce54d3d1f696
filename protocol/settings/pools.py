"""Pools of devices in a file, a variable or an option."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from ..leases.values import UserLimits
from ..plugins.info import wrong_with_resource
from ..text import cut
from ..trust.users import TrustedUser
from ..values import value
from .kinds import Integer, Kind, ListOf, Span, Switch, Text, User, WrongValueError, shown, wrong

#: How many characters of a wrong pool are shown.
_SHOWN: Final = 64
_OF_NAMES: Final = "letters, digits, '_', '.' and '-', at most 128"
_RESOURCE: Final = "the name of a resource, such as vendor.com/gpu"
_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@value
class PoolGiven:
    """A pool as it was given; its users can be names."""

    name: str
    resource: str
    ids: tuple[str, ...] = ()
    users: tuple[TrustedUser, ...] = ()
    limits: UserLimits = attrs.field(factory=UserLimits)


#: The limits of users, which are fields of a pool, and of a resource; see :class:`~.leases.values.UserLimits`.
LIMITS: Final[Mapping[str, Kind]] = {
    "devices_per_user": Integer(0),
    "longest_lease": Span(above_zero=True),
    "longest_wait": Span(),
    "stop_at_longest": Switch(),
}


def limits_given(limits: UserLimits) -> dict[str, Any]:
    """Return the limits that are not the default."""
    usual = UserLimits()
    return {name: found for name in LIMITS if (found := getattr(limits, name)) != getattr(usual, name)}


@value
class PoolKind:
    """A pool: a table with ``name``, ``resource``, ``ids``, ``users`` and limits; in text, the form of ``--pool``."""

    words: str = "a table with a name, a resource, and perhaps ids, users and limits"

    def from_toml(self, value: object) -> Any:
        """Return the pool."""
        if not isinstance(value, dict):
            raise wrong(value, self.words)
        name = value.get("name")
        pool = f"the pool {shown(name)}" if isinstance(name, str) else "a pool without a name"
        unknown = [key for key in value if key not in _FIELDS]
        texts = [f"{pool} has no {shown(key)}: {_meant(key) or f'it is {self.words}'}" for key in unknown]
        places = [(key,) for key in unknown]
        found = dict[str, Any]()
        for field, parse in _FIELDS.items():
            try:
                found[field] = parse(value.get(field))
            except WrongValueError as error:
                texts += (f"{pool}: {text}" for text in error.each_with_key(field))
                places += [(field,)] * len(error.texts)
        if texts:
            raise WrongValueError(*texts, places=places)
        limits = UserLimits(**{name: found.pop(name) for name in LIMITS if name in value})
        return PoolGiven(**{name: found[name] for name in found if name not in LIMITS}, limits=limits)

    def from_text(self, text: str, here: str) -> Any:
        """Parse ``NAME=RESOURCE[:ID,...][@USER,...]``."""
        name, given, rest = text.partition("=")
        if not given or not _POOL_NAME.fullmatch(name):
            raise WrongValueError(
                f"{cut(text, _SHOWN)!r} is no pool: give a name of letters, digits, '_', '.' and '-', and the resource,"
                " such as lab=vendor.com/gpu:GPU-0,GPU-1@alice"
            )
        devices, _, users = rest.rpartition("@") if "@" in rest else (rest, "", "")
        resource, some, ids = devices.partition(":")
        named = ids.split(",") if some else []
        if "" in named:
            raise WrongValueError(f"{text!r} names a device without an id: give ids with a comma between two")
        allowed = [User().from_text(user, here) for user in users.split(",")] if users else []
        return PoolGiven(name, _resource(resource), tuple(named), tuple(allowed))


def _meant(key: str) -> str | None:
    from difflib import get_close_matches

    # A key in a file can have any length, and comparing a long one would be slow.
    close = get_close_matches(key[:_SHOWN], _FIELDS, 1)
    return f"did you mean {close[0]}?" if close else None


def _name(name: object) -> str:
    if name is None:
        raise WrongValueError(f"is missing: it must have {_OF_NAMES}")
    if not isinstance(name, str) or not _POOL_NAME.fullmatch(name):
        raise WrongValueError(f"is {shown(name)}: it must have {_OF_NAMES}")
    return name


def _resource(resource: object) -> str:
    if resource is None:
        raise WrongValueError(f"is missing: it must be {_RESOURCE}")
    if not isinstance(resource, str):
        raise wrong(resource, _RESOURCE)
    why = wrong_with_resource(resource)
    if why is not None:
        raise WrongValueError(f"{resource[:_SHOWN]!r} does not name a resource, such as vendor.com/gpu: {why}")
    return resource


def _list_of(kind: Kind) -> Callable[[object], Any]:
    return lambda given: () if given is None else ListOf(kind).from_toml(given)


def _optional(kind: Kind) -> Callable[[object], Any]:
    return lambda given: None if given is None else kind.from_toml(given)


#: The fields of a pool in a file, and their parsers, which get None for a missing field.
_FIELDS: Final[Mapping[str, Callable[[object], Any]]] = {
    "name": _name,
    "resource": _resource,
    "ids": _list_of(Text()),
    "users": _list_of(User()),
    **{name: _optional(kind) for name, kind in LIMITS.items()},
}
