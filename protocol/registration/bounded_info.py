"""Bounds what is made of a PluginInfo before any of it is parsed (fault 51).

A message of 64 KiB has room for 32,768 empty versions. All of them would be made into objects only to be refused, and a
hundred plugins at once may send them. So the bytes are looked at first, field by field, and no further than the first
version that is too many: the message up to there is enough to refuse it with the usual reason.
"""

from typing import Final

from ..wire.protobuf_fields import FieldReader, InvalidMessageError, TooManyFieldsError, span, tag_at

#: The tag of ``supported_versions`` in PluginInfo: field 4, with a size.
_VERSIONS: Final = 4 << 3 | 2
#: How many other fields a message may have; PluginInfo has three, of which none repeats.
MOST_OTHERS: Final = 64


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
    except TooManyFieldsError:
        raise TooManyFieldsError(f"more than {MOST_OTHERS} fields besides versions") from None
    except InvalidMessageError:
        return message


def _end(message: bytes, most: int) -> int:
    others, versions, position, stop = FieldReader(MOST_OTHERS), 0, 0, len(message)
    while position < stop and versions <= most:
        tag, position = tag_at(message, position, stop)
        if tag == _VERSIONS:
            versions += 1
            position = span(message, position, stop)[1]
        else:
            position = others.skip(message, position, stop, tag)
    return position
