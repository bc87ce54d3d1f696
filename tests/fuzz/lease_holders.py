"""Those who ask for leases in a script, and the leases that they were told of, as they see them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs

from plugind.protocol.leases.messages import Failure
from plugind.protocol.leases.values import Lease, Owner, Request
from plugind.tests.fuzz.preparation_oracle import Thing

#: The label by which a lease is known as that of one asking.
LABEL: Final = "asking"


@attrs.define(eq=False)
class Asking:
    """One caller that asks for a lease; it is the address of its answer."""

    ticket: int
    request: Request
    owner: Owner
    uid: int
    asked: float
    id: str | None
    deadline: float | None
    _take: Callable[[Asking, Lease | Failure], None]
    answer: Lease | Failure | None = None
    answered: float | None = None
    #: Whether it waits no more: it has left, or its daemon has ended.
    left: bool = False

    def send_nowait(self, answer: Lease | Failure, /) -> None:
        """Take the answer."""
        self._take(self, answer)

    @property
    def waits(self) -> bool:
        """Whether it has no answer, and wants one."""
        return self.answer is None and not self.left


@attrs.define(eq=False)
class Holding:
    """A lease that somebody was told of, as its owner sees it."""

    lease: Lease
    asking: Asking
    #: When the owner has given it up, or has ended.
    ended: float | None = None
    #: Until when a container may take it up: bind it, or come back after its end; or a connection.
    until: float = math.inf
    #: Since when it is not known whether a container has bound it.
    unsure_since: float = math.inf
    #: Until when a container may be told that it has bound the lease, by what it has asked in time.
    may_bind: float = -math.inf
    #: Until when it may last, in nanoseconds since the boot, if a renewal was written that nobody was told of.
    may_last: float = 0.0
    #: Whether the daemon that runs knows that, or finds it out by itself.
    released: bool = False
    is_over: bool = False

    def things(self) -> set[Thing]:
        """Return its devices, each with its resource."""
        return things(self.lease)


def things(lease: Lease) -> set[Thing]:
    """Return the devices of a lease, each with its resource."""
    return {(resource, device) for resource, devices in lease.devices.items() for device in devices}


def words(lease: Lease) -> str:
    """Return a lease in words."""
    devices = "; ".join(f"{name}={','.join(ids)}" for name, ids in lease.devices.items())
    return f"lease {lease.id} ({lease.state.value}, {type(lease.owner).__name__}, {devices})"
