"""One call as its handler sees it: what grpclib's generated service bases expect of ``grpclib.server.Stream``.

A handler written for grpclib runs here unchanged: ``recv_message``, ``send_initial_metadata``, ``send_message``,
``send_trailing_metadata``, ``cancel``, ``async for``, ``metadata``, ``deadline``, ``peer``. Deadlines are points in
Trio's time, so that a test's clock rules them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from typing import Generic, Protocol, Self, TypeVar, cast

import attrs
import trio
from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.metadata import decode_metadata, encode_grpc_message, encode_metadata
from multidict import MultiDict

from ..unix_socket import Credentials

Headers = list[tuple[str, str]]
MetadataLike = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]
RecvT = TypeVar("RecvT", bound=Message)
SendT = TypeVar("SendT", bound=Message)

_PREFIX = 5
#: Pieces of a message below this size cost more to parse than to send.
_TINY = 256
#: gRPC over HTTP/2: one to eight digits and a unit.
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
#: Bytes of a status message; clients refuse header lists of 8 KiB, and each byte may become three (fault 94).
_MAX_STATUS_MESSAGE = 1300


@attrs.frozen
class Peer:
    """The client of a call, with the methods that grpclib's handlers expect of it."""

    #: None where the connection is no socket.
    credentials: Credentials | None = None

    def addr(self) -> str:
        """What grpclib calls the address; a unix client has none, so an empty string."""
        return ""

    def cert(self) -> None:
        """No transport security is spoken, so there never is a certificate."""
        return


