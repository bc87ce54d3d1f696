"""Connections in memory: pairs of ends that behave like connected unix stream sockets.

They carry the real wire format over Trio's memory streams. The server's end is little more than such a stream. The
client's end is a :class:`~plugind.actors.grpc.client.transport.Transport` that puts bytes into one stream and takes
them from the other by Trio's own interface for tests. So it waits where a real socket waits, and is faster than a
stream at that end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from ...protocol.wire.limits import ENDPOINT_LIMITS
from ..grpc.client.channel import Channel
from ..grpc.client.transport import READ_BYTES
from ..grpc.server.serve import Service, serve_stream


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class ReadProgress:
    """How much of the data sent by one end the other end has read."""

    __slots__ = ("_drains", "_read", "_sent", "read_at")

    def __init__(self) -> None:
        self._sent = self._read = 0
        self._drains = False
        #: When everything sent so far was read for the first time, on Trio's clock; None if that never was so.
        self.read_at: float | None = None

    @property
    def is_unread(self) -> bool:
        """Whether the other end has not read everything."""
        return self._read < self._sent

    def send(self, size: int) -> None:
        """Note that ``size`` bytes were sent."""
        self._sent += size
        if self._drains:
            self.read(size)

    def drain(self) -> None:
        """Read everything that is sent from now on, and drop it."""
        self._drains = True
        self.read(self._sent - self._read)

    def read(self, size: int) -> None:
        """Note that the other end has read ``size`` bytes."""
        self._read += size
        if size and self.read_at is None and not self.is_unread:
            self.read_at = trio.current_time()


class ClientEnd:
    """The end of the side that dialed: a :class:`~plugind.actors.grpc.client.transport.Transport`."""

    def __init__(self, incoming: trio.testing.MemorySendStream, outgoing: trio.testing.MemoryReceiveStream) -> None:
        incoming.send_all_hook = self._take_in
        incoming.close_hook = self._wake
        self._incoming = incoming
        self._outgoing = outgoing
        self._reader: trio.lowlevel.Task | None = None
        #: The progress of the other end.
        self.progress = ReadProgress()
        #: When the other end first sent something; None if it has not.
        self.heard_at: float | None = None
        self._woken = False
        self._was_reset = False
        self.closed = False
        #: See ``Transport``.
        self.read_bytes = READ_BYTES

    def send(self, data: bytes | bytearray) -> int:
        """See ``Transport``."""
        if self._was_reset:
            raise _error(errno.ECONNRESET)
        try:
            self._outgoing.put_data(data)
        except trio.ClosedResourceError:
            raise _error(errno.EPIPE) from None
        self.progress.send(len(data))
        return len(data)

    def is_unread(self) -> bool:
        """See ``Transport``."""
        return self.progress.is_unread

    def expect_nothing(self) -> None:
        """See ``Transport``. It always waits in the same way."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """See ``Transport``."""
        del unsent  # There is always room.
        self._woken = False
        await trio.lowlevel.checkpoint()
        data = self._read()
        if data is None and not self._interrupted:
            await self._wait()
            data = self._read()
        if self.closed:
            raise trio.ClosedResourceError
        return data

    @property
    def _interrupted(self) -> bool:
        """True if a wait must end, even without data."""
        return self._woken or self.closed

    def _read(self) -> bytes | None:
        return None if self._interrupted else self.receive_now()

    def receive_now(self) -> bytes | None:
        """See ``Transport``."""
        if self._was_reset:
            raise _error(errno.ECONNRESET)
        try:
            return bytes(self._incoming.get_data_nowait(READ_BYTES))
        except trio.WouldBlock:
            return None

    def wake(self) -> None:
        """See ``Transport``."""
        self._woken = True
        self._wake()

    def close(self) -> None:
        """See ``Transport``."""
        self.closed = True
        self._outgoing.put_eof()
        self._wake()

    def reset(self) -> None:
        """Break the connection: data that was sent and not read is lost."""
        self._was_reset = True
        self._wake()

    async def _take_in(self) -> None:
        """Wake the reader, because the server has sent something."""
        if self.closed or self._was_reset:
            raise trio.BrokenResourceError(os.strerror(errno.EPIPE))
        if self.heard_at is None:
            self.heard_at = trio.current_time()
        self._wake()

    async def _wait(self) -> None:
        self._reader = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)


class Gate:
    """Whether a process runs. While it is suspended, it neither reads nor sends."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    @property
    def open(self) -> bool:
        """Whether the process runs."""
        return self._opened.is_set()

    def shut(self) -> None:
        """Suspend the process."""
        if self.open:
            self._opened = trio.Event()

    def reopen(self) -> None:
        """Continue the process."""
        self._opened.set()

    async def passed(self) -> None:
        """Wait until the process runs."""
        while not self.open:
            await self._opened.wait()


class ServerEnd(trio.abc.HalfCloseableStream):
    """The end of the side that listens. With ``seconds_per_byte`` its bytes arrive one by one."""

    def __init__(self, outgoing: trio.testing.MemorySendStream, incoming: trio.testing.MemoryReceiveStream) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._was_reset = False
        self.seconds_per_byte = 0.0
        self.progress = ReadProgress()
        #: The gate of the process.
        self.gate = Gate()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See :class:`trio.abc.SendStream`."""
        await self.gate.passed()
        if not self.seconds_per_byte:
            await self._outgoing.send_all(data)
            return
        for byte in bytes(data):
            await trio.sleep(self.seconds_per_byte)
            await self._outgoing.send_all(bytes((byte,)))

    async def wait_send_all_might_not_block(self) -> None:
        """See :class:`trio.abc.SendStream`."""
        await self._outgoing.wait_send_all_might_not_block()

    def half_close(self) -> None:
        """Stop sending, and continue reading (fault 37)."""
        self._outgoing.close()

    async def send_eof(self) -> None:
        """See :class:`trio.abc.HalfCloseableStream`."""
        await self._outgoing.aclose()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        """See :class:`trio.abc.ReceiveStream`."""
        data = await self._incoming.receive_some(max_bytes)
        await self.gate.passed()
        self.progress.read(len(data))
        if self._was_reset:
            raise trio.BrokenResourceError(os.strerror(errno.ECONNRESET))
        return data

    def close(self) -> None:
        """Close at once."""
        self._outgoing.close()
        self._incoming.close()

    async def aclose(self) -> None:
        """See :class:`trio.abc.AsyncResource`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Break the connection: the next read fails."""
        self._was_reset = True
        self._incoming.put_eof()


@attrs.frozen(eq=False)
class MemoryConnection:
    """Both ends of one connection."""

    client: ClientEnd
    server: ServerEnd

    def reset(self) -> None:
        """Reset the connection: both ends notice it, and data in transit is lost."""
        self.client.reset()
        self.server.reset()


def memory_connection() -> MemoryConnection:
    """Return a new connection."""
    to_client, to_server = trio.testing.MemorySendStream(), trio.testing.MemoryReceiveStream()
    client, server = ClientEnd(to_client, to_server), ServerEnd(to_client, to_server)
    server.progress = client.progress
    return MemoryConnection(client, server)


@asynccontextmanager
async def connected(*services: Service) -> AsyncIterator[Channel]:
    """Serve ``services`` over a connection in memory for a block; yield the channel to them, as from ``Link.connect``.

    ::

        async with connected(OurHealth()) as channel:
            await CheckingHandler().ask(channel)

    It needs no node, and runs in real time as in virtual time.
    """
    made = memory_connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, services, made.server)
        async with Channel(made.client, limits=ENDPOINT_LIMITS) as channel:
            yield channel
        nursery.cancel_scope.cancel()
