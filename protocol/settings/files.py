"""Configuration files: their values, and their problems. ``tomllib`` is imported for the first file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from ..text import cut, escaped
from .given import Given, SettingProblem, Source
from .kinds import WrongValueError, shown
from .table import PARTS, Setting, settings

#: The parts of a dotted key. The tables of a list have their index as a part: ``("leases", "pools", "0", "name")``.
Path = tuple[str, ...]

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER: Final = re.compile(rf"[ \t]*(\[{{1,2}})[ \t]*({_KEY})[ \t]*\]")
_ASSIGNED: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_PARTS: Final = re.compile(_PART)


def lines_of(text: str) -> dict[Path, int]:
    """Return the first line of each key and of each table, counted from 1."""
    lines: dict[Path, int] = {}
    lengths: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        if (header := _HEADER.match(line)) is not None:
            table = _path(header[2])
            lines.setdefault(table, number)
            if header[1] == "[[":
                index = lengths.get(table, 0)
                lengths[table] = index + 1
                table = (*table, str(index))
                lines.setdefault(table, number)
        elif (assigned := _ASSIGNED.match(line)) is not None:
            lines.setdefault(table + _path(assigned[1]), number)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a key, or of its table; None if neither is found."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    # A dotted key can begin a table that has no line of its own.
    return min((line for other, line in lines.items() if other[: len(path)] == path), default=None)


def _path(key: str) -> Path:
    return tuple(part.strip("\"'") for part in _PARTS.findall(key))


#: How many problems of one file are reported.
MOST_PROBLEMS: Final = 20
#: How many characters of an unknown key are shown, and compared with others.
_SHOWN: Final = 64
#: The most dots of a line. tomllib's memory grows with the square of the parts of a dotted key (1 GB for 30,000 parts).
MOST_DOTS: Final = 200
_AT_LINE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")
_AT_END: Final = " (at end of document)"


@attrs.frozen
class Parsed:
    """The contents of a file."""

    given: tuple[Given, ...]
    #: All problems. If there are any, no value may be used.
    problems: tuple[SettingProblem, ...] = ()
    #: The good values of lists that also have bad values; they are checked to find more problems.
    rest: tuple[Given, ...] = ()


def parse(name: str, raw: bytes) -> Parsed:
    """Return the settings in the file ``name`` with the content ``raw``."""
    import tomllib

    if raw.startswith(codecs.BOM_UTF8):
        advice = "it begins with a byte order mark, which TOML does not have: save it as UTF-8 without one"
        return Parsed((), (SettingProblem(Source("file", name, 1), advice),))
    for number, row in enumerate(raw.split(b"\n"), 1):
        if row.count(b".") > MOST_DOTS:
            advice = f"the line has more than {MOST_DOTS} dots: begin a new line in a long list"
            return Parsed((), (SettingProblem(Source("file", name, number), advice),))
    try:
        text = raw.decode()
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Parsed((), (SettingProblem(Source("file", name, line), "it is not UTF-8"),))
    except RecursionError:
        return Parsed((), (SettingProblem(Source("file", name), "lists or tables in it are nested too deeply"),))
    except ValueError as error:
        return Parsed((), (_syntax_error(name, raw, error),))
    reader = _Reader(name, lines_of(text))
    given = tuple(reader.read(content, ()))
    return Parsed(given, tuple(reader.problems), tuple(reader.rest))


def _syntax_error(name: str, raw: bytes, error: ValueError) -> SettingProblem:
    found = _AT_LINE.search(str(error))
    if str(error).endswith(_AT_END):
        what = str(error).removesuffix(_AT_END)
        return SettingProblem(
            Source("file", name, raw.rstrip().count(b"\n") + 1), f"it is not TOML: {what} (at the end)"
        )
    if found is None:
        return SettingProblem(Source("file", name), f"it is not TOML: {cut(escaped(str(error)), 2 * _SHOWN)}")
    what = cut(escaped(str(error)[: found.start()]), 2 * _SHOWN)
    return SettingProblem(Source("file", name, int(found[1])), f"it is not TOML: {what} (column {found[2]})")


@attrs.define
class _Reader:
    name: str
    lines: dict[tuple[str, ...], int]
    problems: list[SettingProblem] = attrs.field(factory=list)
    rest: list[Given] = attrs.field(factory=list)

    def read(self, table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[Given]:
        for name, value in table.items():
            if len(self.problems) >= MOST_PROBLEMS:
                return
            path = (*above, name)
            key = ".".join(path)
            setting = settings().get(key)
            if setting is not None and "." not in name:
                yield from self._value(setting, value, path)
            elif key in PARTS and "." not in name:
                if isinstance(value, dict):
                    yield from self.read(value, path)
                else:
                    self._note(path, f"{key} is {shown(value)}: it must be a table, [{key}]")
            else:
                self._note(path, unknown_key(key, _dotted(path)))

    def _value(self, setting: Setting, value: Any, path: tuple[str, ...]) -> Iterator[Given]:
        try:
            found = setting.from_toml(value)
        except WrongValueError as error:
            for text, place in zip(error.each_with_key(setting.key), error.places, strict=True):
                self._note((*path, *place), text)
            if error.rest is not None:
                self.rest.append(Given(setting.key, error.rest, self._source(path)))
        else:
            names = value if isinstance(value, dict) else map(str, range(len(value) if isinstance(value, list) else 0))
            within = {name: self._source((*path, name)) for name in names}
            yield Given(setting.key, found, self._source(path), within)

    def _note(self, path: tuple[str, ...], text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(SettingProblem(self._source(path), text))

    def _source(self, path: tuple[str, ...]) -> Source:
        return Source("file", self.name, line_of(self.lines, path))


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(repr(part) if "." in part else part for part in path)


def _meant(key: str) -> str | None:
    """Return the key that is most like ``key``: in its table, if the table exists, else in any."""
    from difflib import get_close_matches

    keys = [*settings(), *PARTS]
    table, _, name = key.rpartition(".")
    # Of equal names the first one counts.
    elsewhere = {other.rpartition(".")[2]: other for other in reversed(keys)}
    beside = {last: other for other in keys for above, _, last in [other.rpartition(".")] if above == table}
    # The key's own table is not meant, since the key names it correctly.
    whole = {other: other for other in keys if other != table}
    by_name = [(name, beside), (name, elsewhere)]
    for word, others in [*by_name, (key, whole)] if table in ("", *PARTS) else [(key, whole), *by_name]:
        close = get_close_matches(word, others, 1)
        if close:
            return others[close[0]]
    return None


def unknown_key(key: str, shown_as: str | None = None) -> str:
    """Return the text about an unknown key, with a suggestion if one is similar."""
    found = _meant(key[:_SHOWN])
    meant = "" if found is None else f": did you mean {found}?"
    return f"unknown key {cut(escaped(shown_as or key), _SHOWN)}{meant}"
