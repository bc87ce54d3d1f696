"""The forms of a setting's values: in a configuration file, and as text in a variable or an option.

A file has typed values, which are not converted: ``true`` is no number, and a string is no list. In text, numbers and
words stand for themselves, and a list has separators.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from ..errors import ConfigError
from ..text import cut, escaped, quoted, span
from ..trust.users import MAX_UID, Trust, parse_trusted_user
from ..values import value

#: The word for None, which TOML lacks.
OFF: Final = "off"
#: In a list, the word for the default entries.
DEFAULT: Final = "default"
#: How many characters of a wrong value are shown.
_SHOWN: Final = 64
#: Times are shorter, as those of requests are: 68 years.
_MOST_SECONDS: Final = 2.0**31


class WrongValueError(ValueError):
    """A setting cannot have this value. A text that begins with "is" or "must" continues the key."""

    def __init__(self, *texts: str, rest: Any = None, places: Iterable[tuple[str, ...]] = ()) -> None:
        super().__init__("; ".join(texts))
        self.texts = texts
        #: For each text, its place in the value: the index in a list, from 0, and the key in a table.
        self.places = (*places,) or ((),) * len(texts)
        #: The good values of a list, which are checked for more problems.
        self.rest = rest

    def with_key(self, key: str) -> str:
        """Return the texts, each after the key."""
        return "; ".join(self.each_with_key(key))

    def each_with_key(self, key: str) -> tuple[str, ...]:
        """Return each text after the key."""
        return tuple(f"{key} {text}" if text.startswith(("is ", "must ")) else f"{key}: {text}" for text in self.texts)


class Kind(Protocol):
    """The form of a setting's values."""

    @property
    def words(self) -> str:
        """A description of a value for people: ``a number of seconds``."""

    def from_toml(self, value: object) -> Any:
        """Convert a ``value`` from a file.

        Raises:
          WrongValueError: if it is not valid.
        """

    def from_text(self, text: str, here: str) -> Any:
        """Convert ``text``. Paths are relative to the directory ``here``.

        Raises:
          WrongValueError: if it is not valid.
        """


def wrong(value: object, words: str) -> WrongValueError:
    """Return the error for a ``value`` that does not match ``words``."""
    return WrongValueError(f"is {shown(value)}: it must be {words}")


def shown(value: object) -> str:
    """Format a value of a file for an error."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return cut(quoted(value[: _SHOWN + 1]), _SHOWN + 2)
        case int() if abs(value) >= 10**_SHOWN:
            return "so large a number"
        case int() | float():
            return f"{value}"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return cut(escaped(str(value)), _SHOWN)


@value
class Number:
    """A finite number from ``least`` to ``most``. The field checks its own limits."""

    least: float = -math.inf
    most: float = math.inf

    @property
    def words(self) -> str:
        """A description of a value."""
        if math.isfinite(self.most):
            return f"a number from {self.least:g} to {self.most:.10g}"
        return "a number" if self.least == -math.inf else f"a number, {self.least:g} or more"

    def from_toml(self, value: object) -> Any:
        """Return a number as a float."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(value, self.words)
        try:
            number = float(value)
        except OverflowError:
            raise wrong(value, self.words) from None
        if not (math.isfinite(number) and self.least <= number <= self.most):
            raise wrong(value, self.words)
        return number

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Parse a number."""
        try:
            return self.from_toml(float(text))
        except ValueError:
            raise wrong(text, self.words) from None


@value
class Integer:
    """A whole number, ``least`` or more."""

    least: int | None = None

    @property
    def words(self) -> str:
        """A description of a value."""
        return "a whole number" if self.least is None else f"a whole number, {self.least} or more"

    def from_toml(self, value: object) -> Any:
        """Return the number, which must be an integer."""
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
            raise wrong(value, self.words)
        if self.least is not None and value < self.least:
            raise wrong(value, self.words)
        return value

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Parse a number."""
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise wrong(text, self.words)
        return self.from_toml(int(text))


