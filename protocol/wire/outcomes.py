"""The outcome of a call and its gRPC status: the mappings that gRPC defines."""

from typing import Final
from urllib.parse import unquote

import attrs
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from .errors import ErrorCode, WireError, WireProblem, code_name, shown
from .hpack_cache import ResponseBlock

#: gRPC's mapping of HTTP statuses; any other is UNKNOWN.
_HTTP_STATUS: Final = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}

#: gRPC's mapping of RST_STREAM codes; other codes of RFC 9113 are INTERNAL, and the rest UNKNOWN.
_RESET_STATUS: Final = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
    ErrorCode.HTTP_1_1_REQUIRED: Status.UNKNOWN,
}

_STATUSES: Final = {str(status.value): status for status in Status}


@attrs.frozen
class CallOutcome:
    """How a call ended. It has a ``cause`` if the status comes from us and not from the plugin."""

    status: Status
    message: str = ""
    cause: WireError | None = None


SUCCESS: Final = CallOutcome(Status.OK)


def status_text(error: GRPCError) -> str:
    """Return the text of ``error``, such as ``INVALID_ARGUMENT: no such device``; its ``str`` is that of a tuple."""
    return f"{error.status.name}: {error.message or 'no message'}"


def reset_outcome(code: int) -> CallOutcome:
    """Return the outcome of a call that the peer reset; :data:`REFUSED` if the peer has not processed it."""
    return REFUSED if code == ErrorCode.REFUSED_STREAM else _reset_outcome(code)


def _reset_outcome(code: int) -> CallOutcome:
    error = WireError(WireProblem.PROTOCOL, f"the peer reset the call ({code_name(code)})")
    fallback = Status.INTERNAL if code <= ErrorCode.HTTP_1_1_REQUIRED else Status.UNKNOWN
    status = _RESET_STATUS.get(ErrorCode(code), fallback) if code <= 0xD else fallback
    return CallOutcome(status, error.message, error)


#: The outcome of a call that the peer did not process; it can be made again.
REFUSED: Final = _reset_outcome(ErrorCode.REFUSED_STREAM)


def failure_outcome(error: WireError) -> CallOutcome:
    """Return the outcome for a broken connection, rule or limit."""
    if error.problem in (WireProblem.CLOSED, WireProblem.GOING_AWAY, WireProblem.NOT_HTTP2):
        return CallOutcome(Status.UNAVAILABLE, error.message, error)
    return CallOutcome(Status.RESOURCE_EXHAUSTED if error.problem.is_limit else Status.INTERNAL, error.message, error)


def head_problem(block: ResponseBlock, *, trailers_only: bool) -> CallOutcome | None:
    """Return the problem with response headers, before any message; None if there is none (fault 67)."""
    if block.http_status != 200:
        if trailers_only and block.grpc_status is not None:
            return None
        error = WireError(WireProblem.PROTOCOL, f"the peer answered with HTTP status {block.http_status}")
        return CallOutcome(_HTTP_STATUS.get(block.http_status or 0, Status.UNKNOWN), error.message, error)
    kind = block.content_type
    # The generated code reads only the protobuf variants of "application/grpc".
    if kind in ("application/grpc", "application/grpc+proto") or (kind and kind.startswith("application/grpc;")):
        return None
    if trailers_only and block.grpc_status is not None:
        return None
    said = "no content-type" if kind is None else f"content-type {shown(kind.encode())}"
    error = WireError(WireProblem.PROTOCOL, f"the peer answered with {said}, not application/grpc")
    return CallOutcome(Status.UNKNOWN, error.message, error)


def trailers_outcome(block: ResponseBlock) -> CallOutcome:
    """Return the outcome in trailers (fault 67)."""
    sent = block.grpc_status
    if sent == "0":
        return SUCCESS
    if sent is None:
        error = WireError(WireProblem.PROTOCOL, "the trailers have no grpc-status")
        return CallOutcome(Status.UNKNOWN, error.message, error)
    message = decode_message(block.grpc_message) if block.grpc_message else ""
    status = _STATUSES.get(sent)
    if status is None:
        error = WireError(
            WireProblem.PROTOCOL, f"grpc-status is {shown(sent.encode())}{': ' if message else ''}{message}"
        )
        return CallOutcome(Status.UNKNOWN, error.message, error)
    return CallOutcome(status, message)


def decode_message(sent: str) -> str:
    """Return a ``grpc-message``, percent-decoded and cut at 4 KiB (fault 94).

    Invalid percent-encoding stays as it is.
    """
    text = unquote(sent, encoding="utf-8", errors="replace")
    return text if len(text) <= 4096 else text[:4096] + "…"
