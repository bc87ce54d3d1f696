"""The turns of a handler: one call at a time for each plugin name, in the order of the asks (behaviour 21).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import trio
import trio.lowlevel


class Turns:
    """One turn for each name, made when it is needed.

    A turn belongs to the call that has it, and not to a task: a thread that was given up keeps it until it returns. So
    it is no ``trio.Lock``, which only the task can release that has acquired it.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        #: The names whose turn is taken, with those that wait for it; None for nobody, as nearly always.
        self._taken: dict[str, trio.lowlevel.ParkingLot | None] = {}

    def take_nowait(self, name: str) -> bool:
        """Take the turn, and return True, if it is free."""
        if name in self._taken:
            return False
        self._taken[name] = None
        return True

    async def take(self, name: str) -> None:
        """Take the turn once all have passed it on that asked before."""
        if self.take_nowait(name):
            return
        lot = self._taken[name]
        if lot is None:
            lot = self._taken[name] = trio.lowlevel.ParkingLot()
        await lot.park()

    def pass_on(self, name: str) -> None:
        """Pass the turn on to the next, or free it."""
        lot = self._taken[name]
        if lot:
            lot.unpark()  # The turn stays taken, and is that of the task which goes on.
        else:
            del self._taken[name]
