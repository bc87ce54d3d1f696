"""One call in its handler: the interface of ``grpclib.server.Stream`` that grpclib's generated service bases expect.

A handler written for grpclib runs here unchanged: ``recv_message``, ``send_initial_metadata``, ``send_message``,
``send_trailing_metadata``, ``cancel``, ``async for``, ``metadata``, ``deadline``, ``peer``. Deadlines are times on
Trio's clock, so a test's clock controls them.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar

import trio
from google.protobuf.message import DecodeError, Message
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.errors import ErrorCodes
from multidict import MultiDict

from .budget import ServerLimits
from .reports import Peer
from .request_buffer import RequestBuffer
from .sender import FrameSender, MetadataLike, metadata_fields, reply_headers, status_headers

RecvT = TypeVar("RecvT", bound=Message)
SendT = TypeVar("SendT", bound=Message)


class ServerStream(Generic[RecvT, SendT]):
    """One call: read the request's messages, send the reply's, end with a status."""

    def __init__(
        self,
        stream_id: int,
        sender: FrameSender,
        request: RequestBuffer,
        method: Handler,
        limits: ServerLimits,
        *,
        metadata: MultiDict[str | bytes],
        deadline: float | None,
        peer: Peer,
    ) -> None:
        self._stream_id = stream_id
        self._sender = sender
        self._request = request
        self._cardinality = method.cardinality
        self._recv_type: type[RecvT] = method.request_type
        self._send_type: type[SendT] = method.reply_type
        self._limits = limits
        self._received = 0
        self._headers_sent = False
        self._message_sent = False
        self._ended = False
        #: Invocation metadata, keys in lower case; values of ``-bin`` keys are bytes.
        self.metadata = metadata
        #: The time on Trio's clock at which the client gives up; None if it set no timeout.
        self.deadline = deadline
        self.peer = peer

    @property
    def ended(self) -> bool:
        """Whether the trailers were sent, or the call was cancelled."""
        return self._ended

    async def recv_message(self) -> RecvT | None:
        """Receive the next message, or None when the client has ended its side.

        A unary request must arrive within a total time, and each message of a streamed one within a time from its first
        byte on (fault 63).

        Raises:
          GRPCError: DEADLINE_EXCEEDED if the message takes longer; see also :meth:`RequestBuffer.next`.
        """
        if self._received and not self._cardinality.client_streaming:
            return None
        if self._cardinality.client_streaming:
            await self._request.begun()
        timeout = self._limits.receive_timeout
        with trio.move_on_after(timeout) as scope:
            payload = await self._request.next()
        if scope.cancelled_caught:
            raise GRPCError(Status.DEADLINE_EXCEEDED, f"the request took longer than {timeout:g} s")
        if payload is None:
            if not self._cardinality.client_streaming:
                raise GRPCError(Status.INTERNAL, "a unary request has no message")
            return None
        self._received += 1
        if not self._cardinality.client_streaming and not self._request.empty:
            raise GRPCError(Status.INTERNAL, "a unary request has more than one message")
        try:
            return self._recv_type.FromString(payload)
        except DecodeError as error:
            raise GRPCError(Status.INTERNAL, "a request message cannot be parsed") from error

    async def send_initial_metadata(self, *, metadata: MetadataLike | None = None) -> None:
        """Send the headers of the reply. Without this call, the first message sends them."""
        if self._headers_sent:
            raise ProtocolError("Initial metadata was already sent")
        headers = reply_headers()
        headers += metadata_fields(metadata)
        self._sender.send_headers(self._stream_id, headers, end_stream=False)
        self._headers_sent = True
        if self._cardinality.server_streaming:
            await trio.lowlevel.checkpoint()

    async def send_message(self, message: SendT) -> None:
        """Send one message, waiting for the client's windows; the wait has a total time (fault 62).

        Raises:
          StreamTerminatedError: if the client reset the call or does not take the message in time.
        """
        if not isinstance(message, self._send_type):
            raise TypeError(f"a {self._send_type.__name__} must be sent, not a {type(message).__name__}")
        if self._message_sent and not self._cardinality.server_streaming:
            raise ProtocolError("Message was already sent")
        payload = message.SerializeToString()
        if not self._headers_sent:
            await self.send_initial_metadata()
        framed = b"\0" + len(payload).to_bytes(4, "big") + payload
        with trio.move_on_after(self._limits.send_timeout) as scope:
            await self._sender.send_message(self._stream_id, framed)
        if scope.cancelled_caught:
            await self.cancel()
            raise StreamTerminatedError(f"the client took no message for {self._limits.send_timeout:g} s")
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
        """End the call with a status. Without this call, the return of the handler ends it.

        ``status_details`` is part of grpclib's signature; its rich error model is not supported.
        """
        if status_details is not None:
            raise ProtocolError("status details are not supported")
        if self._ended:
            raise ProtocolError("Trailing metadata was already sent")
        if status is Status.OK and not self._message_sent and not self._cardinality.server_streaming:
            raise ProtocolError("Unary response with OK status requires a single message to be sent")
        self.finish(status, status_message, metadata)

    def finish(self, status: Status, message: str | None, metadata: MetadataLike | None = None) -> None:
        """Queue the trailers; without a message before them they are the whole reply."""
        headers = [] if self._headers_sent else reply_headers()
        headers += status_headers(status, message)
        headers += metadata_fields(metadata)
        self._ended = True
        self._sender.send_headers(self._stream_id, headers, end_stream=True)

    async def cancel(self) -> None:
        """Reset the call: the client sees CANCELLED, and nothing more is sent."""
        if self._ended:
            raise ProtocolError("Stream was already ended")
        self._ended = True
        if not self._request.reset:
            self._sender.reset(self._stream_id, ErrorCodes.CANCEL)
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Self:
        # Not a generator, which a handler that leaves its loop early would have to close.
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    @property
    def owes_message(self) -> bool:
        """Whether the unary call would have no answer if the handler returned now."""
        return not self._message_sent and not self._cardinality.server_streaming
