"""The calls in progress on one connection of the gRPC server: each is a task that runs a handler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import attrs
import h2.events
import trio
from google.protobuf.message import Message
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.errors import ErrorCodes

from .budget import FrameBudget, FrameKind, ServerLimits
from .reports import HandlerFailed, Peer, Report
from .request_buffer import RequestBuffer
from .sender import (
    FrameSender,
    Headers,
    header_text,
    parse_metadata,
    parse_timeout,
    refusal_of,
    reply_headers,
    status_headers,
)
from .stream import ServerStream

Routes = Mapping[str, Handler]
_AnyStream = ServerStream[Message, Message]


@attrs.frozen
class _OpenCall:
    request: RequestBuffer
    #: Cancelled at the client's deadline, and when the client or the connection ends.
    scope: trio.CancelScope


class Calls:
    """Starts a task for each request, passes its data to it, and ends its stream when the handler returns."""

    def __init__(
        self,
        routes: Routes,
        sender: FrameSender,
        budget: FrameBudget,
        limits: ServerLimits,
        report: Report,
        *,
        peer: Peer,
        on_change: Callable[[], None],
    ) -> None:
        self._routes = routes
        self._sender = sender
        self._budget = budget
        self._limits = limits
        self._report = report
        self._peer = peer
        #: Called whenever a call has begun or ended.
        self._on_change = on_change
        self._open: dict[int, _OpenCall] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def refuse_more(self) -> None:
        """Refuse every call from now on; calls in progress go on."""
        self._closed = True

    def abandon(self) -> None:
        """Cancel all calls without answers, because the connection ends."""
        self._closed = True
        for call in self._open.values():
            call.scope.cancel()

    # What arrives

    def take_request(self, event: h2.events.RequestReceived, nursery: trio.Nursery) -> None:
        """Start a call in ``nursery``, or answer at once with an error.

        Raises:
          FloodError: if the client goes on sending calls that are refused.
        """
        stream_id = event.stream_id
        if len(self._open) >= self._limits.max_streams or self._closed:
            # Charged, because each further call of a client that knows the limit costs a reset.
            self._budget.charge(FrameKind.RESET)
            self._sender.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = [(header_text(name), header_text(value)) for name, value in event.headers]
        refusal = refusal_of(dict(headers))
        if refusal is not None:
            self._sender.answer(stream_id, refusal)
            return
        try:
            self._start(stream_id, headers, nursery)
        except GRPCError as error:
            self._sender.answer(stream_id, reply_headers() + status_headers(error.status, error.message))

    def take_data(self, event: h2.events.DataReceived) -> None:
        """Pass DATA to its call.

        Raises:
          FloodError: if the client sends a message in too many tiny pieces.
        """
        call = self._open.get(event.stream_id)
        size = event.flow_controlled_length
        if call is None or call.request.reset:
            self._sender.acknowledge(event.stream_id, size)
        elif call.request.put(event.data, size):
            self._budget.charge(FrameKind.FRAGMENT)

    def take_end(self, stream_id: int) -> None:
        """Note that the client has ended its side of a call."""
        if (call := self._open.get(stream_id)) is not None:
            call.request.end()

    def take_reset(self, stream_id: int) -> None:
        """Cancel a call that the client has reset."""
        if (call := self._open.get(stream_id)) is not None:
            call.request.abort()
            call.scope.cancel()

    # The life of a call

    def _start(self, stream_id: int, headers: Headers, nursery: trio.Nursery) -> None:
        method = dict(headers)[":path"]
        handler = self._routes.get(method)
        if handler is None:
            raise GRPCError(Status.UNIMPLEMENTED, f"unknown method {method[:200]}")
        try:
            timeouts = [parse_timeout(value) for name, value in headers if name == "grpc-timeout"]
            metadata = parse_metadata(headers)
        except ValueError as error:
            raise GRPCError(Status.INTERNAL, f"malformed metadata: {error}") from error
        deadline = trio.current_time() + min(timeouts) if timeouts else None
        request = RequestBuffer(stream_id, self._sender, self._limits.max_message)
        call = _OpenCall(request, trio.CancelScope(deadline=float("inf") if deadline is None else deadline))
        stream: _AnyStream = ServerStream(
            stream_id,
            self._sender,
            request,
            handler,
            self._limits,
            metadata=metadata,
            deadline=deadline,
            peer=self._peer,
        )
        self._open[stream_id] = call
        self._on_change()
        nursery.start_soon(self._run, stream_id, call, stream, method, handler)

    async def _run(self, stream_id: int, call: _OpenCall, stream: _AnyStream, method: str, handler: Handler) -> None:
        status, message = Status.OK, None
        try:
            with call.scope:
                status, message = await self._run_handler(stream, method, handler)
            if call.scope.cancelled_caught:
                status, message = Status.DEADLINE_EXCEEDED, "the deadline of the call has passed"
        finally:
            del self._open[stream_id]
        call.request.release()
        if not call.request.reset and not self._sender.closing:
            self._end(stream_id, call, stream, status, message)
            self._budget.credit(FrameKind.RESET)
        self._on_change()

    async def _run_handler(self, stream: _AnyStream, method: str, handler: Handler) -> tuple[Status, str | None]:
        try:
            await handler.func(stream)
        except GRPCError as error:
            return error.status, error.message
        except StreamTerminatedError:
            return Status.CANCELLED, None
        except Exception as error:  # noqa: BLE001 -- a handler is foreign code; this is where it is contained
            self._report(HandlerFailed(method, error))
            return Status.UNKNOWN, "Internal Server Error"
        if stream.owes_message and not stream.ended:
            self._report(HandlerFailed(method, RuntimeError("the handler returned without sending its message")))
            return Status.UNKNOWN, "Internal Server Error"
        return Status.OK, None

    def _end(self, stream_id: int, call: _OpenCall, stream: _AnyStream, status: Status, message: str | None) -> None:
        # A stream that is gone needs no trailers.
        with contextlib.suppress(StreamTerminatedError):
            if not stream.ended:
                stream.finish(status, message)
        if not call.request.ended:
            # The reply is complete; RFC 9113 section 8.1 lets a server ask the client to stop sending.
            self._sender.reset(stream_id, ErrorCodes.NO_ERROR)
