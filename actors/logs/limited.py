"""The log of a node, which limits the lines about each thing.

:mod:`plugind.protocol.logs.limits` decides which lines are left out. This module writes the summaries of them, when
they are due and at the end of the node.
"""

from __future__ import annotations

import math

import trio

from ...protocol.logs.limits import LineCounts, LogLimits, LogLine
from ...protocol.logs.lines import Field, Level, Logger


class LimitedLog:
    """A :class:`~plugind.protocol.logs.lines.Logger` that writes to another one, within limits."""

    def __init__(self, log: Logger, limits: LogLimits) -> None:
        self._log = log
        #: Whether events of a level are written: the method of the other logger.
        self.enabled = log.enabled
        self._lines = LineCounts(limits)
        self._left_out = trio.Event()

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """Log the constant ``message`` with its variable ``fields``, unless there were too many similar events."""
        if not self._log.enabled(level):
            return
        now = trio.current_time()
        line = self._lines.without_known_traceback(LogLine(level, message, fields), now)
        if self._lines.leaves_out(line, now):
            self._left_out.set()
            return
        if self._lines.has_summaries:
            self._write_summaries(now)
        self._log.event(level, message, **line.fields)

    async def run(self) -> None:
        """Write the summaries when they are due, until cancelled. No timer runs otherwise."""
        while True:
            await self._left_out.wait()
            self._left_out = trio.Event()
            while (due := self._lines.due) < math.inf:
                await trio.sleep_until(due)
                self._write_summaries(trio.current_time())

    def close(self) -> None:
        """Write all summaries, at the end of the node."""
        self._write_summaries(math.inf)

    def _write_summaries(self, now: float) -> None:
        for line in self._lines.take_summaries(now):
            self._log.event(line.level, line.message, **line.fields)
