"""The stores of leases in memory, with the faults of real disks: full, slow, damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs
import trio

from ...protocol.errors import StateError
from ...protocol.leases.cdi import CdiError
from ...protocol.leases.effects import Change
from ...protocol.leases.messages import Kept
from ...protocol.leases.values import Lease
from ..leases.cdi_writer import MemoryCdiStore
from ..leases.store import MemoryLeaseStore
from .faults import InjectedError
from .lease_owners import BOOT

#: Why nothing is given to anybody once the leases were lost.
LOST = "the file of the leases was damaged, so it is not known which devices are in use"


@attrs.define(eq=False)
class Disk:
    """How a disk is. All attributes may be changed at any time."""

    full: bool = False
    #: Seconds that an access takes before anything is changed, and after that until the caller hears of it.
    before: float = 0.0
    after: float = 0.0
    #: Whether a write whose caller does not wait any longer is made nevertheless, as by a thread that goes on.
    finishes: bool = True
    #: How many changes end with an error that no disk has: a crash of whoever makes them.
    crashes: int = 0

    def crash(self) -> None:
        """Crash whoever makes a change, if that is due."""
        if self.crashes:
            self.crashes -= 1
            raise InjectedError

    async def access(self) -> None:
        """Wait for as long as an access takes before anything is changed."""
        await trio.sleep(self.before)

    def mend(self) -> None:
        """Let it be quick, with room for all."""
        self.full, self.before, self.after, self.crashes = False, 0.0, 0.0, 0


@attrs.define(eq=False)
class SimulatedLeaseStore(MemoryLeaseStore):
    """A store of leases that outlives the daemon, on a disk with faults."""

    lasting: bool = True
    disk: Disk = attrs.field(factory=Disk)
    #: Whether something was written since leases were lost: an open file is not looked at before.
    noticed: bool = True
    #: The boot that the leases in it are of.
    boot: str = BOOT
    #: Called when a write is about to be made, and when it is made; and with a contradiction to what is written.
    writing: Callable[[], None] = attrs.field(default=lambda: None)
    written: Callable[[], None] = attrs.field(default=lambda: None)
    conflicted: Callable[[str], None] = attrs.field(default=lambda _: None)

    def damage(self, *, unnoticed: bool) -> None:
        """Lose all leases. While the store is open that is noticed at once; else, if ``unnoticed``, at the next start.

        What a daemon finds out amid its run, it mends: it knows the leases.
        """
        self.leases = {}
        self.withheld, self.noticed = LOST, False
        if not unnoticed:
            self.replaced += 1

    def reboot(self, boot: str) -> None:
        """Let another boot begin: what was written in earlier ones counts no more."""
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
        """Make the changes; nothing in here waits."""
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
    #: The files that could not be removed at the start, and are left to the next one.
    spared: set[str] = attrs.field(factory=set)
    #: Called when a file is about to be written, and when it is there.
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