@value
class Span:
    """A time: a number of seconds, or text such as ``"8h"``."""

    above_zero: bool = False

    @property
    def words(self) -> str:
        """A description of a value."""
        return 'seconds above 0, or a time such as "8h"' if self.above_zero else 'seconds, or a time such as "30m"'

    def from_toml(self, value: object) -> Any:
        """Return the seconds of a time."""
        seconds = span(value) if isinstance(value, str) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _MOST_SECONDS:
            raise wrong(value, self.words)
        if self.above_zero and not seconds:
            raise wrong(value, self.words)
        return float(seconds)

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Parse a time."""
        return self.from_toml(text)


@value
class Switch:
    """True or false."""

    words: str = "true or false"

    def from_toml(self, value: object) -> Any:
        """Return true or false; 1 is neither."""
        if not isinstance(value, bool):
            raise wrong(value, self.words)
        return value

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Parse ``true`` or ``false``."""
        if text not in ("true", "false"):
            raise wrong(text, self.words)
        return text == "true"


def of_toml(text: str, advice: str) -> Any:
    """Parse ``text`` as a TOML value.

    Raises:
      WrongValueError: if it is not valid; its text ends with ``advice``.
    """
    import tomllib

    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        found = {}
    if len(found) != 1:  # After a line break there can be other keys.
        raise WrongValueError(f"is {shown(text)}: {advice}")
    return found["value"]


class _AsString:
    """A value that is a string both in a file and in text."""

    def _parse(self, text: str, here: str | None) -> Any:
        raise NotImplementedError

    @property
    def words(self) -> str:
        """A description of a value."""
        raise NotImplementedError

    def from_toml(self, value: object) -> Any:
        """Parse the string."""
        if not isinstance(value, str):
            raise wrong(value, self.words)
        return self._parse(value, None)

    def from_text(self, text: str, here: str) -> Any:
        """Parse the text."""
        return self._parse(text, here)


@value
class Word(_AsString):
    """One of several words."""

    of: tuple[str, ...]

    @property
    def words(self) -> str:
        """A description of a value."""
        return " or ".join(f'"{word}"' for word in self.of)

    def _parse(self, text: str, here: str | None) -> Any:  # noqa: ARG002
        if text not in self.of:
            raise wrong(text, self.words)
        return text


@value
class Text(_AsString):
    """Text that is not empty."""

    words: str = "a string that is not empty"

    def _parse(self, text: str, here: str | None) -> Any:
        if not text:
            raise wrong(text, self.words)
        return os.fsencode(text).decode("utf-8", "surrogateescape") if here is not None else text


@value
class Path(_AsString):
    """A path. In a file it must be absolute; in text it can be relative to the working directory."""

    words: str = "an absolute path"
    #: Words that can replace a path.
    or_words: tuple[str, ...] = ()
    #: Whether a relative path in text stays relative: the path of a socket must be short.
    relative: bool = False

    def _parse(self, text: str, here: str | None) -> Any:
        if text in self.or_words:
            return text
        if not text or "\0" in text or (here is None and not text.startswith("/")):
            raise wrong(text, " or ".join((self.words, *(f'"{word}"' for word in self.or_words))))
        return text if self.relative and here is not None else os.path.normpath(os.path.join(here or "/", text))


