"""gRPC over HTTP/2, the client half of one call: frames in, messages and one outcome out.

A ``ClientCall`` assembles messages and decides the outcome of the call; the module ``outcomes`` has the mappings for
that. A call has exactly one ``outcome``, the first one decided.
"""

import struct
from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

import attrs
from grpclib.const import Status
from grpclib.metadata import encode_metadata

from .errors import WireError, WireProblem, over_limit
from .frames import literal_field, literal_string
from .hpack_cache import ResponseBlock
from .outcomes import SUCCESS, CallOutcome, failure_outcome, head_problem, reset_outcome, trailers_outcome
from .responses import PREFIX_BYTES
from .sending import Sender, Stream

MetadataLike = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]

_PREFIX: Final = struct.Struct(">BI")

_MAX_HEADS: Final = 256
_MAX_TIMEOUT: Final = 99_999_999

#: The header blocks made so far, by path and authority.
_heads: dict[tuple[str, str], bytes] = {}


def request_head(path: str, authority: str) -> bytes:
    """Return the header block of a request without deadline and metadata; it is the same for all calls of a method."""
    head = _heads.get((path, authority))
    if head is None:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        head = _heads[path, authority] = b"".join(
            (
                b"\x83\x86",  # :method POST and :scheme http, as the static table numbers them (RFC 7541 appendix A)
                b"\x04" + literal_string(path.encode("ascii")),
                b"\x01" + literal_string(authority.encode("ascii")),
                literal_field(b"te", b"trailers"),
                b"\x0f\x10" + literal_string(b"application/grpc"),
                b"\x0f\x2b" + literal_string(b"grpc-python-plugind"),
            )
        )
    return head


