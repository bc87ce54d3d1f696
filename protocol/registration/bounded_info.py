"""Limits how much of a PluginInfo is parsed (fault 51).

A message of 64 KiB has room for 32,768 empty versions, and a hundred plugins at once may send such a message. Parsing
would make an object of each version, only to refuse them all. So the bytes are read field by field, up to the first
version that is too many. That part is enough to refuse the message with the usual reason.
"""

from typing import Final

from ..wire.protobuf_fields import FieldReader, InvalidMessageError, TooManyFieldsError, span, tag_at

#: The tag of ``supported_versions`` in PluginInfo: field 4, with a size.
_VERSIONS: Final = 4 << 3 | 2
#: The most other fields of a message; PluginInfo has three, and none of them repeats.
MOST_OTHERS: Final = 64


def first_versions(message: bytes, most: int) -> bytes:
    """Return ``message`` if it has at most ``most`` versions, else its beginning up to the end of the next version.

    An invalid message is returned as it is, so that its parser reports the error.

    Raises:
      TooManyFieldsError: if it has more than ``MOST_OTHERS`` other fields.
    """
    # A field has at least two bytes, so a message of the usual size cannot have too many.
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
