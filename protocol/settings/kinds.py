"""How the value of a setting is written: in a configuration file, and as text in a variable or an option.

A file has values with types, and they are taken as they are: ``true`` is no number, and a string is no list. In text,
numbers and words stand for themselves, and a list has separators.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from ..errors import ConfigError
from ..text import cut, escaped, quoted
from ..trust.users import MAX_UID, Trust, parse_trusted_user
from ..values import value

#: The word for "no such thing", since TOML has no value for that.
OFF: Final = "off"
#: In a list, it stands for what is there by default.
DEFAULT: Final = "default"
#: How many characters of a wrong value are shown.
_SHOWN: Final = 64


class WrongValueError(ValueError):
    """A setting cannot have this value. Each text says what it must be; it may begin with "is", after the key."""

    def __init__(self, *texts: str, rest: Any = None, places: Iterable[tuple[str, ...]] = ()) -> None:
        super().__init__("; ".join(texts))
        #: All that is wrong with the value.
        self.texts = texts
        #: Of each text, where in the value that is: the index in a list, from 0, and the key in a table.
        self.places = (*places,) or ((),) * len(texts)
        #: Of a list, the values with which nothing is wrong: what else may be wrong with them can be found, too.
        self.rest = rest

    def with_key(self, key: str) -> str:
        """Return the texts with the key before each."""
        return "; ".join(self.each_with_key(key))

    def each_with_key(self, key: str) -> tuple[str, ...]:
        """Return each text, with the key before it."""
        return tuple(f"{key} {text}" if text.startswith(("is ", "must ")) else f"{key}: {text}" for text in self.texts)


class Kind(Protocol):
    """How the values of a setting are written."""

    @property
    def words(self) -> str:
        """What a value is, for people: ``a number of seconds``."""

    def from_toml(self, value: object) -> Any:
        """Return what ``value`` of a file stands for.

        Raises:
          WrongValueError: if it stands for nothing.
        """

    def from_text(self, text: str, here: str) -> Any:
        """Return what ``text`` stands for, with ``here`` for the directory to which paths are relative.

        Raises:
          WrongValueError: if it stands for nothing.
        """


def wrong(value: object, words: str) -> WrongValueError:
    """Return the error that ``value`` is not what ``words`` say."""
    return WrongValueError(f"is {shown(value)}: it must be {words}")


def shown(value: object) -> str:
    """Return a value of a file for an error."""
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
    """A finite number from ``least`` to ``most``. Whether the field takes it is for the field to check."""

    least: float = -math.inf
    most: float = math.inf

    @property
    def words(self) -> str:
        """What a value is."""
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
        """Return the number that ``text`` is."""
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
        """What a value is."""
        return "a whole number" if self.least is None else f"a whole number, {self.least} or more"

    def from_toml(self, value: object) -> Any:
        """Return the number, which must have no point."""
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
            raise wrong(value, self.words)
        if self.least is not None and value < self.least:
            raise wrong(value, self.words)
        return value

    def from_text(self, text: str, here: str) -> Any:  # noqa: ARG002
        """Return the number that ``text`` is."""
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise wrong(text, self.words)
        return self.from_toml(int(text))


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
        """Return what ``text`` says."""
        if text not in ("true", "false"):
            raise wrong(text, self.words)
        return text == "true"


def _of_toml(text: str, advice: str) -> Any:
    """Return the value that ``text`` is in TOML.

    Raises:
      WrongValueError: if it is none; its text ends with ``advice``.
    """
    import tomllib

    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        found = {}
    if len(found) != 1:  # After a line break there may be other keys.
        raise WrongValueError(f"is {shown(text)}: {advice}")
    return found["value"]


class _AsString:
    """A value that is a string in a file and in text."""

    def _parse(self, text: str, here: str | None) -> Any:
        raise NotImplementedError

    @property
    def words(self) -> str:
        """What a value is."""
        raise NotImplementedError

    def from_toml(self, value: object) -> Any:
        """Return what the string means."""
        if not isinstance(value, str):
            raise wrong(value, self.words)
        return self._parse(value, None)

    def from_text(self, text: str, here: str) -> Any:
        """Return what the text means."""
        return self._parse(text, here)


@value
class Word(_AsString):
    """One of some words."""

    of: tuple[str, ...]

    @property
    def words(self) -> str:
        """What a value is."""
        return " or ".join(f'"{word}"' for word in self.of)

    def _parse(self, text: str, here: str | None) -> Any:  # noqa: ARG002
        if text not in self.of:
            raise wrong(text, self.words)
        return text


@value
class Text(_AsString):
    """Some text that is not empty."""

    words: str = "a string that is not empty"

    def _parse(self, text: str, here: str | None) -> Any:
        if not text:
            raise wrong(text, self.words)
        return os.fsencode(text).decode("utf-8", "surrogateescape") if here is not None else text


@value
class Path(_AsString):
    """A path: an absolute one in a file. One in text is relative to the working directory."""

    words: str = "an absolute path"
    #: Words that may stand in the place of a path.
    or_words: tuple[str, ...] = ()
    #: Whether a relative path in text stays one: the path of a socket has to be short.
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
    """A value of another kind, or ``"off"``, which is None."""

    kind: Kind

    @property
    def words(self) -> str:
        """What a value is."""
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
    """A list of values, without those that were there before. In text it has separators, or is a list of TOML."""

    kind: Kind
    separator: str = ","
    #: Whether a value that is there twice counts once. Otherwise both are returned.
    joins_equal: bool = True

    @property
    def words(self) -> str:
        """What a value is."""
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
            _of_toml(text, 'a list in brackets must be one of TOML, such as ["a", "b"]'),
        )

    def _each_parsed(self, parse: Callable[[Any], Any], values: Iterable[object]) -> tuple[Any, ...]:
        """Return what each of the values means, or raise one error with all that is wrong with any."""
        found = list[Any]()
        # What is wrong in the same words with several values is said of the first one.
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
    """A table of numbers by plugin type or resource; in text, ``TYPE=NUMBER,…`` or a table of TOML in braces."""

    kind: Number | Integer
    #: What has a number each.
    of: str = "plugin type"

    @property
    def words(self) -> str:
        """What a value is."""
        return f"a table, in which each {self.of} has {self.kind.words}"

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
            return self.from_toml(_of_toml(text, "a table in braces must be one of TOML, such as { name = 1 }"))
        table = {}
        for word in filter(None, text.split(",")):
            name, given, number = word.rpartition("=")
            if not given or not name:
                raise wrong(text, f"{self.of.rpartition(' ')[2].upper()}=NUMBER,…")
            table[name] = self.kind.from_text(number, here)
        return table
