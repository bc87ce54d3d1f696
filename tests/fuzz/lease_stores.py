"""The stores of leases in memory, with the faults of real disks: full, slow, damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs
import trio

from plugind.actors.leases.cdi_writer import MemoryCdiStore
from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.simulation.faults import InjectedError
from plugind.actors.simulation.lease_owners import BOOT
from plugind.protocol.errors import StateError
from plugind.protocol.leases.cdi import CdiError
from plugind.protocol.leases.effects import Change
from plugind.protocol.leases.messages import Kept
from plugind.protocol.leases.values import Lease

#: The reason why no devices are leased after the leases were lost.
LOST = "the file of the leases was damaged, so it is not known which devices are in use"


@attrs.define(eq=False)
class Disk:
    """The condition of a disk. All attributes can be changed at any time."""

    full: bool = False
    #: Seconds of an access before anything is changed, and after that until the caller gets the result.
    before: float = 0.0
    after: float = 0.0
    #: Whether a write is made even if its caller no longer waits, as by a thread that goes on.
    finishes: bool = True
    #: How many changes raise an error that no disk raises, and so crash their caller.
    crashes: int = 0

    def crash(self) -> None:
        """Crash the caller of a change, if that is due."""
        if self.crashes:
            self.crashes -= 1
            raise InjectedError

    async def access(self) -> None:
        """Wait for the time before an access changes anything."""
        await trio.sleep(self.before)

    def mend(self) -> None:
        """Make the disk fast, with room."""
        self.full, self.before, self.after, self.crashes = False, 0.0, 0.0, 0


@attrs.define(eq=False)
class SimulatedLeaseStore(MemoryLeaseStore):
    """A store of leases that outlives the daemon, on a disk with faults."""

    lasting: bool = True
    disk: Disk = attrs.field(factory=Disk)
    #: Whether something was written since leases were lost; an open file is not examined before that.
    noticed: bool = True
    #: The boot of the leases in it.
    boot: str = BOOT
    #: Called before and after each write, and with the text of a contradiction to the stored leases.
    writing: Callable[[], None] = attrs.field(default=lambda: None)
    written: Callable[[], None] = attrs.field(default=lambda: None)
    conflicted: Callable[[str], None] = attrs.field(default=lambda _: None)

    def damage(self, *, unnoticed: bool) -> None:
        """Lose all leases. An open store notices that at once; otherwise, if ``unnoticed``, the next start does.

        A daemon that notices it while it runs restores the leases, which it knows.
        """
        self.leases = {}
        self.withheld, self.noticed = LOST, False
        if not unnoticed:
            self.replaced += 1

    def reboot(self, boot: str) -> None:
        """Begin another boot, in which the leases of earlier boots do not count."""
        self.boot, self.leases, self.withheld = boot, {}, None

    async def read_leases(self) -> Kept:
        """See :class:`~plugind.actors.leases.store.LeaseStore`."""
        await self.disk.access()
        return await super().read_leases()

    async def begin(self) -> None:
        """See :class:`~plugind.actors.leases.store.LeaseStore`."""
        await self.disk.access()
        self._check_room()

    async def write_leases(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """See :class:`~plugind.actors.leases.store.LeaseStore`."""
        self.disk.crash()
        self.writing()
        try:
            await self.disk.access()
        except trio.Cancelled:
            if self.disk.finishes and not self.disk.full:
                await self._make(groups)
            raise
        self._check_room()
        conflicts = await self._make(groups)
        await trio.sleep(self.disk.after)
        return conflicts

    async def _make(self, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
        """Make the changes, without waiting."""
        conflicts = await super().write_leases(groups)
        self.noticed = True
        for conflict in filter(None, conflicts):
            self.conflicted(conflict)
        self.written()
        return conflicts

    def _check_room(self) -> None:
        if self.disk.full:
            raise StateError("database or disk is full")


@attrs.define(eq=False)
class SimulatedCdiStore(MemoryCdiStore):
    """A directory of CDI files on a disk with faults."""

    disk: Disk = attrs.field(factory=Disk)
    #: The files that could not be removed at the start, and are left for the next start.
    spared: set[str] = attrs.field(factory=set)
    #: Called before and after each write of a file.
    writing: Callable[[], None] = attrs.field(default=lambda: None)
    written: Callable[[], None] = attrs.field(default=lambda: None)

    async def clean(self, keep: Collection[str]) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        spared, self.spared = self.spared, self.files.keys() - set(keep)
        await self.disk.access()
        self._check_room()
        await super().clean(keep)
        self.spared = spared & self.files.keys()

    async def write(self, lease: Lease) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        self.disk.crash()
        self.writing()
        await self.disk.access()
        self._check_room()
        await super().write(lease)
        self.written()
        await trio.sleep(self.disk.after)

    async def remove(self, name: str) -> None:
        """See :class:`~plugind.actors.leases.cdi_writer.CdiStore`."""
        self.disk.crash()
        await self.disk.access()
        self._check_room()
        await super().remove(name)

    def _check_room(self) -> None:
        if self.disk.full:
            raise CdiError("no space left on device")
