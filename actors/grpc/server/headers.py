"""The header fields of requests and replies: what is read from them, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import cast

from grpclib.const import Status
from grpclib.metadata import decode_metadata, encode_grpc_message, encode_metadata
from multidict import MultiDict

Headers = list[tuple[str, str]]
MetadataLike = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]

#: gRPC over HTTP/2: one to eight digits and a unit.
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
#: Bytes of a status message; clients refuse header lists of 8 KiB, and each byte may become three (fault 94).
_MAX_STATUS_MESSAGE = 1300


def header_text(value: bytes | str) -> str:
    """A field as text, one character for each byte. It never fails; what is not ASCII is refused where it matters."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def refusal_of(headers: Mapping[str, str]) -> Headers | None:
    """The HTTP answer to a request that is not gRPC; None for one that is."""
    if headers.get(":method") != "POST":
        return [(":status", "405")]
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip() not in ("application/grpc", "application/grpc+proto"):
        return [(":status", "415")]
    return None


def parse_timeout(value: str) -> float:
    """The seconds in a grpc-timeout field.

    Raises:
      ValueError: if the field does not have gRPC's form.
    """
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"not a grpc-timeout: {value[:20]!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_metadata(headers: Headers) -> MultiDict[str | bytes]:
    """The invocation metadata among the fields of a request.

    Raises:
      ValueError: if the value of a ``-bin`` key is not base64.
    """
    return cast("MultiDict[str | bytes]", decode_metadata(headers))


def metadata_fields(metadata: MetadataLike | None) -> Headers:
    """The fields that carry ``metadata``."""
    return cast(Headers, list(encode_metadata(metadata))) if metadata else []


def reply_headers() -> Headers:
    """The fields with which every reply begins."""
    return [(":status", "200"), ("content-type", "application/grpc+proto")]


def status_headers(status: Status, message: str | None) -> Headers:
    """The grpc-status and grpc-message fields; a long message is cut, what is not UTF-8 is replaced (fault 94)."""
    headers = [("grpc-status", str(status.value))]
    if message is not None:
        text = message.encode("utf-8", "replace")[:_MAX_STATUS_MESSAGE].decode("utf-8", "ignore")
        headers.append(("grpc-message", encode_grpc_message(text)))
    return headers
