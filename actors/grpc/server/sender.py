"""Sending on one connection: h2, which has the state of each stream, makes frames, and a writer sends them.

h2 processes a whole read before the first of its events is handled. So a stream can be gone when its request is
answered, and every method here describes what it does then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from typing import cast

import h2.connection
import h2.exceptions
import trio
from grpclib.const import Status
from grpclib.exceptions import StreamTerminatedError
from grpclib.metadata import decode_metadata, encode_grpc_message, encode_metadata
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame
from multidict import MultiDict

from .budget import FrameBudget, FrameKind
from .reports import ConnectionEnding, EndReason

Headers = list[tuple[str, str]]
MetadataLike = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]

#: gRPC over HTTP/2: one to eight digits and a unit.
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
#: Bytes of a status message; clients refuse header lists of 8 KiB, and each byte can become three (fault 94).
_MAX_STATUS_MESSAGE = 1300


def header_text(value: bytes | str) -> str:
    """Return a field as text, one character for each byte. It never fails; non-ASCII fields are refused where they are
    used.
    """
    return value.decode("latin-1") if isinstance(value, bytes) else value


def refusal_of(headers: Mapping[str, str]) -> Headers | None:
    """Return the HTTP answer to a request that is not gRPC; None for a gRPC request."""
    if headers.get(":method") != "POST":
        return [(":status", "405")]
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip() not in ("application/grpc", "application/grpc+proto"):
        return [(":status", "415")]
    return None


def parse_timeout(value: str) -> float:
    """Return the seconds in a grpc-timeout field.

    Raises:
      ValueError: if the field does not have gRPC's form.
    """
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"not a grpc-timeout: {value[:20]!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_metadata(headers: Headers) -> MultiDict[str | bytes]:
    """Return the invocation metadata among the fields of a request.

    Raises:
      ValueError: if the value of a ``-bin`` key is not base64.
    """
    return cast("MultiDict[str | bytes]", decode_metadata(headers))


def metadata_fields(metadata: MetadataLike | None) -> Headers:
    """Return the fields for ``metadata``."""
    return cast(Headers, list(encode_metadata(metadata))) if metadata else []


def reply_headers() -> Headers:
    """Return the fields with which every reply begins."""
    return [(":status", "200"), ("content-type", "application/grpc+proto")]


def status_headers(status: Status, message: str | None) -> Headers:
    """Return the grpc-status and grpc-message fields; cut a long message and replace what is not UTF-8 (fault 94)."""
    headers = [("grpc-status", str(status.value))]
    if message is not None:
        text = message.encode("utf-8", "replace")[:_MAX_STATUS_MESSAGE].decode("utf-8", "ignore")
        headers.append(("grpc-message", encode_grpc_message(text)))
    return headers


#: Bytes in the queue above which tasks wait before they add more.
_HIGH_WATER = 262144


class Writer:
    """A bounded queue of bytes and the task that sends them. No lock is needed, because nothing else writes."""

    def __init__(self, stream: trio.abc.SendStream, *, write_timeout: float, farewell: float) -> None:
        self._stream = stream
        self._write_timeout = write_timeout
        self._farewell = farewell
        self._queue = bytearray()
        self._work = trio.Event()
        self._scope = trio.CancelScope()
        #: Whether no more bytes will be queued, so that :meth:`run` ends soon.
        self.closing = False
        self._mid_write = False
        #: Tasks wait here for room in the queue, or for a window of the client.
        self.room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Whether the queue is full; a task then waits at ``room`` and checks again."""
        return len(self._queue) > _HIGH_WATER

    def put(self, data: bytes) -> None:
        """Queue bytes. Before many bytes, the caller must check ``full``."""
        if data:
            self._queue += data
            self._work.set()

    def close(self) -> None:
        """Make :meth:`run` end once everything is written, or the farewell time is over."""
        self.closing = True
        self._scope.deadline = trio.current_time() + self._farewell
        self._work.set()

    async def run(self) -> ConnectionEnding | None:
        """Send until closed; return how the transport ended, None if it did not."""
        with self._scope:
            while not (self.closing and not self._queue):
                await self._work.wait()
                self._work = trio.Event()
                ending = await self._drain()
                if ending is not None:
                    return ending
        return None

    async def _drain(self) -> ConnectionEnding | None:
        while self._queue:
            data, self._queue = bytes(self._queue), bytearray()
            with trio.move_on_after(self._write_timeout) as scope:
                ending = await self._send(data)
                if ending is not None:
                    return ending
            if scope.cancelled_caught:
                return ConnectionEnding(EndReason.NOT_READING, f"took nothing for {self._write_timeout:g} s")
            self.room.unpark_all()
        return None

    async def _send(self, data: bytes) -> ConnectionEnding | None:
        self._mid_write = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return ConnectionEnding(EndReason.BROKEN, str(error))
        self._mid_write = False
        return None

    async def send_rest(self) -> None:
        """Send the queue even though the caller is cancelled, unless a write was cut off within a frame."""
        if not self._mid_write:
            with trio.move_on_after(self._farewell, shield=True):
                await self._send(bytes(self._queue))


class FrameSender:
    """Queues frames. Nothing here waits, except :meth:`send_message` for the client's windows."""

    def __init__(self, connection: h2.connection.H2Connection, writer: Writer, budget: FrameBudget) -> None:
        self._h2 = connection
        self._writer = writer
        self._budget = budget

    @property
    def closing(self) -> bool:
        """Whether the connection ends, and nothing more is answered."""
        return self._writer.closing

    def flush(self) -> None:
        """Pass h2's output to the writer."""
        self._writer.put(self._h2.data_to_send())

    def goaway(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Queue GOAWAY; calls in progress can still be answered.

        The frame is made here, because h2 treats a connection as closed once it has sent GOAWAY itself.
        """
        last = self._h2.highest_inbound_stream_id
        self._writer.put(GoAwayFrame(0, last_stream_id=last, error_code=code).serialize())

    def send_headers(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        """Queue HEADERS.

        Raises:
          StreamTerminatedError: if the stream is gone.
        """
        try:
            self._h2.send_headers(stream_id, headers, end_stream=end_stream)
        except h2.exceptions.ProtocolError as error:
            raise StreamTerminatedError(str(error)) from error
        self.flush()

    def answer(self, stream_id: int, headers: Headers) -> None:
        """Queue HEADERS that are the whole answer; do nothing if the stream is gone."""
        with contextlib.suppress(StreamTerminatedError):
            self.send_headers(stream_id, headers, end_stream=True)

    async def send_message(self, stream_id: int, payload: bytes) -> None:
        """Send DATA as flow control and the writer allow.

        Raises:
          StreamTerminatedError: if the stream is gone.
        """
        view = memoryview(payload)
        while view:
            try:
                room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                if room > 0 and not self._writer.full:
                    self._h2.send_data(stream_id, bytes(view[:room]))
                    self._budget.credit(FrameKind.WINDOW_UPDATE)
                    self.flush()
                    view = view[room:]
                    continue
            except h2.exceptions.ProtocolError as error:
                raise StreamTerminatedError(str(error)) from error
            await self._writer.room.park()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Queue RST_STREAM; do nothing if the stream is gone."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, code)
        self.flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Return ``size`` flow-controlled bytes to the client, unless the connection ends."""
        if not self.closing:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self._h2.acknowledge_received_data(size, stream_id)
            self.flush()
