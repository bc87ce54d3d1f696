"""The one task that sends on a connection: what others queue leaves in order, in as few writes as may be."""

from __future__ import annotations

import trio

from .limits import End, Ending

#: Bytes queued above which whoever makes more has to wait.
_HIGH_WATER = 262144


class Writer:
    """A bounded queue of bytes and the task that sends them; no lock, since nobody else writes."""

    def __init__(self, stream: trio.abc.SendStream, *, write_timeout: float, farewell: float) -> None:
        self._stream = stream
        self._write_timeout = write_timeout
        self._farewell = farewell
        self._queue = bytearray()
        self._work = trio.Event()
        self._scope = trio.CancelScope()
        self._closing = False
        self._mid_write = False
        #: Where those wait who need room here, or a window of the client's.
        self.room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Enough is queued; wait at ``room`` and look again."""
        return len(self._queue) > _HIGH_WATER

    def put(self, data: bytes) -> None:
        """Queue bytes, whatever is queued already: who makes many asks ``full`` before."""
        if data:
            self._queue += data
            self._work.set()

    def close(self) -> None:
        """Let :meth:`run` end once all is written, or the farewell time is over."""
        self._closing = True
        self._scope.deadline = trio.current_time() + self._farewell
        self._work.set()

    async def run(self) -> Ending | None:
        """Send until closed: None when all was written or the farewell was over, else how the transport ended."""
        with self._scope:
            while not (self._closing and not self._queue):
                await self._work.wait()
                self._work = trio.Event()
                ending = await self._drain()
                if ending is not None:
                    return ending
        return None

    async def _drain(self) -> Ending | None:
        while self._queue:
            data, self._queue = bytes(self._queue), bytearray()
            with trio.move_on_after(self._write_timeout) as scope:
                ending = await self._send(data)
                if ending is not None:
                    return ending
            if scope.cancelled_caught:
                return Ending(End.NOT_READING, f"took nothing for {self._write_timeout:g} s")
            self.room.unpark_all()
        return None

    async def _send(self, data: bytes) -> Ending | None:
        self._mid_write = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return Ending(End.BROKEN, str(error))
        self._mid_write = False
        return None

    async def last_words(self) -> None:
        """Send what is queued although all around is cancelled, unless a write was cut within a frame."""
        if not self._mid_write:
            with trio.move_on_after(self._farewell, shield=True):
                await self._send(bytes(self._queue))
