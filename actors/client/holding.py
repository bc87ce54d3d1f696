"""A lease that a connection of this program owns, as both clients hold it. Nothing here waits.

The stream of such a lease ends with the lease, and then says so. If it ends in another way, plugind was stopped or
killed, and another connection may own the lease within a minute after its next start.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.replies import Problem
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.text import escaped
from .calls import ClientRequest, understood
from .errors import ClientError, DaemonError, LeaseFailedError
from .lease_calls import judged, resumption

#: How the daemon answers if the lease does not belong to this program any more.
_LOST: Final = (Problem.UNKNOWN, Problem.FORBIDDEN)


@attrs.define(eq=False)
class HeldLease:
    """A lease that belongs to a connection of this program."""

    #: The lease as the daemon has shown it last.
    lease: Lease
    #: Why it has ended before its block; None as long as it is held.
    lost: str | None = None


@attrs.define(eq=False)
class Holding:
    """A lease, and what the daemon says of it."""

    held: HeldLease
    _token: str
    #: Whether its block has ended: what the daemon says of the end of the lease is no news then.
    is_over: bool = False

    def note(self, line: bytes, uid: int) -> None:
        """Take a line of the stream of a daemon of user ``uid``; an empty one says nothing.

        Raises:
          ClientError: if it cannot be understood, or is not taken from such a daemon.
        """
        if not line:
            return
        lease = self.held.lease = judged(understood(lease_from_json, line), uid)
        if lease.state is LeaseState.GONE:
            self._lose(escaped(lease.reason or "plugind does not say why"))

    def resumption(self) -> ClientRequest[Lease]:
        """Ask to own the lease again, after its connection was interrupted."""
        return resumption(self.held.lease.id, self._token)

    def not_resumed(self, error: ClientError) -> None:
        """Note why that has failed: the lease is lost if it does not belong to this program any more."""
        if isinstance(error, LeaseFailedError) and error.problem in _LOST:
            self._lose(f"its connection came back too late ({error})")

    def _lose(self, why: str) -> None:
        if not self.is_over:
            self.held.lost = f"the lease {escaped(self.held.lease.id)} has ended: {why}"

    def is_held(self) -> bool:
        """Whether the lease is not known to have ended."""
        return self.held.lost is None

    def end(self) -> bool:
        """End the block; return whether the lease is still held."""
        self.is_over = True
        return self.is_held()


def holding_of(line: bytes, uid: int) -> Holding:
    """Return what the first line of the stream of a daemon of user ``uid`` says.

    Raises:
      ClientError: if it cannot be understood, or is not taken from such a daemon.
    """
    if not line:
        raise DaemonError("the daemon's answer cannot be understood: it has no lease", 201)
    lease = understood(lease_from_json, line)
    token = json.loads(line).get("token")
    if not isinstance(token, str):
        raise DaemonError("the daemon's answer cannot be understood: the lease has no token", 201)
    return Holding(HeldLease(judged(lease, uid)), token)