class Wire(Protocol):
    """What a call needs of its connection."""

    async def send_message(self, stream_id: int, payload: bytes) -> None:
        """Send DATA as flow control allows; raises StreamTerminatedError when the stream is gone."""

    def send_headers(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        """Queue HEADERS; raises StreamTerminatedError when the stream is gone."""

    def reset(self, stream_id: int) -> None:
        """Queue RST_STREAM with CANCEL."""

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give ``size`` flow-controlled bytes back to the client."""


class Inbox:
    """The request side of one call: DATA as it came, cut into messages only as the handler asks.

    Bytes are acknowledged to flow control when they are taken into the message that is being read, so what is kept
    is bounded by the stream's window plus one message.
    """

    def __init__(self, stream_id: int, wire: Wire, max_message: int) -> None:
        self._stream_id = stream_id
        self._wire = wire
        self._max_message = max_message
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._buffer = bytearray()
        self._changed = trio.Event()
        self._arriving = bytearray()
        self._missing = 0
        self.ended = False

    def put(self, data: bytes, flow_size: int) -> bool:
        """Keep the content of one DATA frame; ``flow_size`` includes its padding.

        True for a tiny piece of a message that neither ends it nor its prefix, as no client has to send many of.
        """
        self._chunks.append((data, flow_size))
        self._changed.set()
        return not self._follow(data) and 0 < len(data) < _TINY

    def _follow(self, data: bytes) -> bool:
        """Keep track of where messages end, before anybody takes them; whether one, or a prefix, ends here."""
        at, ends = 0, False
        while at < len(data):
            if self._missing:
                step = min(self._missing, len(data) - at)
                self._missing -= step
                ends |= not self._missing
            else:
                step = min(_PREFIX - len(self._arriving), len(data) - at)
                self._arriving += data[at : at + step]
                if len(self._arriving) == _PREFIX:
                    self._missing = int.from_bytes(self._arriving[1:], "big")
                    self._arriving.clear()
                    ends = True
            at += step
        return ends

    def end(self) -> None:
        """The client has ended its side."""
        self.ended = True
        self._changed.set()

    def release(self) -> None:
        """Give back what nobody will read, so that other calls of the connection do not starve."""
        while self._chunks:
            self._take_chunk()
        self._buffer.clear()

    @property
    def empty(self) -> bool:
        """No byte waits that was not part of a message already handed out."""
        return not self._buffer and not self._chunks

    async def next(self) -> bytes | None:
        """The next message's bytes, or None when the client has ended its side.

        Raises GRPCError: RESOURCE_EXHAUSTED for one over the limit, INTERNAL for one cut short or with a bad flag.
        """
        while True:
            message = self._cut()
            if message is not None:
                return message
            if self.ended:
                if self._buffer:
                    raise GRPCError(Status.INTERNAL, "the request ends within a message")
                return None
            await self._change()

    async def begun(self) -> None:
        """Return when a byte of the next message is there, or the client has ended its side."""
        while self.empty and not self.ended:
            await self._change()

    async def _change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    def _cut(self) -> bytes | None:
        while True:
            needed = self._needed()
            if len(self._buffer) >= needed:
                message = bytes(self._buffer[_PREFIX:needed])
                del self._buffer[:needed]
                return message
            if not self._chunks:
                return None
            self._take_chunk()

    def _needed(self) -> int:
        """How many bytes the message at the head of the buffer takes with its prefix, as far as is known."""
        if len(self._buffer) < _PREFIX:
            return _PREFIX
        if self._buffer[0] == 1:
            raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not taken")
        if self._buffer[0] != 0:
            raise GRPCError(Status.INTERNAL, f"the compression flag of a message is {self._buffer[0]}")
        length = int.from_bytes(self._buffer[1:_PREFIX], "big")
        if length > self._max_message:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes is over the limit of {self._max_message}"
            )
        return _PREFIX + length

    def _take_chunk(self) -> None:
        data, flow_size = self._chunks.popleft()
        self._buffer += data
        if flow_size:
            self._wire.acknowledge(self._stream_id, flow_size)


class ServerStream(Generic[RecvT, SendT]):
    """One call: read the request's messages, send the reply's, end with a status."""

    def __init__(
        self,
        stream_id: int,
        wire: Wire,
        inbox: Inbox,
        *,
        cardinality: Cardinality,
        recv_type: type[RecvT],
        send_type: type[SendT],
        metadata: MultiDict[str | bytes],
        deadline: float | None,
        peer: Peer,
        receive_timeout: float,
        send_timeout: float,
    ) -> None:
        self._stream_id = stream_id
        self._wire = wire
        self._inbox = inbox
        self._cardinality = cardinality
        self._recv_type = recv_type
        self._send_type = send_type
        self._receive_timeout = receive_timeout
        self._send_timeout = send_timeout
        self._received = 0
        self._headers_sent = False
        self._message_sent = False
        self._ended = False
        #: Invocation metadata, keys in lower case; values of ``-bin`` keys are bytes.
        self.metadata = metadata
        #: The point in Trio's time at which the client gives up; None when it set no timeout.
        self.deadline = deadline
        self.peer = peer

    @property
    def ended(self) -> bool:
        """The trailers were sent, or the call was cancelled."""
        return self._ended

    async def recv_message(self) -> RecvT | None:
        """Receive the next message, or None when the client has ended its side.

        A unary request has a total time to arrive, and so has each message of a streamed one from its first byte on
        (fault 63). Raises GRPCError with DEADLINE_EXCEEDED when it takes longer.
        """
        if self._received and not self._cardinality.client_streaming:
            return None
        if self._cardinality.client_streaming:
            await self._inbox.begun()
        with trio.move_on_after(self._receive_timeout) as scope:
            payload = await self._inbox.next()
        if scope.cancelled_caught:
            raise GRPCError(Status.DEADLINE_EXCEEDED, f"the request took longer than {self._receive_timeout:g} s")
        if payload is None:
            if not self._cardinality.client_streaming:
                raise GRPCError(Status.INTERNAL, "a unary request has no message")
            return None
        self._received += 1
        if not self._cardinality.client_streaming and not self._inbox.empty:
            raise GRPCError(Status.INTERNAL, "a unary request has more than one message")
        try:
            return self._recv_type.FromString(payload)
        except DecodeError as error:
            raise GRPCError(Status.INTERNAL, "a request message cannot be parsed") from error

    async def send_initial_metadata(self, *, metadata: MetadataLike | None = None) -> None:
        """Send the headers of the reply; done by the first message where it was not done before."""
        if self._headers_sent:
            raise ProtocolError("Initial metadata was already sent")
        headers = _reply_headers()
        headers += _encoded(metadata)
        self._wire.send_headers(self._stream_id, headers, end_stream=False)
        self._headers_sent = True
        if self._cardinality.server_streaming:
            await trio.lowlevel.checkpoint()

    async def send_message(self, message: SendT) -> None:
        """Send one message, waiting for the client's windows; the wait has a total time (fault 62).

        Raises StreamTerminatedError when the client reset the call or does not take the message in time.
        """
        if not isinstance(message, self._send_type):
            raise TypeError(f"a {self._send_type.__name__} must be sent, not a {type(message).__name__}")
        if self._message_sent and not self._cardinality.server_streaming:
            raise ProtocolError("Message was already sent")
        payload = message.SerializeToString()
        if not self._headers_sent:
            await self.send_initial_metadata()
        framed = b"\0" + len(payload).to_bytes(4, "big") + payload
        with trio.move_on_after(self._send_timeout) as scope:
            await self._wire.send_message(self._stream_id, framed)
        if scope.cancelled_caught:
            await self.cancel()
            raise StreamTerminatedError(f"the client took no message for {self._send_timeout:g} s")
        self._message_sent = True
        if self._cardinality.server_streaming:
            await trio.lowlevel.checkpoint()

    async def send_trailing_metadata(
        self,
        *,
        status: Status = Status.OK,
        status_message: str | None = None,
        status_details: object = None,
        metadata: MetadataLike | None = None,
    ) -> None:
        """End the call with a status; done at the handler's return where it was not done before.

        ``status_details`` is taken for grpclib's signature; its rich error model is not spoken.
        """
        if status_details is not None:
            raise ProtocolError("status details are not supported")
        if self._ended:
            raise ProtocolError("Trailing metadata was already sent")
        if status is Status.OK and not self._message_sent and not self._cardinality.server_streaming:
            raise ProtocolError("Unary response with OK status requires a single message to be sent")
        self.finish(status, status_message, metadata)

    def finish(self, status: Status, message: str | None, metadata: MetadataLike | None = None) -> None:
        """Queue the trailers; alone they are the whole reply (trailers-only)."""
        headers = [] if self._headers_sent else _reply_headers()
        headers += status_headers(status, message)
        headers += _encoded(metadata)
        self._ended = True
        self._wire.send_headers(self._stream_id, headers, end_stream=True)

    async def cancel(self) -> None:
        """Reset the call: the client sees CANCELLED, and nothing more is sent."""
        if self._ended:
            raise ProtocolError("Stream was already ended")
        self._ended = True
        self._wire.reset(self._stream_id)
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Self:
        # No generator: a handler may break out of its loop, and nothing is left to be closed.
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    @property
    def owes_message(self) -> bool:
        """A handler that returns now has not answered its unary call."""
        return not self._message_sent and not self._cardinality.server_streaming


def _reply_headers() -> Headers:
    return [(":status", "200"), ("content-type", "application/grpc+proto")]


def _encoded(metadata: MetadataLike | None) -> Headers:
    return cast(Headers, list(encode_metadata(metadata))) if metadata else []


def status_headers(status: Status, message: str | None) -> Headers:
    """The grpc-status and grpc-message fields; a long message is cut, what is no UTF-8 is replaced (fault 94)."""
    headers = [("grpc-status", str(status.value))]
    if message is not None:
        text = message.encode("utf-8", "replace")[:_MAX_STATUS_MESSAGE].decode("utf-8", "ignore")
        headers.append(("grpc-message", encode_grpc_message(text)))
    return headers


def parse_timeout(value: str) -> float:
    """Seconds in a grpc-timeout field; raises ValueError when it is not of gRPC's form."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"not a grpc-timeout: {value[:20]!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_metadata(headers: Headers) -> MultiDict[str | bytes]:
    """The invocation metadata among request headers; raises ValueError when a ``-bin`` value is not base64."""
    return cast("MultiDict[str | bytes]", decode_metadata(headers))
