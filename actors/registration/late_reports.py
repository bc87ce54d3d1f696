"""Reports of first tries that take long.

The first try of a generation is silent: one report at its end says all, and in a storm most are over at once. A task
that waits inside of a plugin's or a handler's code cannot report by itself that it takes long. So the owner of all
registrations asks each for a report that is still silent :data:`SILENT_FOR` seconds after it got its dial slot.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque

import trio
import trio.lowlevel

from ...protocol.messages import ReportAsked
from .inbox import RegistrationInbox

#: Seconds for which the first try of a generation is silent.
SILENT_FOR = 0.2


class LateReports:
    """The first tries that are under way, in the order in which they began. No timer runs while there is none."""

    def __init__(self) -> None:
        self._expected: deque[tuple[float, RegistrationInbox]] = deque()
        self._sleeps = trio.lowlevel.ParkingLot()

    def expect(self, inbox: RegistrationInbox, began: float) -> None:
        """Ask the actor of ``inbox`` for a report if it is silent then; its try began at ``trio.current_time()``."""
        self._expected.append((began + SILENT_FOR, inbox))
        if self._sleeps:
            self._sleeps.unpark()

    async def serve(self) -> None:
        """Ask for reports when they are due, until cancelled."""
        while True:
            if not self._expected:
                await self._sleeps.park()
            await trio.sleep_until(self._expected[0][0])
            now = trio.current_time()
            while self._expected and self._expected[0][0] <= now:
                _, inbox = self._expected.popleft()
                if inbox.is_silent:
                    inbox.send_nowait(ReportAsked())