@value
class User:
    """A uid, a range of uids such as ``"1000-1999"``, or the name of a user."""

    words: str = 'a uid, a range such as "1000-1999", or the name of a user'

    def from_toml(self, value: object) -> Any:
        """Return a uid, a range or a name."""
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise wrong(value, self.words)
        try:
            return Trust((value,)).uids[0] if isinstance(value, int) else parse_trusted_user(value)
        except ConfigError as error:
            raise WrongValueError(str(error)) from None

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Return a uid, a range or a name."""
        return self.from_toml(text)


@value
class Group:
    """A gid, or the name of a group."""

    words: str = "a gid, or the name of a group"

    def from_toml(self, value: object) -> Any:
        """Return a gid or a name."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise wrong(value, self.words)
        if isinstance(value, int) and not 0 <= value <= MAX_UID:
            raise WrongValueError(f"{value} is no gid: they end with {MAX_UID}")
        return value

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Return a gid or a name."""
        return self.from_toml(text)


@value
class OrOff:
    """A value of another kind, or ``"off"`` for None."""

    kind: Kind

    @property
    def words(self) -> str:
        """A description of a value."""
        return f'{self.kind.words}, or "{OFF}"'

    def from_toml(self, value: object) -> Any:
        """Return None for ``"off"``."""
        return None if value == OFF else self._in_own_words(lambda: self.kind.from_toml(value), value)

    def from_text(self, text: str, here: str) -> Any:
        """Return None for ``off``."""
        return None if text == OFF else self._in_own_words(lambda: self.kind.from_text(text, here), text)

    def _in_own_words(self, parse: Callable[[], Any], value: object) -> Any:
        try:
            return parse()
        except WrongValueError as error:
            if str(error) == str(wrong(value, self.kind.words)):
                raise wrong(value, self.words) from None
            raise


@value
class ListOf:
    """A list of values, without repetitions. In text it has separators, or is a TOML list."""

    kind: Kind
    separator: str = ","
    #: Whether repeated values are joined.
    joins_equal: bool = True

    @property
    def words(self) -> str:
        """A description of a value."""
        return f"a list, of which each is {self.kind.words}"

    def from_toml(self, value: object) -> Any:
        """Return the values."""
        if not isinstance(value, list):
            raise wrong(value, self.words)
        return self._each_parsed(self.kind.from_toml, value)

    def from_text(self, text: str, here: str) -> Any:
        """Return the values of a list in brackets, or else those between the separators."""
        if not text.lstrip().startswith("["):
            words = [word for word in text.split(self.separator) if word]
            return self._each_parsed(lambda word: self.kind.from_text(word, here), words)
        return self._each_parsed(
            lambda element: (
                self.kind.from_text(element, here) if isinstance(element, str) else self.kind.from_toml(element)
            ),
            of_toml(text, 'a list in brackets must be one of TOML, such as ["a", "b"]'),
        )

    def _each_parsed(self, parse: Callable[[Any], Any], values: Iterable[object]) -> tuple[Any, ...]:
        """Return the parsed values, or raise one error with the problems of all."""
        found = list[Any]()
        # Of values with the same problem, only the first is reported.
        wrong_at = dict[str, tuple[str, ...]]()
        for index, given in enumerate(values):
            try:
                found.append(parse(given))
            except WrongValueError as error:
                for text, place in zip(error.texts, error.places, strict=True):
                    wrong_at.setdefault(text, (str(index), *place))
        all_of_them = tuple(dict.fromkeys(found) if self.joins_equal else found)
        if wrong_at:
            raise WrongValueError(*wrong_at, rest=all_of_them, places=wrong_at.values())
        return all_of_them


@value
class ByType:
    """A table by plugin type or resource; in text, ``TYPE=VALUE,…`` or a TOML table in braces."""

    kind: Kind
    #: The kind of the keys.
    of: str = "plugin type"

    @property
    def words(self) -> str:
        """A description of a value."""
        return f"a table, in which each {self.of} has {self.kind.words}"

    @property
    def _value(self) -> str:
        return "NUMBER" if isinstance(self.kind, Number | Integer) else "VALUE"

    def from_toml(self, value: object) -> Any:
        """Return the table."""
        if not isinstance(value, dict):
            raise wrong(value, self.words)
        found, texts = dict[str, Any](), list[str]()
        for name, given in value.items():
            if not name:
                texts.append(f"the name of a {self.of} is empty")
            try:
                found[name] = self.kind.from_toml(given)
            except WrongValueError as error:
                texts += error.each_with_key(f"the value of {shown(name)}")
        if texts:
            raise WrongValueError(*texts)
        return found

    def from_text(self, text: str, here: str) -> Any:
        """Return the table."""
        if text.lstrip().startswith("{"):
            return self.from_toml(of_toml(text, "a table in braces must be one of TOML, such as { name = 1 }"))
        table = {}
        for word in filter(None, text.split(",")):
            name, given, number = word.rpartition("=")
            if not given or not name:
                raise wrong(text, f"{self.of.rpartition(' ')[2].upper()}={self._value},…")
            table[name] = self.kind.from_text(number, here)
        return table
