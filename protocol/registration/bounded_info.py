"""Bounds what is made of a PluginInfo before any of it is parsed (fault 51).

A message of 64 KiB has room for 32,768 empty versions. All of them would be made into objects only to be refused, and a
hundred plugins at once may send them. So the bytes are looked at first, field by field, and no further than the first
version that is too many: the message up to there is enough to refuse it with the usual reason.
"""

from typing import Final

#: The number of ``supported_versions`` in PluginInfo.
_VERSIONS: Final = 4
#: How many other fields a message may have; PluginInfo has three, of which none repeats.
MOST_OTHERS: Final = 64


class TooManyFieldsError(ValueError):
    """A message has too many fields that PluginInfo does not have."""


def first_versions(message: bytes, most: int) -> bytes:
    """Return ``message`` if it has at most ``most`` versions, else its beginning up to the end of the next one.

    A message that is not valid is returned as it is, and its parser says what is wrong.

    Raises:
      TooManyFieldsError: if it has more than ``MOST_OTHERS`` other fields.
    """
    # A field takes two bytes at least, so that the usual message needs no look.
    if len(message) <= 2 * min(most, MOST_OTHERS):
        return message
    try:
        return message[: _end(message, most)]
    except IndexError:
        return message


def _end(message: bytes, most: int) -> int:
    versions = others = position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        position = _skip(message, position, tag & 7)
        if tag >> 3 == _VERSIONS:
            versions += 1
            if versions > most:
                return position
        else:
            others += 1
            if others > MOST_OTHERS:
                raise TooManyFieldsError(f"more than {MOST_OTHERS} fields besides versions")
    return position


def _skip(message: bytes, position: int, wire_type: int) -> int:
    """Return the position after a field's value. Groups have none, so that their fields count as any others."""
    match wire_type:
        case 0:
            return _varint(message, position)[1]
        case 1:
            return position + 8
        case 2:
            size, position = _varint(message, position)
            return position + size
        case 5:
            return position + 4
        case _:
            return position


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position after it.

    Raises:
      IndexError: the message ends within it, or it is longer than ten bytes.
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise IndexError
