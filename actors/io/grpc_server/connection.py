"""One connection of the gRPC server: a reader, one writer, and a task for each call, in one nursery.

The reader feeds h2 and starts calls; every task queues its frames in h2's buffer, which only the writer sends, so
nothing is locked and the frames of one reply leave in one write. Whatever a client does ends its own connection with
an :class:`Ending`, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import attrs
import h2.events
import h2.exceptions
import trio
from google.protobuf.message import Message
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from .budget import FloodError, FrameBudget, FrameKind, OverlongFrameError
from .handshake import FRAME_SIZE, header_text, refusal_of, server_half
from .limits import ConnectionEnded, End, Ending, HandlerFailed, Report, ServerLimits
from .stream import Headers, Inbox, Peer, ServerStream, parse_metadata, parse_timeout, status_headers
from .writer import Writer

Routes = Mapping[str, Handler]
_AnyStream = ServerStream[Message, Message]
_CHUNK = 65536


@attrs.define
class _Call:
    """One call in progress, as its connection keeps it."""

    inbox: Inbox
    scope: trio.CancelScope
    #: The client reset it: nothing is owed any more.
    reset: bool = False


class Connection:
    """Serves ``routes`` on one stream; :meth:`run` is the one way in."""

    def __init__(
        self,
        routes: Routes,
        stream: trio.abc.Stream,
        limits: ServerLimits,
        report: Report,
        *,
        peer: Peer,
        stopping: trio.Event,
    ) -> None:
        self._routes = routes
        self._stream = stream
        self._limits = limits
        self._report = report
        self._peer = peer
        self._stopping = stopping
        self._h2 = server_half(limits)
        self._calls: dict[int, _Call] = {}
        self._writer = Writer(stream, write_timeout=limits.write_timeout, farewell=limits.farewell)
        self._ending: Ending | None = None
        self._shaken = False
        self._peer_leaves = False
        self._quiet = trio.CancelScope()

    async def run(self) -> Ending:
        """Serve until the connection ends; closes the stream, and raises nothing of the client's doing."""
        self._budget = FrameBudget(self._limits.allowances, max_frame_size=FRAME_SIZE, now=trio.current_time())
        self._quiet.deadline = trio.current_time() + self._limits.handshake_timeout
        error: Exception | None = None
        try:
            await self._serve()
        except* Exception as group:  # noqa: BLE001 -- h2, and what we did not foresee, never end the listener
            error = _first(group)
        finally:
            await self._close(ErrorCodes.NO_ERROR if error is None else ErrorCodes.INTERNAL_ERROR)
        if error is not None and self._ending is None:
            self._ending = Ending(End.INTERNAL, f"{type(error).__name__}: {error}")
        assert self._ending is not None
        self._report(ConnectionEnded(self._peer, self._ending, error))
        return self._ending

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._flush()
            nursery.start_soon(self._write)
            nursery.start_soon(self._stop_when_told)
            nursery.start_soon(self._read)

    # Ending

    def _finish(self, ending: Ending) -> None:
        """Begin to end: calls are cancelled, what is queued is written within the farewell time, then all stops."""
        if self._ending is not None:
            return
        self._ending = ending
        for call in self._calls.values():
            call.scope.cancel()
        self._writer.close()

    async def _close(self, code: ErrorCodes) -> None:
        """Say GOAWAY where nobody began to end the connection, and close the stream whatever happened."""
        if self._ending is None:
            self._queue_goaway(code)
            await self._writer.last_words()
        await trio.aclose_forcefully(self._stream)

    async def _stop_when_told(self) -> None:
        await self._stopping.wait()
        self._queue_goaway()
        self._quiet.deadline = trio.current_time() + self._limits.grace
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._calls:
            return
        if self._stopping.is_set():
            self._finish(Ending(End.STOPPED))
        elif self._peer_leaves:
            self._finish(Ending(End.PEER_CLOSED, "GOAWAY"))

    def _queue_goaway(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        # Written by hand: h2 takes a connection for closed once it has said GOAWAY, and calls in progress must end.
        last = self._h2.highest_inbound_stream_id
        self._writer.put(GoAwayFrame(0, last_stream_id=last, error_code=code).serialize())

    def _flush(self) -> None:
        self._writer.put(self._h2.data_to_send())

    async def _write(self) -> None:
        ending = await self._writer.run()
        if ending is not None:
            self._finish(ending)
        self._nursery.cancel_scope.cancel()

    # Reading

    async def _read(self) -> None:
        with self._quiet:
            await self._read_all()
        if self._quiet.cancelled_caught:
            self._finish(self._quiet_ending())

    def _quiet_ending(self) -> Ending:
        if self._stopping.is_set():
            return Ending(End.STOPPED, f"{len(self._calls)} calls outlived the grace")
        if not self._shaken:
            return Ending(End.HANDSHAKE)
        self._queue_goaway()
        return Ending(End.IDLE)

    async def _read_all(self) -> None:
        while self._ending is None:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return self._finish(Ending(End.BROKEN, str(error)))
            if not data:
                return self._finish(Ending(End.PEER_CLOSED))
            ending = self._take(data)
            self._flush()
            if ending is not None:
                return self._finish(ending)
            self._end_if_drained()
            # Answers to a client that does not read must not pile up: read no more before some have left.
            while self._writer.full and self._ending is None:
                await self._writer.room.park()
        return None

    def _take(self, data: bytes | bytearray) -> Ending | None:
        try:
            self._budget.feed(data, trio.current_time())
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
                    return Ending(End.PEER_CLOSED, f"GOAWAY {event.error_code}")
                self._handle(event)
        except FloodError as error:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            return Ending(End.FLOOD, str(error))
        except OverlongFrameError as error:
            self._h2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            return Ending(End.PROTOCOL, str(error))
        except h2.exceptions.H2Error as error:
            return Ending(End.PROTOCOL, f"{type(error).__name__}: {error}")
        return None

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._begin(event)
            case h2.events.DataReceived():
                self._take_data(event)
            case h2.events.StreamEnded():
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.inbox.end()
            case h2.events.StreamReset():
                self._take_reset(event.stream_id)
            case h2.events.RemoteSettingsChanged():
                self._shaken = True
                self._extend()
                self._writer.room.unpark_all()
            case h2.events.WindowUpdated():
                self._writer.room.unpark_all()
            case h2.events.PingReceived() | h2.events.PingAckReceived():
                self._extend()
            case h2.events.ConnectionTerminated():
                # It waits for the calls that it began, and then we end.
                self._peer_leaves = True
            case _:
                # Acknowledgements, trailers of a request, priorities, unknown frames: nothing to do.
                pass

    def _extend(self) -> None:
        """Something real happened: count the time of quiet anew, without end while calls are in progress."""
        if not self._stopping.is_set() and self._shaken:
            idle = self._limits.idle_timeout
            self._quiet.deadline = float("inf") if self._calls else trio.current_time() + idle

    def _take_data(self, event: h2.events.DataReceived) -> None:
        call = self._calls.get(event.stream_id)
        size = event.flow_controlled_length
        if call is None or call.reset:
            self.acknowledge(event.stream_id, size)
        elif call.inbox.put(event.data, size):
            self._budget.charge(FrameKind.FRAGMENT)

    def _take_reset(self, stream_id: int) -> None:
        call = self._calls.get(stream_id)
        if call is not None:
            call.reset = True
            call.scope.cancel()
            self._writer.room.unpark_all()

    # Calls

    def _begin(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        if len(self._calls) >= self._limits.max_streams or self._stopping.is_set() or self._ending is not None:
            # Charged, since a client that is told of the limit and goes on costs us a reset each.
            self._budget.charge(FrameKind.RESET)
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = [(header_text(name), header_text(value)) for name, value in event.headers]
        first = dict(headers)
        refusal = refusal_of(first)
        if refusal is not None:
            self._answer(stream_id, refusal)
            return
        method = first[":path"]
        handler = self._routes.get(method)
        try:
            if handler is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"unknown method {method[:200]}")
            self._start(stream_id, method, handler, headers)
        except GRPCError as error:
            self._reject(stream_id, error)

    def _reject(self, stream_id: int, error: GRPCError) -> None:
        headers = [(":status", "200"), ("content-type", "application/grpc+proto")]
        self._answer(stream_id, headers + status_headers(error.status, error.message))

    def _answer(self, stream_id: int, headers: Headers) -> None:
        # h2 takes in all of a read before we see its first event, so the client may have reset the stream already.
        with contextlib.suppress(StreamTerminatedError):
            self.send_headers(stream_id, headers, end_stream=True)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        # As above; a stream that is gone needs no reset.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, code)
        self._flush()

    def _start(self, stream_id: int, method: str, handler: Handler, headers: Headers) -> None:
        try:
            timeouts = [parse_timeout(value) for name, value in headers if name == "grpc-timeout"]
            metadata = parse_metadata(headers)
        except ValueError as error:
            raise GRPCError(Status.INTERNAL, f"malformed metadata: {error}") from error
        deadline = trio.current_time() + min(timeouts) if timeouts else None
        inbox = Inbox(stream_id, self, self._limits.max_message)
        call = _Call(inbox, trio.CancelScope(deadline=float("inf") if deadline is None else deadline))
        stream: _AnyStream = ServerStream(
            stream_id,
            self,
            inbox,
            cardinality=handler.cardinality,
            recv_type=handler.request_type,
            send_type=handler.reply_type,
            metadata=metadata,
            deadline=deadline,
            peer=self._peer,
            receive_timeout=self._limits.receive_timeout,
            send_timeout=self._limits.send_timeout,
        )
        self._calls[stream_id] = call
        self._extend()
        self._nursery.start_soon(self._run_call, stream_id, call, stream, method, handler)

    async def _run_call(self, stream_id: int, call: _Call, stream: _AnyStream, method: str, handler: Handler) -> None:
        status, message = Status.OK, None
        try:
            with call.scope:
                status, message = await self._run_handler(stream, method, handler)
            if call.scope.cancelled_caught:
                status, message = Status.DEADLINE_EXCEEDED, "the deadline of the call has passed"
        finally:
            del self._calls[stream_id]
        call.inbox.release()
        if not call.reset and self._ending is None:
            self._end_call(stream_id, call, stream, status, message)
            self._budget.credit(FrameKind.RESET)
        self._extend()
        self._flush()
        self._end_if_drained()

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

    def _end_call(self, stream_id: int, call: _Call, stream: _AnyStream, status: Status, message: str | None) -> None:
        # The stream may end under our hands; its client then wants no more of it.
        with contextlib.suppress(StreamTerminatedError):
            if not stream.ended:
                stream.finish(status, message)
        if not call.inbox.ended:
            # The reply is complete; RFC 9113 section 8.1 lets a server ask the client to stop sending.
            self._reset(stream_id, ErrorCodes.NO_ERROR)

    # The Wire that streams use

    def send_headers(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        """Queue HEADERS; raises StreamTerminatedError when the stream is gone."""
        try:
            self._h2.send_headers(stream_id, headers, end_stream=end_stream)
        except h2.exceptions.ProtocolError as error:
            raise StreamTerminatedError(str(error)) from error
        self._flush()

    async def send_message(self, stream_id: int, payload: bytes) -> None:
        """Send DATA as flow control and the writer allow; raises StreamTerminatedError when the stream is gone."""
        view = memoryview(payload)
        while view:
            try:
                room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                if room > 0 and not self._writer.full:
                    self._h2.send_data(stream_id, bytes(view[:room]))
                    self._budget.credit(FrameKind.WINDOW_UPDATE)
                    self._flush()
                    view = view[room:]
                    continue
            except h2.exceptions.ProtocolError as error:
                raise StreamTerminatedError(str(error)) from error
            await self._writer.room.park()

    def reset(self, stream_id: int) -> None:
        """Queue RST_STREAM with CANCEL, unless the stream is gone already."""
        if stream_id in self._calls and not self._calls[stream_id].reset:
            self._reset(stream_id, ErrorCodes.CANCEL)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give flow-controlled bytes back to the client."""
        if self._ending is None:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self._h2.acknowledge_received_data(size, stream_id)
            self._flush()


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first of the errors in a group, since what comes after it is its doing."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
