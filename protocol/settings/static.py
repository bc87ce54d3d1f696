"""Static devices, and mapped variables of resources, in a file, a variable or an option."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import attrs

from ..errors import ConfigError
from ..leases.mapped import BUILT_IN, ResourceConfig
from ..leases.values import UserLimits
from ..plugins.info import wrong_with_resource
from ..plugins.static_devices import StaticResource, StaticResourceError
from ..values import value
from .kinds import Integer, Kind, ListOf, Path, Text, WrongValueError, of_toml, shown, wrong
from .pools import LIMITS

T = TypeVar("T")

#: One resource in text: its name and the patterns of its devices.
Named = tuple[str, tuple[str, ...]]


@value
class _Texts:
    """A table of strings."""

    words: str = "a table of strings"

    def from_toml(self, value: object) -> Any:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise wrong(value, self.words)
        return value

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002 - it stands in tables alone
        raise wrong(text, self.words)


#: The fields of a resource in a file.
_FIELDS: Final[Mapping[str, Kind]] = {
    "paths": ListOf(Path()),
    "match": _Texts(),
    "id": Text(),
    "nodes": ListOf(Path()),
    "env": _Texts(),
    "permissions": Text(),
    "shared": Integer(1),
    "access": Text(),
}


@value
class StaticKind:
    """A table of resources; in text, ``RESOURCE=PATTERN,…;…`` or a TOML table in braces."""

    words: str = "a table, in which each resource has a table with paths or match"

    def from_toml(self, value: object) -> Any:
        """Return the resources by name."""
        return _by_name(value, self.words, "the devices of", _resource)

    def from_text(self, text: str, here: str) -> Any:
        """Return the resources by name."""
        if text.lstrip().startswith("{"):
            return self.from_toml(of_toml(text, "a table in braces must be one of TOML"))
        return joined(named(word, here) for word in text.split(";") if word)


@value
class ResourcesKind:
    """A table of resources with mapped variables and limits of users; in text, a TOML table in braces."""

    words: str = "a table, in which each resource has a table with env or limits"

    def from_toml(self, value: object) -> Any:
        """Return the resources by name. Only ``env`` takes the place of variables that are built in."""
        found = _by_name(value, self.words, "the resource", _resource_config)
        assert isinstance(value, dict), "it was read"
        built_in = {name: config for name, config in BUILT_IN.items() if "env" not in value.get(name, {"env": {}})}
        return {**found, **{name: attrs.evolve(found[name], env=config.env) for name, config in built_in.items()}}

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002 - it has no paths
        """Return the resources by name."""
        return self.from_toml(of_toml(text, "it must be a table in braces, as in TOML"))


def _by_name(value: object, words: str, what: str, read: Callable[[object], T]) -> dict[str, T]:
    """Return what ``read`` makes of each resource's table."""
    if not isinstance(value, dict):
        raise wrong(value, words)
    found, texts, places = dict[str, T](), list[str](), list[tuple[str, ...]]()
    for name, given in value.items():
        try:
            found[check_resource(name)] = read(given)
        except WrongValueError as error:
            texts += error.each_with_key(f"{what} {shown(name)}")
            places += [(name, *place) for place in error.places]
    if texts:
        raise WrongValueError(*texts, places=places)
    return found


def named(text: str, here: str) -> Named:
    """Return the resource and the patterns of ``RESOURCE=PATTERN,…``; patterns are relative to the directory ``here``.

    Raises:
      WrongValueError: if it is of another form.
    """
    name, given, patterns = text.partition("=")
    paths = [path for path in patterns.split(",") if path]
    if not given or not paths:
        raise WrongValueError(f"{shown(text)} names no devices: give RESOURCE=PATH, such as 'lab/serial=/dev/ttyUSB*'")
    return check_resource(name), tuple(os.path.normpath(os.path.join(here, path)) for path in paths)


def joined(resources: Iterable[Named]) -> Mapping[str, StaticResource]:
    """Return resources by name; one that is named twice has the patterns of both."""
    paths = dict[str, tuple[str, ...]]()
    for name, patterns in resources:
        paths[name] = (*paths.get(name, ()), *patterns)
    return {name: StaticResource(patterns) for name, patterns in paths.items()}


def check_resource(name: str) -> str:
    """Return the name of a resource.

    Raises:
      WrongValueError: if no resource can have it.
    """
    if (why := wrong_with_resource(name)) is not None:
        raise WrongValueError(f"{shown(name)} does not name a resource, such as lab/serial: {why}")
    return name


def _resource(given: object) -> StaticResource:
    return _made(given, "a table with paths or match", _FIELDS, StaticResource)


def _resource_config(given: object) -> ResourceConfig:
    def made(env: Mapping[str, str] | None = None, **limits: Any) -> ResourceConfig:
        return ResourceConfig(env or {}, UserLimits(**limits))

    return _made(given, "a table with env or limits", {"env": _Texts(), **LIMITS}, made)


def _made(given: object, words: str, fields: Mapping[str, Kind], make: Callable[..., T]) -> T:
    if not isinstance(given, dict):
        raise wrong(given, words)
    texts, places, found = list[str](), list[tuple[str, ...]](), dict[str, Any]()
    for key, each in given.items():
        kind = fields.get(key)
        if kind is None:
            texts.append(f"there is no {shown(key)}: it has {', '.join(fields)}")
            places.append((key,))
            continue
        try:
            found[key] = kind.from_toml(each)
        except WrongValueError as error:
            texts += error.each_with_key(key)
            places += [(key,)] * len(error.texts)
    try:
        made = make(**found)
        if not texts:
            return made
    except StaticResourceError as error:
        failed = {place[0] for place in places}
        for key, text in error.problems:
            # A field whose value is lost has its problem already, and what the whole table lacks may be that value.
            if key not in failed and (key or not failed):
                texts.append(text)
                places.append((key,) if key else ())
    except ConfigError as error:
        raise WrongValueError(*texts, str(error), places=[*places, ()]) from None
    raise WrongValueError(*texts, places=places)


def given(resource: StaticResource) -> Mapping[str, Any]:
    """Return the fields of a resource that are not the default."""
    usual = StaticResource(("/",))
    return {
        name: field
        for name in _FIELDS
        if (field := getattr(resource, name)) != getattr(usual, name) or (name == "paths" and field)
    }
