"""What leases need of a store that outlives a restart.

:class:`LeaseStore` is the port. The one in memory is for nodes without a file, and for tests; the file is
``plugind.actors.io.state_file``, which the devices actor uses as well.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from ...protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveLease
from ...protocol.leases.messages import Kept
from ...protocol.leases.values import Lease


class LeaseStore(Protocol):
    """Keeps the leases over restarts."""

    @property
    def lasting(self) -> bool:
        """Whether it outlives the program."""

    @property
    def replaced(self) -> int:
        """How many times an empty store has taken the place of one that cannot be understood."""

    async def read_leases(self) -> Kept:
        """Open the store and return the leases of this boot, also where nothing can be written now.

        Raises:
          StateError: if they cannot be read now.
          ConfigError: if the store is another daemon's.
        """

    async def instance(self) -> str | None:
        """Return the id that tells the daemon of this store from all others; None before :meth:`begin` has made it.

        Raises:
          StateError: if it cannot be read now.
          ConfigError: if the store is another daemon's.
        """

    async def begin(self) -> None:
        """Note in the store that a daemon has started, once it was read; may be repeated.

        Raises:
          StateError: if it cannot be written now.
          ConfigError: if it is another daemon's.
        """

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """Make the changes of each group, all or none of it, in one transaction.

        Returns, for each group, why it contradicts what is written; None if it is made.

        Raises:
          StateError: if nothing can be written now.
          ConfigError: if the store is another daemon's.
        """

    def close(self) -> None:
        """Let go of the store."""


@attrs.define
class MemoryLeaseStore:
    """A store that ends with the program."""

    leases: dict[str, Lease] = attrs.field(factory=dict)
    withheld: str | None = None
    replaced: int = 0
    name: str = "memory"
    lasting: bool = False

    async def read_leases(self) -> Kept:
        """See :class:`LeaseStore`."""
        return Kept(tuple(self.leases[name] for name in sorted(self.leases)), self.withheld)

    async def instance(self) -> str | None:
        """See :class:`LeaseStore`."""
        return self.name

    async def begin(self) -> None:
        """See :class:`LeaseStore`."""

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """See :class:`LeaseStore`."""
        return [self._write(group) for group in groups]

    def _write(self, group: Sequence[Change]) -> str | None:
        leases, withheld = dict(self.leases), self.withheld
        for change in group:
            match change:
                case SaveLease():
                    leases[change.lease.id] = change.lease
                case DeleteLease():
                    leases.pop(change.id, None)
                case EndWithholding():
                    withheld = None
        conflict = _conflict(leases)
        if conflict is None:
            self.leases, self.withheld = leases, withheld
        return conflict

    def close(self) -> None:
        """See :class:`LeaseStore`."""


def _conflict(leases: dict[str, Lease]) -> str | None:
    holders: dict[tuple[str, str], str] = {}
    for lease in leases.values():
        for resource, devices in lease.devices.items():
            for device in devices:
                holder = holders.setdefault((resource, device), lease.id)
                if holder != lease.id:
                    return f"{device} of {resource} is in the lease {holder}"
    return None
