"""Text from outside, made safe to show on a terminal, in a log line or in JSON (faults 21, 22, 91 and 94)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import islice

_SURROGATES = re.compile("[\udc80-\udcff]+")


def escaped(text: str) -> str:
    """Return ``text`` with an escape for every character that does not print as itself.

    These are control characters, bidirectional controls, other invisible characters, and the bytes of a file name that
    is not UTF-8, which become ``\\xNN``.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def encodable(text: str) -> str:
    """Return ``text`` as valid JSON text, with ``\\xNN`` for the bytes of a name that is not UTF-8 (fault 21).

    In an ASCII locale, names that *are* UTF-8 are decoded here.
    """
    return text if text.isascii() else _SURROGATES.sub(_decoded, text)


def _decoded(match: re.Match[str]) -> str:
    return match[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, followed by the number of characters left out."""
    return text if len(text) <= limit else f"{text[:limit]}…(+{len(text) - limit})"


def quoted(text: str) -> str:
    """Return ``text`` in double quotes, as Go's ``%q`` and so the kubelet's messages write it."""
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def listed(texts: Iterable[str]) -> str:
    """Return ``texts`` quoted and in brackets, as Go's ``%q`` writes a list."""
    return f"[{' '.join(map(quoted, texts))}]"


#: The units of a time, in seconds, the longest last.
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span(text: str) -> float | None:
    """Return the seconds of a time, such as ``90``, ``90s``, ``15m``, ``2h`` or ``1.5d``; None if it is none."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        return float(number) * UNITS[unit] if number[-1:].isdecimal() else None
    except ValueError:
        return None


def span_words(seconds: float) -> str:
    """Return a time as :func:`span` takes it, in the longest unit of which it is a whole number."""
    units = (unit for unit in reversed(UNITS) if seconds >= UNITS[unit] and not seconds % UNITS[unit])
    unit = next(units, "s")
    return f"{seconds / UNITS[unit]:.10g}{unit}"


#: How many texts :func:`first_few` names.
FEW = 8


def first_few(texts: Collection[str]) -> str:
    """Return the first of ``texts``, with commas, and how many more there are."""
    more = f" and {len(texts) - FEW} more" if len(texts) > FEW else ""
    return ", ".join(islice(texts, FEW)) + more


def in_seconds(duration: float) -> str:
    """Return a duration for people, such as ``3 s`` for 2.99999."""
    return f"{round(duration, 2) or duration:g} s"
