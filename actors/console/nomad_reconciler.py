"""Ends the leases of tasks of Nomad whose allocations have ended, since Nomad tells no device plugin of that.

The rules are those of the parts for Slurm: the leases are listed before Nomad is asked, two looks have to agree, and
whatever fails releases nothing.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import trio

from ...protocol.leases.values import Lease, Pool
from ...protocol.nomad import NomadError
from ...protocol.nomad_allocations import Allocation, Compared, compared, of_pools
from ...protocol.text import escaped
from ..client.errors import ClientError
from ..client.lease_calls import is_unknown
from .ending import complain
from .nomad_pool import PREFIX

#: Seconds between two looks; an allocation has to be seen to have ended by two of them.
APART: Final = 60.0


class Leases(Protocol):
    """What is asked of plugind: its client for Trio."""

    async def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return the leases whose ids begin with ``prefix``."""

    async def release(self, lease: str) -> None:
        """End a lease."""


class Agent(Protocol):
    """What is asked of Nomad."""

    async def allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations of the node."""


class Reconciler:
    """Compares the leases from some pools with the allocations of the node, again and again."""

    def __init__(self, daemon: Leases, agent: Agent, pools: Sequence[Pool]) -> None:
        """Ask ``daemon`` for the leases, and ``agent`` for the allocations."""
        self._daemon = daemon
        self._agent = agent
        self._pools = tuple(pools)
        #: When each lease was first found whose allocation has ended.
        self._since: dict[str, float] = {}
        #: The leases of which no allocation is shown, and of which it was said.
        self._unknown: frozenset[str] = frozenset()
        #: Why the last look has failed; None if it has not.
        self._failed: str | None = None

    async def run(self, later: Callable[[], float]) -> None:
        """Look until cancelled: after each pause, which is as much longer as ``later`` says, so that nodes take turns.

        The first look comes after a pause, too: an agent that starts has no API yet.
        """
        while True:
            await trio.sleep(APART + later())
            await self.look()

    async def look(self) -> None:
        """Compare once, and end the leases that have been found before."""
        try:
            # The leases first: the allocation of a lease that is listed here was there before Nomad is asked.
            held = of_pools(await self._daemon.leases(PREFIX), self._pools)
            shown = await self._agent.allocations() if held else ()
        except (ClientError, NomadError) as error:
            self._fail(str(error))
            return
        self._fail(None)
        found = compared(held, shown, self._pools)
        self._warn(found.unknown)
        for lease in self._due(found):
            await self._end(lease, found.ended[lease])

    def _due(self, found: Compared) -> list[str]:
        """Return the leases that an earlier look has found, long enough ago."""
        now = trio.current_time()
        self._since = {lease: self._since.get(lease, now) for lease in found.ended}
        return [lease for lease, since in self._since.items() if now - since >= APART]

    async def _end(self, lease: str, allocation: str) -> None:
        try:
            await self._daemon.release(lease)
        except ClientError as error:
            # It has been given to another task meanwhile, or the next look tries again.
            if not is_unknown(error):
                complain(f"the lease {lease} of a task that has ended stays: {error}")
        else:
            complain(f"the allocation {escaped(allocation)} has ended: its lease {lease} has ended, too")

    def _warn(self, unknown: Iterable[str]) -> None:
        now = frozenset(unknown)
        for lease in sorted(now - self._unknown):
            complain(
                f"the lease {lease} stays: Nomad shows no allocation for it. Either the token may not read that"
                " namespace, or Nomad has forgotten the allocation"
            )
        self._unknown = now

    def _fail(self, why: str | None) -> None:
        if why != self._failed:
            complain("leases are compared with Nomad again" if why is None else f"no lease ends: {escaped(why)}")
        self._failed = why
