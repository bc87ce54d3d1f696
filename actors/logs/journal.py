"""The log under systemd: entries with fields in the journal, which a separate task sends.

As with lines (:mod:`.lines`), no actor waits for the journal or fails because of it. While the journal's queue is full,
entries wait here, up to :data:`~plugind.actors.logs.lines.MAX_QUEUED` bytes. Further entries, and those that cannot be
sent, are dropped and counted; a later entry reports their number (fault 95).
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Final

import trio

from ...protocol.logs.journal import journal_entry
from ...protocol.logs.lines import Field, Format, Level
from .journal_socket import PATH, JournalSocket, is_journal
from .lines import GRACE, MAX_QUEUED, DaemonLog, Log

_BATCH: Final = 16
_STANDARD_ERROR: Final = 2


class JournalLog(DaemonLog):
    """Sends entries to the journal.

    Without :meth:`run`, entries are sent at once; they wait only while the journal has no room.
    """

    def __init__(self, journal: JournalSocket, level: Level = Level.INFO, *, max_queued: int = MAX_QUEUED) -> None:
        super().__init__(level, max_queued)
        self._journal = journal
        self._entries: collections.deque[bytes] = collections.deque()

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """See :class:`DaemonLog`."""
        if level < self._level:
            return
        entry = journal_entry(level, message, fields)
        if self._queued + len(entry) > self._max_queued:
            self.dropped += 1
            return
        self._queued += len(entry)
        self._entries.append(entry)
        if self._running:
            self._parked.unpark()
        else:
            self._send_queued()

    def write_now(self) -> None:
        """See :class:`DaemonLog`."""
        self._journal.block(GRACE)
        self._send_queued()
        self.dropped += len(self._entries)
        self._entries.clear()

    async def _write_all(self) -> None:
        sent = 0
        while self._entries or self.dropped:
            try:
                if self._entries:
                    self._send_next()
                else:
                    self._report_dropped()
            except BlockingIOError:
                await self._journal.wait()
            except OSError:
                self._drop_next()
                return  # The next event tries again.
            sent += 1
            if sent % _BATCH == 0:
                await trio.lowlevel.checkpoint()

    def _send_queued(self) -> None:
        try:
            while self._entries:
                self._send_next()
        except (BlockingIOError, TimeoutError):
            return  # The entries wait.
        except OSError:
            self._drop_next()

    def _send_next(self) -> None:
        self._journal.send(self._entries[0])
        self._queued -= len(self._entries.popleft())

    def _drop_next(self) -> None:
        if self._entries:
            self._queued -= len(self._entries.popleft())
            self.dropped += 1

    def _report_dropped(self) -> None:
        """Report how many entries were lost, when all others are sent."""
        self._journal.send(journal_entry(Level.WARNING, "log lines dropped", {"dropped": self.dropped}))
        self.dropped = 0


def log_of(level: Level, form: Format, environment: Mapping[str, str], path: str = PATH) -> DaemonLog:
    """Return the log of a daemon: the journal with fields if standard error leads there, and lines otherwise.

    JSON lines always go to standard error.
    """
    if form is Format.TEXT and is_journal(_STANDARD_ERROR, environment):
        try:
            return JournalLog(JournalSocket(path), level)
        except OSError:
            pass  # In some containers only the journal's stream is there, and not its socket.
    return Log(level, form)
