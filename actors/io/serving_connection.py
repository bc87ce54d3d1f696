"""One connection of the gRPC server: a reader, one writer, and a task for each call, in one nursery.

The reader feeds h2 and starts calls; every task queues its frames in h2's buffer, which only the writer sends, so
nothing is locked and the frames of one reply leave in one write. Whatever a client does ends its own connection with
an :class:`Ending`, and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import attrs
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio
from google.protobuf.message import Message
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from plugind.actors.io.serving_budget import (
    DEFAULT_ALLOWANCES,
    Allowance,
    FloodError,
    FrameBudget,
    FrameKind,
    OverlongFrameError,
)
from plugind.actors.io.serving_stream import (
    Headers,
    Inbox,
    Peer,
    ServerStream,
    parse_metadata,
    parse_timeout,
    status_headers,
)

Routes = Mapping[str, Handler]
_AnyStream = ServerStream[Message, Message]
_CHUNK = 65536
#: Bytes queued for the writer above which senders, and the reader, wait.
_HIGH_WATER = 262144
_FRAME_SIZE = 16384


@attrs.frozen
class ServerLimits:
    """What one client may cost; sizes in bytes, times in seconds."""

    max_message: int = 4 * 1024 * 1024
    max_header_list: int = 65536
    #: Calls at once on one connection; those above are refused with REFUSED_STREAM, which clients retry.
    max_streams: int = 100
    #: Connections at once on one listener; those above are closed at once.
    max_connections: int = 512
    #: From the connection to the client's preface and SETTINGS, in total.
    handshake_timeout: float = 10.0
    #: Without a call in progress and without a PING. gRPC clients reconnect by themselves.
    idle_timeout: float = 3600.0
    #: For a request message to arrive whole.
    receive_timeout: float = 30.0
    #: For the client's windows to take one message.
    send_timeout: float = 60.0
    #: For the client to read what is written to it.
    write_timeout: float = 30.0
    #: For the last words (GOAWAY) of a connection that ends.
    farewell: float = 1.0
    #: For calls in progress when the server stops.
    grace: float = 5.0
    allowances: Mapping[FrameKind, Allowance] = attrs.field(factory=lambda: DEFAULT_ALLOWANCES)


class End(enum.Enum):
    """Why a connection ended."""

    #: The client closed it, or said GOAWAY.
    PEER_CLOSED = "closed by the client"
    #: The transport broke.
    BROKEN = "transport broken"
    #: We stopped.
    STOPPED = "server stopped"
    IDLE = "idle for too long"
    HANDSHAKE = "no HTTP/2 handshake in time"
    PROTOCOL = "HTTP/2 broken by the client"
    FLOOD = "frame budget exceeded"
    NOT_READING = "client does not read"


@attrs.frozen
class Ending:
    """How one connection ended, with what there is to say of it."""

    end: End
    detail: str = ""


@attrs.frozen
class HandlerFailed:
    """A handler raised what is no GRPCError; its client saw UNKNOWN, and nobody else anything."""

    method: str
    error: Exception


@attrs.frozen
class ConnectionEnded:
    """A connection is over."""

    peer: Peer
    ending: Ending


Report = Callable[[HandlerFailed | ConnectionEnded], None]


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
        self._h2 = _server_half(limits)
        self._calls: dict[int, _Call] = {}
        self._out = bytearray()
        self._writing = False
        self._ending: Ending | None = None
        self._shaken = False
        self._work = trio.Event()
        #: Where senders wait for windows and for the writer.
        self._room = trio.lowlevel.ParkingLot()
        self._quiet = trio.CancelScope()
        self._write_scope = trio.CancelScope()

    async def run(self) -> Ending:
        """Serve until the connection ends; closes the stream, and raises nothing of the client's doing."""
        self._budget = FrameBudget(self._limits.allowances, max_frame_size=_FRAME_SIZE, now=trio.current_time())
        self._quiet.deadline = trio.current_time() + self._limits.handshake_timeout
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._flush()
                nursery.start_soon(self._write)
                nursery.start_soon(self._stop_when_told)
                nursery.start_soon(self._read)
        finally:
            await self._close()
        assert self._ending is not None
        self._report(ConnectionEnded(self._peer, self._ending))
        return self._ending

    # Ending

    def _finish(self, ending: Ending) -> None:
        """Begin to end: calls are cancelled, what is queued is written within the farewell time, then all stops."""
        if self._ending is not None:
            return
        self._ending = ending
        for call in self._calls.values():
            call.scope.cancel()
        self._write_scope.deadline = trio.current_time() + self._limits.farewell
        self._work.set()

    async def _close(self) -> None:
        """Say GOAWAY where the surrounding scope was cancelled, unless a write was cut in the middle of a frame."""
        if self._ending is None and not self._writing:
            self._queue_goaway()
            with trio.move_on_after(self._limits.farewell, shield=True):
                await self._send(bytes(self._out))
        await trio.aclose_forcefully(self._stream)

    async def _stop_when_told(self) -> None:
        await self._stopping.wait()
        self._queue_goaway()
        self._quiet.deadline = trio.current_time() + self._limits.grace
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._stopping.is_set() and not self._calls:
            self._finish(Ending(End.STOPPED))

    def _queue_goaway(self) -> None:
        # Written by hand: h2 takes a connection for closed once it has said GOAWAY, and calls in progress must end.
        last = self._h2.highest_inbound_stream_id
        self._out += GoAwayFrame(0, last_stream_id=last, error_code=ErrorCodes.NO_ERROR).serialize()
        self._work.set()

    # Writing

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._out += data
            self._work.set()

    async def _write(self) -> None:
        """The only task that sends; ends the connection's nursery when all is said."""
        with self._write_scope:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while self._out:
                    data, self._out = bytes(self._out), bytearray()
                    if not await self._send_in_time(data):
                        self._nursery.cancel_scope.cancel()
                        return
                    self._room.unpark_all()
                if self._ending is not None:
                    break
        self._nursery.cancel_scope.cancel()

    async def _send_in_time(self, data: bytes) -> bool:
        with trio.move_on_after(self._limits.write_timeout) as scope:
            sent = await self._send(data)
        if scope.cancelled_caught:
            self._finish(Ending(End.NOT_READING, f"took nothing for {self._limits.write_timeout:g} s"))
            return False
        return sent

    async def _send(self, data: bytes) -> bool:
        self._writing = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._finish(Ending(End.BROKEN, str(error)))
            return False
        self._writing = False
        return True

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
            while len(self._out) > _HIGH_WATER and self._ending is None:
                await self._room.park()
        return None

    def _take(self, data: bytes | bytearray) -> Ending | None:
        try:
            self._budget.feed(data, trio.current_time())
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ConnectionTerminated):
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
                self._room.unpark_all()
            case h2.events.WindowUpdated():
                self._room.unpark_all()
            case h2.events.PingReceived() | h2.events.PingAckReceived():
                self._extend()
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
            self._h2.acknowledge_received_data(size, event.stream_id)
        else:
            call.inbox.put(event.data, size)

    def _take_reset(self, stream_id: int) -> None:
        call = self._calls.get(stream_id)
        if call is not None:
            call.reset = True
            call.scope.cancel()
            self._room.unpark_all()

    # Calls

    def _begin(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        if len(self._calls) >= self._limits.max_streams or self._stopping.is_set() or self._ending is not None:
            # Charged, since a client that is told of the limit and goes on costs us a reset each.
            self._budget.charge(FrameKind.RESET)
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = [(_text(name), _text(value)) for name, value in event.headers]
        first = dict(headers)
        refusal = _refusal(first)
        if refusal is not None:
            self.send_headers(stream_id, refusal, end_stream=True)
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
        self.send_headers(stream_id, headers + status_headers(error.status, error.message), end_stream=True)

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
        try:
            if not stream.ended:
                stream.finish(status, message)
            if not call.inbox.ended:
                # The reply is complete; RFC 9113 section 8.1 lets a server ask the client to stop sending.
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        except (StreamTerminatedError, h2.exceptions.ProtocolError):
            # The stream ended under our hands; its client wants no more of it.
            return

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
                if room > 0 and len(self._out) <= _HIGH_WATER:
                    self._h2.send_data(stream_id, bytes(view[:room]))
                    self._budget.credit(FrameKind.WINDOW_UPDATE)
                    self._flush()
                    view = view[room:]
                    continue
            except h2.exceptions.ProtocolError as error:
                raise StreamTerminatedError(str(error)) from error
            await self._room.park()

    def reset(self, stream_id: int) -> None:
        """Queue RST_STREAM with CANCEL, unless the stream is gone already."""
        if stream_id in self._calls and not self._calls[stream_id].reset:
            try:
                self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            except h2.exceptions.ProtocolError:
                return
            self._flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give flow-controlled bytes back to the client."""
        if self._ending is None:
            self._h2.acknowledge_received_data(size, stream_id)
            self._flush()


def _server_half(limits: ServerLimits) -> h2.connection.H2Connection:
    connection = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)
    )
    codes = h2.settings.SettingCodes
    # h2 ends a connection that opens more streams than were ever offered. A client may open some before it has read
    # our SETTINGS, so h2 is given room above the limit that is told last, and we refuse those above it one by one.
    connection.local_settings = h2.settings.Settings(
        client=False,
        initial_values={
            codes.MAX_CONCURRENT_STREAMS: 2 * limits.max_streams + 1000,
            codes.MAX_HEADER_LIST_SIZE: limits.max_header_list,
        },
    )
    connection.decoder.max_header_list_size = limits.max_header_list
    connection.initiate_connection()
    connection.update_settings({codes.MAX_CONCURRENT_STREAMS: limits.max_streams})
    # So that one stream nobody reads does not starve the others of its connection.
    connection.increment_flow_control_window(1 << 20)
    return connection


def _text(value: bytes | str) -> str:
    # One character a byte: never fails, and what is no ASCII is refused where it matters.
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _refusal(headers: Mapping[str, str]) -> Headers | None:
    """The HTTP answer to what is no gRPC request; None for one that is."""
    if headers.get(":method") != "POST":
        return [(":status", "405")]
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip() not in ("application/grpc", "application/grpc+proto"):
        return [(":status", "415")]
    return None
