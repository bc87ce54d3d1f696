"""Values that were given for settings, their sources, and which of them are in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from ..errors import ConfigError
from ..values import value

#: The source of a value. Later kinds have precedence.
SourceKind = Literal["default", "file", "variable", "flag"]


@value
class Source:
    """The place from which a value comes."""

    kind: SourceKind
    #: The path of a file, the name of a variable, or an option.
    name: str = ""
    #: The line of the file with the key; None if it was not found.
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case "default":
                return "default"
            case "file":
                return self.name if self.line is None else f"{self.name}:{self.line}"
            case _:
                return self.name


BY_DEFAULT = Source("default")


@value
class Given:
    """A value that somebody gave to a setting."""

    key: str
    value: Any
    source: Source
    #: The sources of the entries of a table, by name, and of a list, by index.
    within: Mapping[str, Source] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class SettingProblem:
    """A problem of a configuration, and its place."""

    source: Source
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {self.text}"


class SettingsError(ConfigError):
    """Some settings cannot be used. The text is the first problem, and the number of others."""

    def __init__(self, problems: tuple[SettingProblem, ...]) -> None:
        more = ""
        if len(problems) > 1:
            from shlex import quote

            places = {(problem.source.kind, problem.source.name) for problem in problems}
            ((kind, name), *others) = places
            file = f" {quote(name)}" if kind == "file" and not others else ""
            more = f" (and {len(problems) - 1} more: see 'plugind config check{file}')"
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


def merged(layers: Iterable[Iterable[Given]]) -> dict[str, Given]:
    """Return the value of each key that is in force: that of the last layer. Tables are merged."""
    result: dict[str, Given] = {}
    for layer in layers:
        for given in layer:
            before = result.get(given.key)
            result[given.key] = given if before is None else _joined(before, given)
    return result


def _joined(before: Given, given: Given) -> Given:
    if not isinstance(given.value, Mapping):
        return given
    return attrs.evolve(given, value={**before.value, **given.value}, within={**before.within, **given.within})
