"""What a caller asks for in JSON, read strictly: each error says what to give instead."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeVar

from ..text import cut, encodable
from .json_values import WRONG_FORM, exactly, number

T = TypeVar("T")

#: Characters of one text; the id of a lease has a limit of its own.
MAX_TEXT: Final = 1024
#: Seconds of a wait and of a lease that ends at a time: 68 years.
MAX_SECONDS: Final = 2.0**31
#: Characters of a wrong value that are shown.
_SHOWN: Final = 64


class RequestError(Exception):
    """What is asked cannot be understood; the text says what to give instead."""


class Fields:
    """The keys of an object, each of which is read once."""

    def __init__(self, content: Mapping[str, object], name: str = "") -> None:
        """Read ``content``; ``name`` is what stands before each key in errors."""
        self._content = content
        self._name = name
        self._keys: list[str] = []

    def get(self, key: str, read: Callable[[object], T], hint: str, default: T) -> T:
        """Return what ``read`` makes of the value at ``key``, or ``default`` if there is none.

        Raises:
          RequestError: if ``read`` raises one of :data:`~.json_values.WRONG_FORM`; the text says to give ``hint``.
        """
        self._keys.append(key)
        return self._read(key, read, hint) if key in self._content else default

    def needed(self, key: str, read: Callable[[object], T], hint: str) -> T:
        """Return what ``read`` makes of the value at ``key``, which has to be there.

        Raises:
          RequestError: if it is not there, or as :meth:`get` does.
        """
        self._keys.append(key)
        if key not in self._content:
            raise RequestError(f"there is no {self._name}{key}: give {hint}")
        return self._read(key, read, hint)

    def _read(self, key: str, read: Callable[[object], T], hint: str) -> T:
        found = self._content[key]
        try:
            return read(found)
        except WRONG_FORM as error:
            raise RequestError(f"{self._name}{key} is {_shown(found)}: give {hint}") from error

    def end(self) -> None:
        """Check that there is no other key.

        Raises:
          RequestError: if there is one.
        """
        unknown = sorted(self._content.keys() - set(self._keys))
        if unknown:
            there = ", ".join(f"{self._name}{key}" for key in self._keys)
            name = self._name + cut(encodable(unknown[0]), _SHOWN)
            raise RequestError(f"{name} is not known here: there is {there}")


def _shown(found: object) -> str:
    """Return a wrong value in few words. What is nested may be too deep to be written."""
    match found:
        case dict():
            return "an object" if found else "an empty object"
        case list():
            return "a list" if found else "an empty list"
        case _:
            return cut(json.dumps(found), _SHOWN)


def fields_of(body: bytes, example: str) -> Fields:
    """Return the keys of a body.

    Raises:
      RequestError: if it is no JSON object, or one has a key twice; the text shows ``example``.
    """
    try:
        content = exactly(dict, json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant))
    except _TwiceError as error:
        raise RequestError(f"{error}: give each key once") from error
    except WRONG_FORM as error:
        raise RequestError(f"the body is no JSON object: give one such as {example}") from error
    return Fields(content)


class _TwiceError(Exception):
    """A key stands twice in an object."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {}
    for key, found in pairs:
        if key in content:
            raise _TwiceError(f"{_shown(key)} stands twice in an object")
        content[key] = found
    return content


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# --- readers ----------------------------------------------------------------------------------------------------------


def check_range(least: float, most: float, found: float) -> None:
    """Check that a number lies between two others.

    Raises:
      ValueError: if it does not.
    """
    if not least <= found <= most:
        raise ValueError(f"{found} is not from {least} to {most}")


def from_one(most: int) -> Callable[[object], int]:
    """Return a reader of whole numbers from 1 to ``most``."""

    def read(found: object) -> int:
        whole = exactly(int, found)
        check_range(1, most, whole)
        return whole

    return read


def seconds(found: object) -> float:
    """Read a time of 0 seconds or more."""
    time = number(found)
    check_range(0, MAX_SECONDS, time)
    return time


def some_seconds(found: object) -> float:
    """Read a time of more than 0 seconds."""
    time = seconds(found)
    check_range(math.ulp(0.0), MAX_SECONDS, time)
    return time


def word(found: object) -> str:
    """Read a text that is not empty, and that can be encoded."""
    text = exactly(str, found)
    check_range(1, MAX_TEXT, len(text))
    text.encode()
    return text


def or_none(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a reader that also takes null."""
    return lambda found: None if found is None else read(found)
