"""The metadata of a response in its header fields."""

import binascii
from collections.abc import Iterable

_RESERVED = frozenset({"te", "content-type", "user-agent"})


def decode_metadata(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str | bytes]]:
    """Return the custom metadata among header fields, with binary values (``-bin``) as bytes.

    A binary field can have several values, joined with commas, and without padding. Invalid base64 is left out.
    """
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith((":", "grpc-")) or name in _RESERVED:
            continue
        if not name.endswith("-bin"):
            found.append((name, value))
            continue
        for part in value.split(","):
            try:
                found.append((name, decode_binary(part.strip())))
            except ValueError:
                continue
    return found


def decode_binary(text: str) -> bytes:
    """Decode base64 with or without padding.

    Raises:
        ValueError: it is not valid base64.
    """
    bare = text.rstrip("=")
    return binascii.a2b_base64(bare + "=" * (-len(bare) % 4), strict_mode=True)
