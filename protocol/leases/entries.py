"""What the book keeps of one lease, and until when."""

from __future__ import annotations

import math

import attrs

from ..messages.addresses import Address
from ..plugins.devices import Key
from ..values import record, value
from .messages import DeviceCall, Failure, InLine
from .states import LeasePhase
from .values import Answer, Lease, Owner


@attrs.define(eq=False)
class Asker:
    """Somebody who waits for the answer."""

    reply: Address[Lease | Failure]
    #: Until when it waits for devices; None if it does not wait.
    deadline: float | None = None
    #: Gets the place in line.
    progress: Address[InLine] | None = None
    #: The place of which it was told last, who is before it, whether the healthy devices were enough, and why a limit
    #: of its user held it back.
    told: tuple[int, tuple[str, ...], bool, str | None] | None = None

    def waits(self, now: float) -> bool:
        """Whether it still waits for devices at ``now``."""
        return self.deadline is not None and self.deadline > now


@record(eq=False)
class LeaseEntry:
    """One lease, with who waits for it and what is still to come."""

    lease: Lease
    #: Its number in the order of arrival.
    arrival: int
    phase: LeasePhase = LeasePhase.QUEUED
    #: Whether the caller gave it its name, by which it may ask for it again.
    named: bool = True
    #: Who waits for the answer, by ticket.
    askers: dict[int, Asker] = attrs.field(factory=dict)
    #: All tickets by which it was asked for.
    tickets: set[int] = attrs.field(factory=set)
    #: The resources whose plugins are asked what they prefer, and what those have said that have answered.
    asked: set[str] = attrs.field(factory=set)
    preferred: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    #: Where calls wait or are under way, by resource.
    calling: dict[str, Address[DeviceCall]] = attrs.field(factory=dict)
    #: The resource whose plugin is preparing devices.
    preparing: str | None = None
    answers: dict[str, Answer] = attrs.field(factory=dict)
    #: The plugin that may still be preparing devices.
    lost: Key | None = None
    #: The number of the write that is awaited.
    write: int | None = None
    #: Whether a row, a file and a watch of its owner may be there.
    written: bool = False
    filed: bool = False
    watched: bool = False
    #: Whether its user may open nodes because of it.
    admitted: bool = False
    #: Whether its owner was told to stop, since a device is unhealthy.
    stopped: bool = False
    #: Whether subscribers know of it.
    shown: bool = False

    def next_end(self) -> float:
        """Until when all of its askers wait for devices; infinity if there are none."""
        return min((asker.deadline or 0.0 for asker in self.askers.values()), default=math.inf)


@value
class Amendment:
    """A change of the owner of a lease that is held, while it is being written."""

    id: str
    before: Owner
    after: Owner
    #: Whether its container had ended, and until when it had time; None if its end was not known.
    grace: bool
    end: float | None
    reply: Address[Lease | Failure]
