"""Pools of devices, as they are written in a file, a variable or an option.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..plugins import wrong_with_resource
from ..text import cut
from ..trust import TrustedUser
from ..values import value
from .kinds import ListOf, Text, User, WrongValueError, shown, wrong

#: How many characters of a wrong pool are shown.
_SHOWN: Final = 64
_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@value
class PoolGiven:
    """A pool as it is written: its users may have names."""

    name: str
    resource: str
    ids: tuple[str, ...] = ()
    users: tuple[TrustedUser, ...] = ()


@value
class PoolKind:
    """A pool: a table with ``name``, ``resource``, ``ids`` and ``users``; in text, that of ``--pool``."""

    words: str = "a table with a name, a resource, and perhaps ids and users"

    def from_toml(self, value: object) -> Any:
        """Return the pool."""
        if not isinstance(value, dict):
            raise wrong(value, self.words)
        unknown = next((key for key in value if key not in ("name", "resource", "ids", "users")), None)
        if unknown is not None:
            raise WrongValueError(f"a pool has no {shown(unknown)}: it is {self.words}")
        name, resource = value.get("name"), value.get("resource")
        if not isinstance(name, str) or not _POOL_NAME.fullmatch(name):
            raise WrongValueError("the name of a pool has letters, digits, '_', '.' and '-', at most 128")
        ids = ListOf(Text()).from_toml(value.get("ids", []))
        users = ListOf(User()).from_toml(value.get("users", []))
        return _pool(name, resource, ids, users)

    def from_text(self, text: str, here: str) -> Any:
        """Return the pool of ``NAME=RESOURCE[:ID,...][@USER,...]``."""
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
        return _pool(name, resource, tuple(named), tuple(allowed))


def _pool(name: str, resource: object, ids: Any, users: Any) -> PoolGiven:
    if not isinstance(resource, str):
        raise wrong(resource, "the name of a resource, such as vendor.com/gpu")
    why = wrong_with_resource(resource)
    if why is not None:
        raise WrongValueError(f"{resource[:_SHOWN]!r} does not name a resource, such as vendor.com/gpu: {why}")
    return PoolGiven(name, resource, ids, users)
