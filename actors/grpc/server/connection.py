"""One connection of the gRPC server: a reader, one writer, and a task for each call, in one nursery.

The reader feeds h2 and passes on its events; every task queues its frames in h2's buffer, which only the writer sends.
So no locks are needed, and the frames of one reply leave in one write. Whatever a client does ends only its own
connection, with a :class:`~.reports.ConnectionEnding`.
"""

from __future__ import annotations

from collections.abc import Mapping

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio
from h2.errors import ErrorCodes
from hyperframe.frame import Frame, GoAwayFrame

from .budget import FloodError, FrameBudget, OverlongFrameError, ServerLimits
from .calls import Calls, Routes
from .reports import ConnectionEnded, ConnectionEnding, EndReason, Peer, Report
from .sender import FrameSender, Writer

#: Bytes of the largest frame that we accept; the default of RFC 9113 section 6.5.2.
FRAME_SIZE = 16384
_CONFIG = h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)


class _ServerHalf(h2.connection.H2Connection):
    """h2's connection, except that a client's GOAWAY does not end it.

    A client that sends GOAWAY, as Node's do in answer to ours, still waits for its calls (RFC 9113 section 6.8). h2
    would refuse every frame after it, even those of the same read.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class _LenientSettings(h2.settings.Settings):
    """Settings that announce one limit of streams and make h2 enforce a higher one.

    h2 ends the whole connection for a stream over the limit. A client can open some before it has read our SETTINGS, so
    :class:`~.calls.Calls` refuses those over the announced limit one by one, and h2 steps in only far above it. The
    value must not be announced high first and lowered later: gRPC's C core starts as many calls as the first SETTINGS
    allow, fails those above the second, and retries them without end.
    """

    def __init__(self, announced: Mapping[h2.settings.SettingCodes, int]) -> None:
        super().__init__(client=False, initial_values=dict(announced))

    @property
    def max_concurrent_streams(self) -> int:
        """The limit that h2 enforces; the mapping's item is the announced one."""
        return 2 * super().max_concurrent_streams + 1000

    @max_concurrent_streams.setter
    def max_concurrent_streams(self, value: int) -> None:
        self[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = value


def server_half(limits: ServerLimits) -> h2.connection.H2Connection:
    """Return h2's state of one connection, with our SETTINGS and windows queued."""
    connection = _ServerHalf(_CONFIG)
    codes = h2.settings.SettingCodes
    connection.local_settings = _LenientSettings(
        {
            codes.MAX_CONCURRENT_STREAMS: limits.max_streams,
            codes.MAX_HEADER_LIST_SIZE: limits.max_header_list,
        }
    )
    connection.decoder.max_header_list_size = limits.max_header_list
    connection.initiate_connection()
    # So that an unread stream does not starve the others of its connection.
    connection.increment_flow_control_window(1 << 20)
    return connection


_CHUNK = 65536


class ServerConnection:
    """Serves ``routes`` on one stream, in :meth:`run`."""

    #: Holds the reader, the writer and every call while :meth:`run` serves.
    _nursery: trio.Nursery

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
        self._stream = stream
        self._limits = limits
        self._report = report
        self._peer = peer
        self._stopping = stopping
        self._h2 = server_half(limits)
        self._budget = FrameBudget(limits.allowances, max_frame_size=FRAME_SIZE, now=trio.current_time())
        self._writer = Writer(stream, write_timeout=limits.write_timeout, farewell=limits.farewell)
        self._sender = FrameSender(self._h2, self._writer, self._budget)
        self._calls = Calls(
            routes, self._sender, self._budget, limits, report, peer=peer, on_change=self._note_change_of_calls
        )
        #: Set once, when the connection begins to end.
        self._ending: ConnectionEnding | None = None
        #: Whether the client's SETTINGS have come.
        self._handshake_done = False
        #: Whether the client has sent GOAWAY; it still waits for its calls.
        self._peer_leaves = False
        #: The scope of the reader; its deadline is that of the handshake, of idleness or of the grace.
        self._quiet = trio.CancelScope(deadline=trio.current_time() + limits.handshake_timeout)

    async def run(self) -> ConnectionEnding:
        """Serve until the connection ends, and close the stream. Nothing that the client does raises."""
        error: Exception | None = None
        try:
            await self._serve()
        except* Exception as group:  # noqa: BLE001 -- an unforeseen error, in h2 or here, must not end the listener
            error = _first(group)
        finally:
            await self._close(ErrorCodes.NO_ERROR if error is None else ErrorCodes.INTERNAL_ERROR)
        if error is not None and self._ending is None:
            self._ending = ConnectionEnding(EndReason.INTERNAL, f"{type(error).__name__}: {error}")
        assert self._ending is not None
        self._report(ConnectionEnded(self._peer, self._ending, error))
        return self._ending

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._sender.flush()
            nursery.start_soon(self._write)
            nursery.start_soon(self._wait_for_stop)
            nursery.start_soon(self._read)

    # Ending

    def _finish(self, ending: ConnectionEnding) -> None:
        """Begin to end: cancel the calls, and write the queue within the farewell time; then all stops."""
        if self._ending is not None:
            return
        self._ending = ending
        self._calls.abandon()
        self._writer.close()

    async def _close(self, code: ErrorCodes) -> None:
        """Close the stream, after a GOAWAY if the connection had not begun to end."""
        if self._ending is None:
            self._sender.goaway(code)
            await self._writer.send_rest()
        await trio.aclose_forcefully(self._stream)

    async def _wait_for_stop(self) -> None:
        await self._stopping.wait()
        self._calls.refuse_more()
        self._sender.goaway()
        self._quiet.deadline = trio.current_time() + self._limits.grace
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._calls:
            return
        if self._stopping.is_set():
            self._finish(ConnectionEnding(EndReason.STOPPED))
        elif self._peer_leaves:
            self._finish(ConnectionEnding(EndReason.PEER_CLOSED, "GOAWAY"))

    async def _write(self) -> None:
        ending = await self._writer.run()
        if ending is not None:
            self._finish(ending)
        self._nursery.cancel_scope.cancel()

    # Quiet

    def _quiet_ending(self) -> ConnectionEnding:
        if self._stopping.is_set():
            return ConnectionEnding(EndReason.STOPPED, f"{len(self._calls)} calls outlived the grace")
        if not self._handshake_done:
            return ConnectionEnding(EndReason.HANDSHAKE)
        self._sender.goaway()
        return ConnectionEnding(EndReason.IDLE)

    def _extend(self) -> None:
        """Restart the idle time, because the client sent something; there is none while calls are in progress."""
        if not self._stopping.is_set() and self._handshake_done:
            idle = self._limits.idle_timeout
            self._quiet.deadline = float("inf") if self._calls else trio.current_time() + idle

    def _note_change_of_calls(self) -> None:
        self._extend()
        self._sender.flush()
        self._end_if_drained()

    # Reading

    async def _read(self) -> None:
        with self._quiet:
            await self._read_all()
        if self._quiet.cancelled_caught:
            self._finish(self._quiet_ending())

    async def _read_all(self) -> None:
        while self._ending is None:
            try:
                data = await self._stream.receive_some(_CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return self._finish(ConnectionEnding(EndReason.BROKEN, str(error)))
            if not data:
                return self._finish(ConnectionEnding(EndReason.PEER_CLOSED))
            ending = self._take(data)
            self._sender.flush()
            if ending is not None:
                return self._finish(ending)
            self._end_if_drained()
            # Answers to a client that does not read must not pile up, so reading stops until some are sent.
            while self._writer.full and self._ending is None:
                await self._writer.room.park()
        return None

    def _take(self, data: bytes | bytearray) -> ConnectionEnding | None:
        try:
            self._budget.feed(data, trio.current_time())
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
                    return ConnectionEnding(EndReason.PEER_CLOSED, f"GOAWAY {event.error_code}")
                self._handle(event)
        except FloodError as error:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            return ConnectionEnding(EndReason.FLOOD, str(error))
        except OverlongFrameError as error:
            self._h2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            return ConnectionEnding(EndReason.PROTOCOL, str(error))
        except h2.exceptions.H2Error as error:
            return ConnectionEnding(EndReason.PROTOCOL, f"{type(error).__name__}: {error}")
        return None

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._calls.take_request(event, self._nursery)
            case h2.events.DataReceived():
                self._calls.take_data(event)
            case h2.events.StreamEnded():
                self._calls.take_end(event.stream_id)
            case h2.events.StreamReset():
                self._calls.take_reset(event.stream_id)
                self._writer.room.unpark_all()
            case h2.events.RemoteSettingsChanged():
                self._handshake_done = True
                self._extend()
                self._writer.room.unpark_all()
            case h2.events.WindowUpdated():
                self._writer.room.unpark_all()
            case h2.events.PingReceived() | h2.events.PingAckReceived():
                self._extend()
            case h2.events.ConnectionTerminated():
                self._peer_leaves = True
            case _:
                # Acknowledgements, trailers of a request, priorities, unknown frames: nothing to do.
                pass


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group, since it caused those after it."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
