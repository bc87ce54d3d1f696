"""The fields of a protobuf message, read from its bytes one after another.

This is for messages of which only a part is needed, or which are too expensive to parse as a whole. It accepts exactly
what protobuf's own parser accepts; the tests compare the two.
"""

from typing import Final

#: The wire type that ends a group.
_END_GROUP: Final = 4

#: The deepest nesting of messages and groups.
MAX_DEPTH: Final = 100
_MAX_TAG: Final = 2**32 - 1
_MAX_SIZE: Final = 2**31 - 1
_NO_NUMBER: Final = "a field has no valid number"


class InvalidMessageError(ValueError):
    """The bytes are not a valid message; the text is the reason."""


class TooManyFieldsError(InvalidMessageError):
    """A message has too many unknown fields."""


class FieldReader:
    """Reads the fields of a message, and limits the number of unknown ones."""

    __slots__ = ("_unknown_left", "most_unknown")

    def __init__(self, most_unknown: int) -> None:
        self.most_unknown = most_unknown
        self._unknown_left = most_unknown

    def skip(self, data: bytes, position: int, stop: int, tag: int, depth: int = 0) -> int:
        """Return the position after the value of an unknown field, ``depth`` levels deep.

        Raises:
          InvalidMessageError: if it is not valid.
          TooManyFieldsError: if there are too many.
        """
        self._unknown_left -= 1
        if self._unknown_left < 0:
            raise TooManyFieldsError(f"it has more than {self.most_unknown} unknown fields")
        match tag & 7:
            case 0:
                return varint(data, position, stop)[1]
            case 1:
                return _within(position + 8, stop)
            case 2:
                return span(data, position, stop)[1]
            case 3:
                return self._skip_group(data, position, stop, tag >> 3, depth + 1)
            case 5:
                return _within(position + 4, stop)
            case 4:
                raise InvalidMessageError("a group ends that has not begun")
            case kind:
                raise InvalidMessageError(f"a field has the wire type {kind}")

    def _skip_group(self, data: bytes, position: int, stop: int, number: int, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise InvalidMessageError(f"it is nested more than {MAX_DEPTH} levels deep")
        while True:
            # In a group, protobuf accepts a field with the number 0.
            tag, position = varint(data, position, stop, 5)
            if tag > _MAX_TAG:
                raise InvalidMessageError(_NO_NUMBER)
            if tag == number << 3 | _END_GROUP:
                return position
            position = self.skip(data, position, stop, tag, depth)


def check_count(data: bytes, most: int) -> None:
    """Check that a message has at most ``most`` fields, before a parser makes an object of each.

    Raises:
      InvalidMessageError: if it has more, or is not valid.
    """
    fields, position = FieldReader(most), 0
    for _ in range(most):
        if position >= len(data):
            return
        tag, position = tag_at(data, position, len(data))
        position = fields.skip(data, position, len(data), tag)
    if position < len(data):
        raise InvalidMessageError(f"it has more than {most} fields")


def tag_at(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return the tag at ``position``, and the position after it.

    Raises:
      InvalidMessageError: if there is no valid tag.
    """
    tag, after = varint(data, position, stop, 5)
    if tag > _MAX_TAG or not tag >> 3:
        raise InvalidMessageError(_NO_NUMBER)
    return tag, after


def span(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return the start and end of the bytes of a field whose size is at ``position``.

    Raises:
      InvalidMessageError: if the message ends too early.
    """
    size, start = varint(data, position, stop, 5)
    if size > _MAX_SIZE:
        raise InvalidMessageError("a field is too long")
    return start, _within(start + size, stop)


def varint(data: bytes, position: int, stop: int, most: int = 10) -> tuple[int, int]:
    """Return the number at ``position``, which has at most ``most`` bytes, and the position after it.

    Raises:
      InvalidMessageError: if the message ends too early, or the number is longer.
    """
    number = 0
    for shift in range(0, 7 * most, 7):
        if position >= stop:
            raise _cut()
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise InvalidMessageError(f"a number has more than {most} bytes")


def int64(number: int) -> int:
    """Convert a number to the value of an int64 field."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def _within(position: int, stop: int) -> int:
    if position > stop:
        raise _cut()
    return position


def _cut() -> InvalidMessageError:
    return InvalidMessageError("it ends in the middle of a field")
