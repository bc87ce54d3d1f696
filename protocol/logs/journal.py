"""An entry for systemd's journal in its native protocol, in which each field is one line, or has a length before it.

Texts of plugins are field values. A text with a line end is written with its length, so that no text can begin another
field or entry (fault 91). See systemd's "Native Journal Protocol".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..text import cut, encodable
from .lines import MAX_VALUE, Field, Level, shown_fields

_PRIORITIES: Final = {Level.DEBUG: 7, Level.INFO: 6, Level.WARNING: 4, Level.ERROR: 3}
#: The journal takes names of 64 characters, and drops an entry with an invalid name.
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,55}")
IDENTIFIER: Final = "plugind"


def journal_entry(level: Level, message: str, fields: Mapping[str, Field]) -> bytes:
    """Return one entry. ``MESSAGE`` is the text of the log line, and each field ``name`` is also ``PLUGIND_NAME``."""
    parts = [
        _field("MESSAGE", message + shown_fields(fields)),
        _field("PRIORITY", str(_PRIORITIES[level])),
        _field("SYSLOG_IDENTIFIER", IDENTIFIER),
        _field("PLUGIND_EVENT", message),
    ]
    for name, value in fields.items():
        if value is not None and _NAME.fullmatch(name):
            parts.append(_field(f"PLUGIND_{name.upper()}", _text(value)))
    return b"".join(parts)


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return encodable(cut(value, MAX_VALUE))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _field(name: str, text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return b"%b=%b\n" % (name.encode(), data)
    return b"%b\n%b%b\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