def timeout_field(seconds: float) -> bytes:
    """Return the ``grpc-timeout`` field for a deadline in ``seconds``, rounded up, in the finest possible unit."""
    value, unit = max(1, -int(-seconds * 1e6 // 1)), b"u"
    for divisor, coarser in ((1000, b"m"), (1000, b"S"), (60, b"M"), (60, b"H")):
        if value <= _MAX_TIMEOUT:
            break
        value, unit = -(-value // divisor), coarser
    return literal_field(b"grpc-timeout", b"%d%s" % (min(value, _MAX_TIMEOUT), unit))


def metadata_fields(metadata: MetadataLike) -> bytes:
    """Return the fields for a caller's own metadata.

    Raises:
        ValueError: gRPC does not allow the key or the value.
        TypeError: the value has the wrong type for its key.
    """
    return b"".join(literal_field(k.encode("ascii"), v.encode("ascii")) for k, v in encode_metadata(metadata))


def frame_message(message: bytes) -> bytes:
    """Return a message with gRPC's prefix: the flag for no compression, and the length."""
    return _PREFIX.pack(0, len(message)) + message


@attrs.frozen
class Newest:
    """The newest of the waiting messages, and their number."""

    message: bytes
    #: The number of waiting messages, this one included.
    count: int
    #: The bytes of all of them, prefixes included.
    size: int


class ClientCall(Stream):
    """One call as its caller sees it: headers, messages, trailers, outcome."""

    __slots__ = (
        "_partial",
        "_queued",
        "_sender",
        "_uncredited",
        "head",
        "messages",
        "outcome",
        "trailers",
        "unary",
    )

    def __init__(self, sender: Sender, *, unary: bool) -> None:
        super().__init__()
        self._sender = sender
        #: True if the response must be exactly one message.
        self.unary = unary
        #: The response headers, once they have come.
        self.head: ResponseBlock | None = None
        #: The trailers, once they have come. In a trailers-only response they are ``head`` as well.
        self.trailers: ResponseBlock | None = None
        #: How the call ended; None until that is decided, and never changed afterwards.
        self.outcome: CallOutcome | None = None
        #: Messages received and not yet taken; None until the first has come.
        self.messages: deque[bytes] | None = None
        #: The beginning of an unfinished message; never empty.
        self._partial: bytearray | None = None
        #: Bytes in ``messages``, prefixes included.
        self._queued = 0
        #: Bytes received and not credited to the peer yet, because too many messages are queued.
        self._uncredited = 0

    @property
    def kept(self) -> int:
        """Bytes of messages that were not taken, and of the unfinished one."""
        return self._queued + len(self._partial or b"")

    # Questions and requests of the caller.

    def has_head(self) -> bool:
        """True when the response headers, or the end, have come."""
        return self.head is not None or self.outcome is not None

    def has_message(self) -> bool:
        """True when a message, or the end, has come."""
        return bool(self.messages) or self.outcome is not None

    def has_ended(self) -> bool:
        """True when the outcome is known."""
        return self.outcome is not None

    def has_ended_or_message(self) -> bool:
        """True when there is a message to take, or the outcome is known."""
        return bool(self.messages) or self.outcome is not None

    def can_send(self) -> bool:
        """True when there is room in the windows, or the request has ended so that waiting is pointless."""
        return not self.local_open or (self.send_window > 0 and self._sender.send_window > 0)

    def take(self) -> bytes:
        """Remove the oldest message and return it."""
        assert self.messages
        message = self.messages.popleft()
        self._queued -= len(message) + PREFIX_BYTES
        self._credit()
        return message

    def take_newest(self) -> Newest:
        """Remove all messages and return the newest; the older ones are dropped."""
        assert self.messages
        newest = Newest(self.messages[-1], len(self.messages), self._queued)
        self.messages.clear()
        self._queued = 0
        self._credit()
        return newest

    def _credit(self) -> None:
        """Credit the bytes that were withheld while too many messages were queued."""
        if self._uncredited and self._queued <= self._sender.limits.stream_window:
            self._sender.used(self, self._uncredited)
            self._uncredited = 0

    def cancel(self, outcome: CallOutcome) -> None:
        """End the call from our side."""
        self._decide(outcome)

    # Events from the connection.

    def on_headers(self, block: ResponseBlock, *, end: bool) -> None:
        """Response headers, trailers, or both in one (trailers-only) have come."""
        if self.head is None:
            self.head = block
            if block.plain and not end:
                return
            if end:
                self.trailers = block
                self._decide(
                    head_problem(block, trailers_only=True) or self._end_problem(block) or trailers_outcome(block)
                )
            elif problem := head_problem(block, trailers_only=False):
                self._decide(problem)
            return
        self.trailers = block
        if block.grpc_status == "0" and self._partial is None and (self.messages is not None or not self.unary):
            self._decide(SUCCESS)
        else:
            self._decide(self._end_problem(block) or trailers_outcome(block))

    def on_data(self, data: bytes, *, end: bool) -> None:
        """A piece of the messages has come; HTTP/2 can split them anywhere."""
        size = len(data)
        limits = self._sender.limits
        if (
            self._partial is None
            and size >= PREFIX_BYTES
            and not data[0]
            and int.from_bytes(data[1:5], "big") == size - PREFIX_BYTES <= limits.message_bytes
        ):
            self._add(data[PREFIX_BYTES:])
        elif size:
            self._assemble(data)
        # Untaken messages stop the peer; an unfinished one does not, since its length is within the limit.
        if self._queued > limits.stream_window:
            self._uncredited += size
        else:
            self._sender.used(self, size)
        if end:
            missing = WireError(WireProblem.PROTOCOL, "the response ended without trailers")
            self._decide(self._end_problem(None) or CallOutcome(Status.UNKNOWN, missing.message, missing))

    def on_response(self, head: ResponseBlock, data: bytes, trailers: ResponseBlock) -> None:
        """A whole response with plain headers and one message has come."""
        self.head = head
        self.messages = deque((data[PREFIX_BYTES:],))
        self._queued = len(data)
        self.trailers = trailers
        self._decide(SUCCESS if trailers.grpc_status == "0" else trailers_outcome(trailers))

    def on_reset(self, code: int) -> None:
        """The peer reset the call."""
        self._decide(reset_outcome(code))

    def on_failed(self, error: WireError) -> None:
        """The call or its connection broke."""
        self._decide(failure_outcome(error))

    # Messages.

    def _add(self, message: bytes) -> None:
        """Keep a whole message."""
        if self.messages is None:
            self.messages = deque()
        elif self.unary:
            self._violate("more than one message to a call that takes one")
            return
        self.messages.append(message)
        self._queued += len(message) + PREFIX_BYTES

    def _assemble(self, data: bytes) -> None:
        """Add a piece that is not exactly one whole message."""
        partial = bytearray() if self._partial is None else self._partial
        partial += data
        position = 0
        while self.outcome is None and len(partial) - position >= PREFIX_BYTES:
            size = self._check_prefix(partial, position)
            if size is None:
                return
            end = position + PREFIX_BYTES + size
            if end > len(partial):
                break
            self._add(bytes(partial[position + PREFIX_BYTES : end]))
            position = end
        del partial[:position]
        self._partial = partial or None

    def _check_prefix(self, partial: bytearray, position: int) -> int | None:
        """Return the length of the message at ``position``; None if it must be refused (faults 50, 68)."""
        if partial[position]:
            self._violate("a compressed message, though no compression was agreed on")
            return None
        size = int.from_bytes(partial[position + 1 : position + PREFIX_BYTES], "big")
        limit = self._sender.limits.message_bytes
        if size > limit:
            error = over_limit(WireProblem.MESSAGE_BYTES, limit, f"a message of {size} bytes")
            self._decide(CallOutcome(Status.RESOURCE_EXHAUSTED, error.message, error))
            return None
        return size

    # The outcome.

    def _violate(self, what: str) -> None:
        """End the call because the plugin broke a rule of gRPC (faults 68, 70)."""
        error = WireError(WireProblem.PROTOCOL, f"the peer sent {what}")
        self._decide(CallOutcome(Status.INTERNAL, error.message, error))

    def _end_problem(self, trailers: ResponseBlock | None) -> CallOutcome | None:
        """Return the problem with the messages of a response that ends with success; None if there is none."""
        if trailers is not None and trailers.grpc_status != "0":
            return None
        if self._partial is not None:
            error = WireError(WireProblem.PROTOCOL, "the response ended in the middle of a message")
            return CallOutcome(Status.INTERNAL, error.message, error)
        if self.unary and self.messages is None and trailers is not None:
            error = WireError(WireProblem.PROTOCOL, "the response has no message")
            return CallOutcome(Status.INTERNAL, error.message, error)
        return None

    def _decide(self, outcome: CallOutcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._partial = None
            if self.remote_open:
                self._sender.reset(self)


__all__ = [
    "ClientCall",
    "MetadataLike",
    "Newest",
    "frame_message",
    "metadata_fields",
    "request_head",
    "timeout_field",
]
