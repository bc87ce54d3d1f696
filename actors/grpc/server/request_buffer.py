"""The request side of one call, from DATA frames to messages."""

from __future__ import annotations

from collections import deque

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from .sender import FrameSender

#: Bytes before each message: a flag for compression, and the length.
_PREFIX = 5
#: Pieces of a message below this size cost more to parse than to send.
_TINY = 256


class RequestBuffer:
    """The request of one call: DATA as it arrives, split into messages only when the handler asks for them.

    Bytes are acknowledged to flow control when they become part of the message that is being read, so the buffer is
    bounded by the stream's window plus one message.
    """

    def __init__(self, stream_id: int, sender: FrameSender, max_message: int) -> None:
        self._stream_id = stream_id
        self._sender = sender
        self._max_message = max_message
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._buffer = bytearray()
        self._changed = trio.Event()
        #: The present message: the part of its prefix that has come, and how many bytes of its content are missing.
        self._prefix = bytearray()
        self._missing = 0
        #: Whether the client has ended its side.
        self.ended = False
        #: Whether the client has reset the call, which then gets no answer.
        self.reset = False

    def put(self, data: bytes, flow_size: int) -> bool:
        """Store the content of one DATA frame; ``flow_size`` includes its padding.

        Return True for a tiny piece that ends neither a message nor its prefix. No client needs many of those.
        """
        self._chunks.append((data, flow_size))
        self._changed.set()
        return not self._ends_a_part(data) and 0 < len(data) < _TINY

    def _ends_a_part(self, data: bytes) -> bool:
        """Whether a message or a prefix ends within ``data``, the next bytes of the request."""
        at, ends = 0, False
        while at < len(data):
            if self._missing:
                step = min(self._missing, len(data) - at)
                self._missing -= step
                ends |= not self._missing
            else:
                step = min(_PREFIX - len(self._prefix), len(data) - at)
                self._prefix += data[at : at + step]
                if len(self._prefix) == _PREFIX:
                    self._missing = int.from_bytes(self._prefix[1:], "big")
                    self._prefix.clear()
                    ends = True
            at += step
        return ends

    def end(self) -> None:
        """Note that the client has ended its side."""
        self.ended = True
        self._changed.set()

    def abort(self) -> None:
        """Note that the client has reset the call."""
        self.reset = True

    def release(self) -> None:
        """Acknowledge the bytes that will not be read, so that other calls of the connection do not starve."""
        while self._chunks:
            self._take_chunk()
        self._buffer.clear()

    @property
    def empty(self) -> bool:
        """Whether all bytes so far belong to messages that were returned."""
        return not self._buffer and not self._chunks

    async def next(self) -> bytes | None:
        """Wait for the next message and return its bytes; None when the client has ended its side.

        Raises:
          GRPCError: RESOURCE_EXHAUSTED for a message over the limit, INTERNAL for one that is cut short or has a bad
            flag, UNIMPLEMENTED for a compressed one.
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
        """Wait until a byte of the next message has come, or the client has ended its side."""
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
        """Return the size of the first message in the buffer with its prefix, as far as it is known."""
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
            self._sender.acknowledge(self._stream_id, flow_size)
