"""The shared state of a node's connections: the turns of busy connections, and the account of unparsed bytes.

A connection reads at most ``Transport.read_bytes`` at once and handles frames up to :data:`TURN`; then other tasks run.
A plugin whose answer needs no more never waits. One that needs more is probably a flooder, and there can be hundreds:
if each had a turn in each pass of Trio's loop, other tasks would wait for all of them in each step. So one connection
that has used up its turn goes on in each pass of the loop, in order.
"""

from typing import Final

import trio

from ....protocol.wire.budgets import UnparsedBytes
from ....protocol.wire.limits import UNLIMITED

#: How much work a connection can cause before others run, as ``ClientConnection.receive`` counts it. The answer to a
#: registration call costs less than 20, or 100 if its headers are new.
TURN: Final = 128


class PassTurns:
    """Lets one connection go on in each pass of the loop, in the order in which they asked."""

    __slots__ = ("_line", "_taken")

    def __init__(self) -> None:
        self._line = trio.lowlevel.ParkingLot()
        #: Whether a task has the turn of the next pass.
        self._taken = False

    async def wait(self) -> None:
        """Return in a pass of the loop in which no other connection goes on; always a checkpoint."""
        if self._taken:
            await self._line.park()
            self._pass_on()
        else:
            self._taken = True
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn of the next pass to the first in line."""
        if self._line:
            self._line.unpark()
        else:
            self._taken = False


class Shared:
    """The shared state of all connections of a node."""

    __slots__ = ("turns", "unparsed")

    def __init__(self, unparsed_bytes: int = UNLIMITED) -> None:
        self.turns: Final = PassTurns()
        self.unparsed: Final = UnparsedBytes(unparsed_bytes)
