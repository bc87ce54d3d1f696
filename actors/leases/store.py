"""What leases need of a store that outlives a restart.

:class:`LeaseStore` is the port. The one in memory is for nodes without a file, and for tests; the file is
``plugind.actors.io.state_file``, which the devices actor uses as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveDrain, SaveLease
from ...protocol.leases.messages import Kept
from ...protocol.leases.values import Lease
from ...protocol.values import record


class LeaseStore(Protocol):
    """Keeps the leases over restarts."""

    @property
    def lasting(self) -> bool:
        """Whether it outlives the program."""

    @property
    def replaced(self) -> int:
        """How many times an empty store has taken the place of one that cannot be understood."""

    async def read_leases(self) -> Kept:
        """Open the store and return the leases of this boot, also where nothing can be written now, and the drains.

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

    def serve(self, directories: Sequence[str]) -> None:
        """From now on all sockets of plugins are in these directories.

        Raises:
          ConfigError: if leases that the store has not may be held of devices in one that is new.
        """

    async def begin(self) -> None:
        """Note in the store that a daemon has started, once it was read.

        It is repeated at the start, and after a write has failed: then it succeeds only if there is room for what a
        lease takes.

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


@record
class MemoryLeaseStore:
    """A store that ends with the program."""

    leases: dict[str, Lease] = attrs.field(factory=dict)
    withheld: str | None = None
    replaced: int = 0
    name: str = "memory"
    lasting: bool = False
    drains: dict[DrainTarget, Drain] = attrs.field(factory=dict)
    #: The lease of each device, with its resource, and whose these are: a test may put other leases in place of all.
    _holders: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)
    _held: dict[str, Lease] | None = attrs.field(default=None, init=False)

    async def read_leases(self) -> Kept:
        """See :class:`LeaseStore`."""
        leases = tuple(self.leases[name] for name in sorted(self.leases))
        return Kept(leases, self.withheld, {**self.drains})

    async def instance(self) -> str | None:
        """See :class:`LeaseStore`."""
        return self.name

    def serve(self, directories: Sequence[str]) -> None:
        """See :class:`LeaseStore`."""

    async def begin(self) -> None:
        """See :class:`LeaseStore`."""

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """See :class:`LeaseStore`."""
        if self._held is not self.leases:
            self._held, self._holders = self.leases, {}
            for lease in [*self.leases.values()]:
                self._put(lease)
        return [self._write(group) for group in groups]

    def _write(self, group: Sequence[Change]) -> str | None:
        """Make all changes of a group or none; a write takes as long with ten thousand leases as with one."""
        before = [(change.id, self.leases.get(change.id)) for change in group]
        withheld = self.withheld
        for change in group:
            if (conflict := self._apply(change)) is not None:
                self.withheld = withheld
                for name, _ in before:
                    self._remove(name)
                for _, lease in before:
                    if lease is not None:
                        self._put(lease)
                return conflict
        return None

    def _apply(self, change: Change) -> str | None:
        match change:
            case SaveLease():
                self._remove(change.lease.id)
                return self._put(change.lease)
            case DeleteLease():
                self._remove(change.id)
            case EndWithholding():
                self.withheld = None
            case SaveDrain():
                change.put_into(self.drains)
        return None

    def _put(self, lease: Lease) -> str | None:
        taken = [(resource, device) for resource, devices in lease.devices.items() for device in devices]
        for thing in taken:
            if (holder := self._holders.get(thing)) is not None:
                return f"{thing[1]} of {thing[0]} is in the lease {holder}"
        self.leases[lease.id] = lease
        self._holders.update(dict.fromkeys(taken, lease.id))
        return None

    def _remove(self, name: str) -> None:
        if (lease := self.leases.pop(name, None)) is not None:
            for resource, devices in lease.devices.items():
                for device in devices:
                    self._holders.pop((resource, device), None)

    def close(self) -> None:
        """See :class:`LeaseStore`."""
