"""HTTP requests of the usual form, read at one look; h11 reads all others.

Only what h11 accepts is accepted, and read as h11 reads it. h11 takes ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from ..values import value
from ..version import STATUS_FIELD, spoken

_NAME: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+"
_VALUE: Final = rb"[\t\x20-\x7e]*"
_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|DELETE) ([\x21-\x7e]+) HTTP/1\.1\r\n((?:" + _NAME + rb":" + _VALUE + rb"\r\n)+)\r\n"
)
_FIELD: Final = re.compile(rb"(" + _NAME + rb"):[ \t]*(" + _VALUE + rb")\r\n")
#: What has a meaning for the form of the body or of the answer, and what few requests have.
_NOT_SIMPLE: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"authorization"))
#: The length of a body is read only if it has so many digits at most.
_MOST_DIGITS: Final = 9
_PHRASES: Final = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


@value
class SimpleRequest:
    """A request as it was sent: the target is percent-encoded."""

    method: str
    target: str
    body: bytes
    #: The header ``Host``; None if there is none, which HTTP/1.0 permits.
    host: str | None = None
    #: The header ``Authorization``; None if there is none, or more than one.
    authorization: str | None = None
    #: In which version of the status socket the client is answered.
    version: int = 1


def read(data: bytes) -> SimpleRequest | None:
    """Return the request that is all of ``data``; None if there is none of the usual form, or it is not whole."""
    found = _HEAD.match(data)
    if found is None:
        return None
    body, length, lengths = data[found.end() :], b"0", 0
    host, hosts, version = b"", 0, 1
    for name, text in _FIELD.findall(found[3]):
        match name.lower():
            case b"host":
                hosts, host = hosts + 1, text.rstrip(b" \t")
            case b"content-length":
                lengths, length = lengths + 1, text.rstrip(b" \t")
            case field if field == STATUS_FIELD:
                version = spoken(text)
            case field if field in _NOT_SIMPLE:
                return None
            case _:
                pass
    if hosts != 1 or lengths > 1 or not length.isdigit() or len(length) > _MOST_DIGITS or len(body) != int(length):
        return None
    method, target = found[1].decode("ascii"), found[2].decode("ascii")
    return SimpleRequest(method, target, body, host.decode("ascii"), version=version)


def head_of(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of an answer, after which the connection is closed."""
    lines = "".join([f"{name}: {text}\r\n" for name, text in headers]).encode("ascii")
    return b"HTTP/1.1 %d %s\r\n%sConnection: close\r\n\r\n" % (status, _PHRASES[status], lines)
