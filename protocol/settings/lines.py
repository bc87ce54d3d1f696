"""The lines of a TOML file in which its keys are: tomllib does not tell them.

It is a search, and no parser: a line inside of a string with many lines may look like a key. So it is used only to tell
people where to look.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from typing import Final

#: The parts of a dotted key. The tables of a list have their index as a part: ``("leases", "pools", "0", "name")``.
Path = tuple[str, ...]

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER: Final = re.compile(rf"[ \t]*(\[{{1,2}})[ \t]*({_KEY})[ \t]*\]")
_ASSIGNED: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_PARTS: Final = re.compile(_PART)


def lines_of(text: str) -> dict[Path, int]:
    """Return the first line of each key and of each table, from 1."""
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
    """Return the line of a key, or of the table that it is in; None if neither is found."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    # A key with dots may begin a table that has no line of its own.
    return min((line for other, line in lines.items() if other[: len(path)] == path), default=None)


def _path(key: str) -> Path:
    return tuple(part.strip("\"'") for part in _PARTS.findall(key))
