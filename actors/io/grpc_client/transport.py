"""What a `Channel` stands on: a unix socket, or any Trio stream for conversations in memory.

The port is small because one task at a time drives a channel: it sends what goes without waiting, then waits until
there is something to read or room to send.
"""

import select
import socket
from typing import Final, Protocol, cast

import trio

READ_BYTES: Final = 32 * 1024
_GIVE_UP_SENDING: Final = 5.0


class Transport(Protocol):
    """Bytes to a peer and back. Errors of the operating system and of Trio's streams pass through."""

    @property
    def buffers(self) -> bool:
        """True if what `send` takes is under way only after `drain`."""

    def send(self, data: bytearray) -> int:
        """Send from the start of `data` what goes without waiting. Returns how many bytes that was."""

    async def drain(self) -> None:
        """Bring what `send` took on its way."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """Wait for bytes, or with `unsent` for room to send. b"" at the end, None when only room or a nudge came."""

    def receive_now(self) -> bytes | None:
        """What can be read without waiting; None if nothing, b"" at the end."""

    def nudge(self) -> None:
        """Make a `receive` that waits return None."""

    def close(self) -> None:
        """Close at once; a `receive` that waits raises `trio.ClosedResourceError`."""


class SocketTransport:
    """A connected, non-blocking stream socket, which it owns."""

    __slots__ = ("_closed", "_nudged", "_reads_first", "_socket", "_waits_on")

    buffers = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._waits_on = -1
        self._closed = False
        self._nudged = False
        # A wait costs more system calls than a read. Where other tasks are busy the answer to a short call is there as
        # soon as they had their turn; a connection that it once was not there for, an idle stream's say, waits first.
        self._reads_first = True

    def send(self, data: bytearray) -> int:
        """See `Transport`."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def drain(self) -> None:
        """See `Transport`: there is nothing to do."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """See `Transport`."""
        if unsent:
            return await self._either_way()
        if self._reads_first:
            self._nudged = False
            await trio.lowlevel.checkpoint()
            if self._closed:
                raise trio.ClosedResourceError
            if self._nudged:
                return None
            try:
                return self._socket.recv(READ_BYTES)
            except BlockingIOError:
                self._reads_first = False
        descriptor = self._waits_on = self._socket.fileno()
        try:
            await trio.lowlevel.wait_readable(descriptor)
            return self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except trio.ClosedResourceError:
            # That is how a nudge arrives; the socket is still open then.
            if self._closed:
                raise
            return None
        finally:
            self._waits_on = -1

    async def _either_way(self) -> bytes | None:
        """Wait for bytes or for room: an epoll descriptor is readable when what it watches is ready."""
        with select.epoll(1) as either:
            either.register(self._socket, select.EPOLLIN | select.EPOLLOUT)
            self._waits_on = either.fileno()
            try:
                await trio.lowlevel.wait_readable(either.fileno())
            except trio.ClosedResourceError:
                if self._closed:
                    raise
            finally:
                self._waits_on = -1
        return self.receive_now()

    def receive_now(self) -> bytes | None:
        """See `Transport`."""
        try:
            return self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None

    def nudge(self) -> None:
        """See `Transport`."""
        self._nudged = True
        if self._waits_on >= 0:
            trio.lowlevel.notify_closing(self._waits_on)

    def close(self) -> None:
        """See `Transport`."""
        if not self._closed:
            self._closed = True
            self.nudge()
            self._socket.close()


class StreamTransport:
    """A Trio stream that takes what it is given, as memory streams do.

    `drain` is not interrupted half-way, so that cancelling a call never cuts a frame; on a stream that blocks for
    seconds it gives up and the connection is broken. The stream, or both halves of a `trio.StapledStream`, need a
    `close` that does not wait, as memory streams have; TypeError otherwise.
    """

    __slots__ = ("_closed", "_halves", "_queue", "_receiving", "_sending", "_stream")

    buffers = True

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._halves = _halves(stream)
        self._stream = stream
        self._queue = bytearray()
        self._sending = False
        self._closed = False
        self._receiving: trio.CancelScope | None = None

    def send(self, data: bytearray) -> int:
        """See `Transport`."""
        self._queue += data
        return len(data)

    async def drain(self) -> None:
        """See `Transport`. Whoever drains also brings on its way what others add meanwhile."""
        if self._sending:
            return
        self._sending = True
        try:
            with trio.move_on_after(_GIVE_UP_SENDING, shield=True) as scope:
                while self._queue:
                    part, self._queue = bytes(self._queue), bytearray()
                    await self._stream.send_all(part)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer takes no bytes")
        finally:
            self._sending = False

    async def receive(self, *, unsent: bool) -> bytes | None:
        """See `Transport`."""
        del unsent  # `send` takes everything.
        scope = self._receiving = trio.CancelScope()
        with scope:
            try:
                return bytes(await self._stream.receive_some(READ_BYTES))
            finally:
                self._receiving = None
        if self._closed:
            raise trio.ClosedResourceError
        return None

    def receive_now(self) -> bytes | None:
        """See `Transport`."""
        return None

    def nudge(self) -> None:
        """See `Transport`."""
        if self._receiving is not None:
            self._receiving.cancel()

    def close(self) -> None:
        """See `Transport`."""
        if not self._closed:
            self._closed = True
            self.nudge()
            for half in self._halves:
                half.close()


class _ClosesNow(Protocol):
    def close(self) -> None: ...


def _halves(stream: trio.abc.Stream) -> tuple[_ClosesNow, ...]:
    parts = (stream.send_stream, stream.receive_stream) if isinstance(stream, trio.StapledStream) else (stream,)
    for part in parts:
        if not callable(getattr(part, "close", None)):
            raise TypeError(f"{part!r} has no close() that does not wait")
    return cast("tuple[_ClosesNow, ...]", parts)
