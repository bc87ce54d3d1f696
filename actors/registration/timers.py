"""The times at which slow tries are looked at.

A cancel scope for each step would cost more than the step, and nearly all tries end at once. So all registrations share
one timer: it looks at a try :data:`FIRST_LOOK` seconds after the try got its dial slot, and then when the actor says
so. No timer runs while no try is under way.
"""

from __future__ import annotations

import trio

from ...protocol.registration.info_deadline import FIRST_LOOK
from ..messaging.timed_queue import TimedQueue
from .inbox import RegistrationInbox


class TryTimers:
    """Schedules looks at tries. A look at a try that has ended does nothing."""

    def __init__(self) -> None:
        self._looks = TimedQueue[RegistrationInbox]()

    def begin(self, inbox: RegistrationInbox, began: float) -> None:
        """Schedule the first look at a try that got its dial slot at ``began``, in ``trio.current_time()``."""
        self._looks.put(began + FIRST_LOOK, inbox)

    def look_at(self, inbox: RegistrationInbox, time: float) -> None:
        """Schedule a look at a try at ``time``."""
        self._looks.put(time, inbox)

    async def serve(self) -> None:
        """Look at each try when it is due, until cancelled."""
        while True:
            for inbox in await self._looks.due():
                again = None if inbox.look is None else inbox.look(trio.current_time())
                if again is not None:
                    self._looks.put(again, inbox)
