"""The one task that sends on a connection: what others queue is sent in order, in as few writes as possible."""

from __future__ import annotations

import trio

from .reports import ConnectionEnding, EndReason

#: Bytes in the queue above which tasks wait before they add more.
_HIGH_WATER = 262144


class Writer:
    """A bounded queue of bytes and the task that sends them. It needs no lock, since nothing else writes."""

    def __init__(self, stream: trio.abc.SendStream, *, write_timeout: float, farewell: float) -> None:
        self._stream = stream
        self._write_timeout = write_timeout
        self._farewell = farewell
        self._queue = bytearray()
        self._work = trio.Event()
        self._scope = trio.CancelScope()
        #: No more is expected, and :meth:`run` ends soon.
        self.closing = False
        self._mid_write = False
        #: Where tasks wait for room in the queue, or for a window of the client's.
        self.room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Whether enough is queued; a task waits at ``room`` and looks again."""
        return len(self._queue) > _HIGH_WATER

    def put(self, data: bytes) -> None:
        """Queue bytes. A task that adds many asks ``full`` before."""
        if data:
            self._queue += data
            self._work.set()

    def close(self) -> None:
        """Let :meth:`run` end once everything is written, or the farewell time is over."""
        self.closing = True
        self._scope.deadline = trio.current_time() + self._farewell
        self._work.set()

    async def run(self) -> ConnectionEnding | None:
        """Send until closed; returns how the transport ended, None if it did not."""
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
        """Send what is queued although the caller is cancelled, unless a write was cut off within a frame."""
        if not self._mid_write:
            with trio.move_on_after(self._farewell, shield=True):
                await self._send(bytes(self._queue))
