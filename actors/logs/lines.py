"""The log: lines on standard error, which a separate task writes.

Formatting and queueing a line takes microseconds. Whatever happens to standard error (a reader that stops, a full disk,
a closed pipe), no actor waits for it or fails. Lost lines are counted, and a later line reports their number (fault
95).
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import trio

from ...protocol.logs.lines import Field, Format, Level, Logger, json_line, shown_fields, text_line

STANDARD: Final = logging.getLogger("plugind")
#: The most characters that wait to be written: enough for 30,000 plugins that vanish at once.
MAX_QUEUED: Final = 8 * 1024 * 1024
#: Bytes of each write: a writable pipe takes that many without blocking (PIPE_BUF).
PIECE: Final = 4096
#: Seconds for the last lines when the log stops.
GRACE: Final = 0.5


class DaemonLog(ABC):
    """The log of a daemon, which a separate task writes: a :class:`~plugind.protocol.logs.lines.Logger`."""

    def __init__(self, level: Level, max_queued: int) -> None:
        self._level = level
        self._max_queued = max_queued
        self._queued = 0
        self._running = False
        self._parked = trio.lowlevel.ParkingLot()
        #: How many events were lost since the last line or entry that reported it.
        self.dropped = 0

    def enabled(self, level: Level) -> bool:
        """Whether events of ``level`` are written."""
        return level >= self._level

    def set_level(self, level: Level) -> None:
        """Write events of ``level`` and above from now on."""
        self._level = level

    @abstractmethod
    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """Log the constant ``message`` with its variable ``fields``; never waits, never fails."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write events until cancelled, and then queued ones for at most :data:`GRACE` seconds."""
        self._running = True
        task_status.started()
        try:
            while True:
                await self._write_all()
                await self._parked.park()
        finally:
            with trio.move_on_after(GRACE, shield=True):
                await self._write_all()
            self._running = False

    @abstractmethod
    def write_now(self) -> None:
        """Write queued events, for a process that ends at once. Wait for a slow reader, but not for long."""

    @abstractmethod
    async def _write_all(self) -> None:
        """Write all queued events."""


class StandardLog:
    """Logs to a logger of the standard library: one record for each event, with a traceback after its fields."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def enabled(self, level: Level) -> bool:
        """Whether the logger takes events of ``level``."""
        return self._logger.isEnabledFor(level)

    def event(self, level: Level, message: str, /, *, traceback: Field = None, **fields: Field) -> None:
        """Log one record: ``message``, the ``fields``, and the ``traceback`` on separate lines."""
        if self._logger.isEnabledFor(level):
            below = "" if traceback is None else f"\n{traceback}"
            self._logger.log(level, "%s%s%s", message, shown_fields(fields), below)


def logger_of(log: Logger | logging.Logger) -> Logger:
    """Return ``log`` as what the node writes to."""
    return StandardLog(log) if isinstance(log, logging.Logger) else log


class Log(DaemonLog):
    """Writes lines to a descriptor and never closes it.

    Without :meth:`run`, lines are written at once.
    """

    def __init__(
        self,
        level: Level = Level.INFO,
        form: Format = Format.TEXT,
        *,
        descriptor: int = 2,
        wall: Callable[[], float] = time.time,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        super().__init__(level, max_queued)
        self._line = json_line if form is Format.JSON else text_line
        self._descriptor = descriptor
        self._wall = wall
        self._lines: collections.deque[str] = collections.deque()
        #: Bytes that were taken from the queue and not written yet, and the number of their lines.
        self._pending = b""
        self._pending_lines = 0
        #: Whether the last write failed, perhaps within a line.
        self._broken_line = False

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """See :class:`DaemonLog`."""
        if level < self._level:
            return
        line = self._line(self._wall(), level, message, fields)
        if not self._running:
            self._write_at_once(line)
        elif self._queued + len(line) > self._max_queued:
            self.dropped += 1
        else:
            self._queued += len(line)
            self._lines.append(line)
            self._parked.unpark()

    def write_now(self) -> None:
        """See :class:`DaemonLog`."""
        try:
            while self._lines or self._pending:
                if not self._pending:
                    self._take_lines()
                self._pending = self._pending[os.write(self._descriptor, self._pending) :]
        except OSError:
            self.dropped += self._pending_lines + len(self._lines)

    async def _write_all(self) -> None:
        while self._lines or self._pending:
            await self._write_some()

    async def _write_some(self) -> None:
        """Write the pending bytes, or else the next lines. After a cancellation, unwritten bytes stay pending."""
        if not self._pending:
            self._take_lines()
        try:
            while self._pending:
                await self._wait_writable()
                try:
                    written = os.write(self._descriptor, self._pending[:PIECE])
                except BlockingIOError:
                    continue
                self._pending = self._pending[written:]
        except OSError:
            # The reader is gone or the disk is full (fault 95). A later line reports how many lines were lost.
            self.dropped += self._pending_lines
            self._pending = b""
            self._broken_line = True

    def _take_lines(self) -> None:
        batch = ["\n"] if self._broken_line else []
        self._broken_line = False
        size = 0
        self._pending_lines = 0
        while self._lines and size < PIECE:
            size += len(self._lines[0])
            batch.append(self._lines.popleft())
            self._pending_lines += 1
        self._queued -= size
        if self.dropped and not self._lines:
            batch.append(self._line(self._wall(), Level.WARNING, "log lines dropped", {"dropped": self.dropped}))
            self._pending_lines += self.dropped
            self.dropped = 0
        self._pending = _encoded("".join(batch))

    async def _wait_writable(self) -> None:
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            await trio.lowlevel.checkpoint()
            return
        try:
            await trio.lowlevel.wait_writable(self._descriptor)
        except PermissionError as error:
            # A descriptor that cannot be polled, such as /dev/null, never blocks.
            if error.errno != errno.EPERM:
                raise
            await trio.lowlevel.checkpoint()

    def _write_at_once(self, line: str) -> None:
        try:
            os.write(self._descriptor, _encoded(line))
        except OSError:
            self.dropped += 1


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
