"""What must hold of the preparation of devices, as the processes of device plugins see it.

Nothing recalls an Allocate. So a process that has not come to an end with one may still be at the device. Nobody is
asked to prepare that for another lease before the process has ended, or the time is over for which it is withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON

if TYPE_CHECKING:
    from plugind.actors.simulation.network import Process

#: Seconds for which the devices of a lease are withheld whose outcome is not known.
WITHHELD: Final = 60.0

Thing = tuple[str, str]


@attrs.define(eq=False)
class Preparing:
    """One call that prepares devices: Allocate, or PreStartContainer after it."""

    resource: str
    method: str
    devices: tuple[str, ...]
    process: Process | None
    began: float
    #: When it broke off without an answer; None as long as it goes on.
    broke_off: float | None = None
    #: When whoever waited for the answer crashed; None if that has not happened.
    forsaken: float | None = None

    def things(self) -> Iterator[Thing]:
        """Yield the devices, each with its resource."""
        return ((self.resource, device) for device in self.devices)


@attrs.define(eq=False)
class PreparationOracle:
    """No device is prepared while a process may still be preparing it for another lease."""

    _violated: Callable[[str, str], None]
    #: Says whether the store has a lease with this device.
    is_written: Callable[[str, str], bool] = lambda *_: True
    #: What has not come to an end, or not in order.
    _open: list[Preparing] = attrs.field(init=False, factory=list)
    #: The devices whose last call was refused, since when.
    refusals: dict[Thing, float] = attrs.field(init=False, factory=dict)

    def begins(self, preparing: Preparing) -> None:
        """A process is asked to prepare devices."""
        now, wanted = trio.current_time(), set(preparing.things())
        for thing in wanted:
            self.refusals.pop(thing, None)
        for resource, device in wanted:
            if not self.is_written(resource, device):
                self._violated("withheld", f"{device} of {resource} is prepared for a lease that is not written")
        for other in self._open:
            both = wanted & set(other.things())
            if both and now < _until(other) - EPSILON:
                text = f"{sorted(both)} are prepared by {preparing.method} at {now:g}; {other.method} began at"
                self._violated("withheld", f"{text} {other.began:g} and broke off at {other.broke_off}")
        self._open.append(preparing)

    def answered(self, preparing: Preparing) -> None:
        """It has come to an end."""
        self._open.remove(preparing)

    def refused(self, preparing: Preparing) -> None:
        """The process has refused: it holds nothing for the lease."""
        self._open.remove(preparing)
        self.refusals.update(dict.fromkeys(preparing.things(), trio.current_time()))

    def lost(self, preparing: Preparing) -> None:
        """The call has broken off, and the process may go on with it."""
        preparing.broke_off = trio.current_time()

    def forsaken(self) -> None:
        """The lease actor crashes: what is under way has no known outcome from now on, nor what is withheld now.

        The devices of a call that broke off long ago are free already, and a crash does not change that.
        """
        now = trio.current_time()
        for preparing in self._open:
            if preparing.forsaken is None and now < _until(preparing) - EPSILON:
                preparing.forsaken = now

    def crashed(self, time: float) -> None:
        """An actor crashed last at ``time``: what was refused just before may not have arrived."""
        for thing in [thing for thing, refused in self.refusals.items() if 0 <= time - refused < 1.0]:
            del self.refusals[thing]

    def process_ended(self, process: Process | None) -> None:
        """The process has ended, and with it all that it was at."""
        self._open[:] = [preparing for preparing in self._open if preparing.process is not process]

    def recovered(self) -> None:
        """An operator has said that no device is in use that is of no lease which is known."""
        self._open[:] = [
            preparing for preparing in self._open if any(self.is_written(*thing) for thing in preparing.things())
        ]

    def rebooted(self) -> None:
        """The machine has booted."""
        self._open.clear()


def _until(preparing: Preparing) -> float:
    """Return until when nobody else may have its devices."""
    unknown_since = preparing.broke_off if preparing.forsaken is None else preparing.forsaken
    return float("inf") if unknown_since is None else unknown_since + WITHHELD
