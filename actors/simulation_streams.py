"""Connections in memory: pairs of connected unix stream sockets, as the actors meet them.

What travels on them is the real wire. The client's end is a :class:`~plugind.actors.io.transport.Transport` that waits
where a real socket's does: what it sends has left at once, and it waits for bytes alone. The server's end is a Trio
stream. Trio's own memory streams pass two checkpoints more for each call, to catch two users of one stream: a quarter
of the time that a simulation took.
"""

from __future__ import annotations

import errno
import os

import attrs
import trio

from plugind.actors.io.transport import READ_BYTES


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Pipe:
    """Bytes one way, any number of them; one task reads."""

    __slots__ = ("_data", "_reader", "_was_reset", "closed", "ended")

    def __init__(self) -> None:
        self._data = bytearray()
        self._reader: trio.lowlevel.Task | None = None
        self._was_reset = False
        #: No more will be sent.
        self.ended = False
        #: No more will be read.
        self.closed = False

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Send. Raises ConnectionResetError, or BrokenPipeError if nobody will read it."""
        if self._was_reset:
            raise _error(errno.ECONNRESET)
        if self.closed or self.ended:
            raise _error(errno.EPIPE)
        self._data += data
        self.wake()

    def end(self) -> None:
        """Send no more; what was sent arrives."""
        self.ended = True
        self.wake()

    def reset(self) -> None:
        """What was sent and not read is lost; either end learns that the connection broke."""
        self._was_reset = True
        self.wake()

    def get(self, most: int = READ_BYTES) -> bytes | None:
        """What can be read without waiting; None if nothing, b"" at the end. Raises ConnectionResetError."""
        if self._was_reset:
            raise _error(errno.ECONNRESET)
        if not self._data:
            return b"" if self.ended else None
        part = bytes(self._data[:most])
        del self._data[:most]
        return part

    async def wait(self) -> None:
        """Return once there may be something to read, or when woken. A checkpoint, whatever is there."""
        if self._data or self.ended or self.closed or self._was_reset:
            await trio.lowlevel.checkpoint()
            return
        assert self._reader is None, "one task reads"
        self._reader = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        """Let who waits look again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def close(self) -> None:
        """Read no more."""
        self.closed = True
        self._data.clear()
        self.wake()


class ClientEnd:
    """The end of who dialled: see :class:`plugind.actors.io.transport.Transport`."""

    buffers = False

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._nudged = False
        self.closed = False

    def send(self, data: bytearray) -> int:
        """See :class:`~plugind.actors.io.transport.Transport`."""
        self._outgoing.put(data)
        return len(data)

    async def drain(self) -> None:
        """See :class:`~plugind.actors.io.transport.Transport`: there is nothing to do."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """See :class:`~plugind.actors.io.transport.Transport`."""
        del unsent  # There is always room.
        self._nudged = False
        await self._incoming.wait()
        if self.closed:
            raise trio.ClosedResourceError
        return None if self._nudged else self._incoming.get()

    def receive_now(self) -> bytes | None:
        """See :class:`~plugind.actors.io.transport.Transport`."""
        return self._incoming.get()

    def nudge(self) -> None:
        """See :class:`~plugind.actors.io.transport.Transport`."""
        self._nudged = True
        self._incoming.wake()

    def close(self) -> None:
        """See :class:`~plugind.actors.io.transport.Transport`."""
        self.closed = True
        self._outgoing.end()
        self._incoming.close()


class ServerEnd(trio.abc.HalfCloseableStream):
    """The end of who listens. ``seconds_per_byte`` makes what it sends arrive byte by byte."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.seconds_per_byte = 0.0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See :class:`trio.abc.SendStream`."""
        if not self.seconds_per_byte:
            await trio.lowlevel.checkpoint()
            self._put(data)
            return
        for byte in bytes(data):
            await trio.sleep(self.seconds_per_byte)
            self._put(bytes((byte,)))

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        if self._outgoing.ended:
            raise trio.ClosedResourceError
        try:
            self._outgoing.put(data)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """See :class:`trio.abc.SendStream`."""
        await trio.lowlevel.checkpoint()

    def half_close(self) -> None:
        """Send no more, and read on (fault 37)."""
        self._outgoing.end()

    async def send_eof(self) -> None:
        """See :class:`trio.abc.HalfCloseableStream`."""
        self.half_close()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See :class:`trio.abc.ReceiveStream`."""
        most = READ_BYTES if max_bytes is None else max_bytes
        data = None
        while data is None:
            await self._incoming.wait()
            data = self._get(most)
        return data

    def _get(self, most: int) -> bytes | None:
        if self._incoming.closed:
            raise trio.ClosedResourceError
        try:
            return self._incoming.get(most)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """Close at once."""
        self._outgoing.end()
        self._incoming.close()

    async def aclose(self) -> None:
        """See :class:`trio.abc.AsyncResource`."""
        self.close()
        await trio.lowlevel.checkpoint()


@attrs.frozen(eq=False)
class Connection:
    """Both ends of one connection."""

    client: ClientEnd
    server: ServerEnd
    _pipes: tuple[Pipe, Pipe]

    def reset(self) -> None:
        """Break it: both ends learn that it was reset, whatever was on its way is lost."""
        for pipe in self._pipes:
            pipe.reset()


def connection() -> Connection:
    """Return a new connection."""
    to_server, to_client = Pipe(), Pipe()
    return Connection(ClientEnd(to_client, to_server), ServerEnd(to_server, to_client), (to_server, to_client))
