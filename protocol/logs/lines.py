"""The form of a log line: a constant message and variable fields. Each event is one line, whatever its fields hold."""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from ..text import cut, encodable, escaped

#: The most characters of one value (fault 94).
MAX_VALUE = 1024

#: A value in a log line; None is left out.
Field = str | int | float | bool | None


class Level(enum.IntEnum):
    """The severity of an event."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Format(enum.StrEnum):
    """The format of lines."""

    TEXT = "text"
    JSON = "json"


class Logger(Protocol):
    """The log of an actor. A call takes microseconds and never blocks."""

    def enabled(self, level: Level) -> bool:
        """Return whether events of ``level`` are written. A caller can then save computing their fields."""

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """Log the constant ``message`` with its variable ``fields``."""


class Silent:
    """A logger that writes nothing."""

    def enabled(self, level: Level) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """Write nothing."""


SILENT = Silent()


#: A word that needs no quotes: printable ASCII without a blank, ``"``, ``=`` and a backslash.
_WORD = re.compile(rf"[!#-<>-\[\]-~]{{1,{MAX_VALUE}}}")
_NAMES = {level: level.name.lower() for level in Level}


def text_line(time: float, level: Level, message: str, fields: Mapping[str, Field]) -> str:
    """Return one line of ``key=value`` pairs; ``time`` is unix time in seconds."""
    return f"time={timestamp(time)} level={_NAMES[level]} msg={_quoted_message(message)}{shown_fields(fields)}\n"


def shown_fields(fields: Mapping[str, Field]) -> str:
    """Return ``fields`` as they follow the message, each after a blank."""
    shown = ""
    for key, value in fields.items():
        if value is not None:
            # A fast path: most values are short words or small numbers.
            kind = type(value)
            plain = kind is int or (kind is str and _WORD.fullmatch(value) is not None)  # type: ignore[arg-type]
            shown += f" {key}={value if plain else _value(value)}"
    return shown


def json_line(time: float, level: Level, message: str, fields: Mapping[str, Field]) -> str:
    """Return one line with a JSON object."""
    line: dict[str, Field] = {"time": timestamp(time), "level": _NAMES[level], "msg": message}
    for key, value in fields.items():
        if value is not None:
            line[key] = encodable(cut(value, MAX_VALUE)) if isinstance(value, str) else value
    return json.dumps(line) + "\n"


def timestamp(time: float) -> str:
    """Return unix ``time`` as RFC 3339 in UTC, to the millisecond."""
    whole = math.floor(time)  # A clock that was never set may be before 1970.
    return f"{_second(whole)}.{int((time - whole) * 1000):03d}Z"


@functools.lru_cache(maxsize=2)
def _second(unix: int) -> str:
    """Return the date and time of a second, cached because most lines share their second with the line before."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _value(value: Field) -> str:
    if isinstance(value, str):
        return _quoted(value if len(value) <= MAX_VALUE else cut(value, MAX_VALUE))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    """Quote text that is not one plain word, and escape characters that do not print (faults 22 and 91)."""
    if text.isprintable() and text and not (" " in text or '"' in text or "=" in text or "\\" in text):
        return text
    # Backslashes first: an escape in the text must not look like one of ours.
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


#: Most messages are constants.
_quoted_message = functools.lru_cache(maxsize=256)(_quoted)
