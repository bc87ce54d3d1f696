"""What is out of service: nothing of it is given to anybody, and whoever has some of it keeps that.

A drain is of one device, of a resource, or of the node, which is all resources, also those that come later. A device is
out of service while any drain covers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..logs.lines import timestamp
from ..values import value


@value
class DrainTarget:
    """A device of a resource, a resource without a device, or without both the node."""

    resource: str | None = None
    #: One of several shares of a device, or the device with all its shares.
    device: str | None = None

    @property
    def words(self) -> str:
        """The target as texts name it; commands take a resource and a device in this form."""
        if self.resource is None:
            return "the node"
        return self.resource if self.device is None else f"{self.resource}:{self.device}"

    def covers(self, resource: str, device: str) -> bool:
        """Whether a device of a resource is meant."""
        return self.resource in (None, resource) and self.device in (None, device, unshared(device))


NODE: Final = DrainTarget()


@value
class Drain:
    """That a target is out of service; times are Unix seconds."""

    target: DrainTarget
    #: Who has said so.
    uid: int
    #: When it began.
    since: float
    #: Why, in the words of that user; may be empty.
    reason: str = ""
    #: When it ends by itself; None if it does not.
    until: float | None = None

    @property
    def why(self) -> str:
        """Until when, and the reason, after the name of the target; empty if neither is known."""
        until = "" if self.until is None else f" until {timestamp(self.until)}"
        return until + (f": {self.reason}" if self.reason else "")

    @property
    def words(self) -> str:
        """The target, until when, and why."""
        return self.target.words + self.why


#: All that is out of service.
Drains = Mapping[DrainTarget, Drain]


def unshared(device: str) -> str:
    """Return the id of a device without the number of a share."""
    return device.partition("::")[0]


def drain_of(drains: Drains, resource: str, device: str) -> Drain | None:
    """Return the drain that keeps a device from being given, the narrowest of several; None if none does."""
    if not drains:
        return None
    targets = (DrainTarget(resource, device), DrainTarget(resource, unshared(device)), DrainTarget(resource), NODE)
    return next((drains[target] for target in targets if target in drains), None)


def sorted_drains(drains: Drains) -> list[Drain]:
    """Return the drains in the order in which they are shown: the node, then resources, each before its devices."""
    return sorted(drains.values(), key=lambda drain: (drain.target.resource or "", drain.target.device or ""))
