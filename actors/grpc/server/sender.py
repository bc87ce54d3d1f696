"""What is sent on one connection: h2, which knows the state of each stream, makes the frames, the writer sends them.

h2 takes in all of a read before the first of its events is seen. So a stream may be gone when its request is answered,
and every method here says what it does then.
"""

from __future__ import annotations

import contextlib

import h2.connection
import h2.exceptions
from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

from .budget import FrameBudget, FrameKind
from .headers import Headers
from .writer import Writer


class FrameSender:
    """Queues frames. Nothing here waits, except :meth:`send_message` for the client's windows."""

    def __init__(self, connection: h2.connection.H2Connection, writer: Writer, budget: FrameBudget) -> None:
        self._h2 = connection
        self._writer = writer
        self._budget = budget

    @property
    def closing(self) -> bool:
        """Whether the connection ends, so that nothing more is answered."""
        return self._writer.closing

    def flush(self) -> None:
        """Hand the writer what h2 has to send."""
        self._writer.put(self._h2.data_to_send())

    def goaway(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Queue GOAWAY; the calls in progress may still be answered.

        It is made by hand, since h2 takes a connection for closed once it has sent GOAWAY itself.
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
        """Queue HEADERS that are the whole answer; a stream that is gone gets none."""
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
        """Queue RST_STREAM; a stream that is gone needs none."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, code)
        self.flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give ``size`` flow-controlled bytes back to the client, unless the connection ends."""
        if not self.closing:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self._h2.acknowledge_received_data(size, stream_id)
            self.flush()
