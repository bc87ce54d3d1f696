"""The history of leases: who had which device, and when. It is written after the grant, and decides nothing.

The lease actor says which leases are granted and have ended. A task writes that, a moment later and together. If the
store cannot be written, what ended waits for it, up to a limit; what is beyond that is lost, and counted. Leases that
are held are never lost: when the store works again, it is told of all of them, and closes the rows of all others. The
same is done at a start, and when a new file takes the place of one that was lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from ...protocol.errors import StateError
from ...protocol.leases.history import Gap, Granted, HistoryQuery, HistoryRow, Usage
from ...protocol.leases.replies import HistoryLosses
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.logs.lines import Logger
from ..io.store_report import PAUSES, StoreReport

if TYPE_CHECKING:
    from ..io.history_database import HistoryDatabase

T = TypeVar("T")

#: Seconds in which grants and ends gather before they are written, so that a thousand of them cost one transaction.
GATHERING: Final = 0.1
#: Seconds after which the store is told that leases are still held. A row whose end nobody saw is that exact.
HEARTBEAT: Final = 600.0
#: Seconds after which a write is reported as late, and after which a reader gets no answer.
DEADLINE: Final = 5.0
#: Seconds for which a reader waits for what is not written yet.
SETTLING: Final = 1.0
#: How many leases may wait to be written.
MOST_WAITING: Final = 4096
_LOST: Final = "they could not be written"


class HistoryStore(Protocol):
    """Keeps the history."""

    @property
    def set_aside(self) -> int:
        """How many times a damaged store was set aside."""

    async def call(self, do: Callable[[HistoryDatabase], T]) -> T:
        """Return what ``do`` returns for the database.

        Raises:
          StateError: if it cannot be used now.
        """

    def close(self) -> None:
        """Let go of the store."""


class LeaseHistory:
    """Writes the history, and reads it."""

    def __init__(self, store: HistoryStore, wall: Callable[[], float], log: Logger) -> None:
        """Write to ``store``; ``wall`` returns Unix seconds."""
        self._store = store
        self._wall = wall
        self._held: dict[tuple[str, float], Granted] = {}
        #: What is to be written, and what is being written.
        self._waiting: dict[tuple[str, float], Granted] = {}
        self._under_way: dict[tuple[str, float], Granted] = {}
        #: What was lost since something was last written, and in all.
        self._gap: Gap | None = None
        self._lost = 0
        #: Whether the store may lack leases that are held, or the end of others.
        self._is_behind = True
        #: Set when the leases of before the start are known; while there is something to write; when a reader waits.
        self._known = trio.Event()
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self._settled = trio.lowlevel.ParkingLot()
        #: Held by a reader, so that a write waits for one read at most, however many ask.
        self._reading = trio.Semaphore(1)
        self._failed_tries = 0
        self._report = StoreReport(log, "the history of leases cannot be kept", "the history of leases is kept again")

    @property
    def losses(self) -> HistoryLosses:
        """What was lost."""
        return HistoryLosses(self._lost, self._store.set_aside)

    # --- what is said by the lease actor ------------------------------------------------------------------------------

    def keep(self, leases: Iterable[Lease]) -> None:
        """Note the leases of before the start, which were granted after they were asked for."""
        for lease in leases:
            if lease.state is LeaseState.HELD:
                entry = Granted(lease, lease.created)
                self._held.setdefault(entry.key, entry)
        self._known.set()
        self._wake.set()

    def note(self, before: Lease | None, lease: Lease) -> None:
        """Note that a lease was granted or has ended, if it was ``before`` something else."""
        if lease.state is LeaseState.HELD:
            if before is None or before.state is not LeaseState.HELD:
                entry = Granted(lease, self._wall())
                self._held[entry.key] = entry
                self._put(entry)
        elif lease.state is LeaseState.GONE:
            granted = self._held.pop((lease.id, lease.created), None)
            if granted is not None:
                self._put(Granted(lease, granted.granted, max(granted.granted, self._wall())))

    def _put(self, entry: Granted) -> None:
        self._wake.set()
        if entry.key in self._waiting or len(self._waiting) + len(self._under_way) < MOST_WAITING:
            self._waiting[entry.key] = entry
            return
        self._is_behind = True
        if entry.ended is not None:
            self._lost += 1
            before = self._gap or Gap(entry.ended, entry.ended, 0, _LOST)
            self._gap = Gap(before.since, entry.ended, (before.leases or 0) + 1, _LOST)

    # --- to write -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled. What was under way when an earlier run was cancelled is written again."""
        self._put_back()
        await self._known.wait()
        while True:
            await self._wait_for_work()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_if_late)
                await self._try_to_write()
                nursery.cancel_scope.cancel()

    async def _wait_for_work(self) -> None:
        with trio.move_on_after(HEARTBEAT if self._held else math.inf):
            await self._wake.wait()
        if self._failed_tries:
            await trio.sleep(PAUSES.delay(self._failed_tries))
        else:
            with trio.move_on_after(GATHERING):
                await self._hurry.wait()
        self._wake, self._hurry = trio.Event(), trio.Event()

    async def _try_to_write(self) -> None:
        """Write all that waits. The store has one access at a time, however long it takes."""
        self._under_way, self._waiting = self._waiting, {}
        try:
            await self._write([*self._under_way.values()], self._wall())
        except StateError as error:
            self._put_back()
            self._wake.set()
            self._failed_tries += 1
            self._report.fail(str(error))
            self._settled.unpark_all()
            return
        self._under_way = {}
        self._failed_tries = 0
        self._report.recover()
        if not self._waiting:
            self._settled.unpark_all()

    async def _write(self, entries: Sequence[Granted], now: float) -> None:
        if self._is_behind or not await self._store.call(lambda database: database.write(entries, now)):
            await self._begin(entries, now)

    async def _begin(self, entries: Sequence[Granted], now: float) -> None:
        held, gap = [*self._held.values()], self._gap
        self._is_behind, self._gap = False, None
        try:
            await self._store.call(lambda database: database.begin(held, entries, gap, now))
        except BaseException:
            self._is_behind, self._gap = True, _joined(gap, self._gap)
            raise

    async def _report_if_late(self) -> None:
        await trio.sleep(DEADLINE)
        self._report.fail(f"it was not written within {DEADLINE:g} s")

    def _put_back(self) -> None:
        """Write again what may not be written; an end that has come since then takes the place of its grant."""
        self._waiting = {**self._under_way, **self._waiting}
        self._under_way = {}

    async def settle(self) -> None:
        """Return once all is written that is known, or a try to write has failed."""
        while self._known.is_set() and not self._failed_tries and (self._waiting or self._under_way):
            self._hurry.set()
            await self._settled.park()

    # --- to read ------------------------------------------------------------------------------------------------------

    async def rows(self, query: HistoryQuery, before: int | None, most: int) -> tuple[Sequence[HistoryRow], int | None]:
        """Return the last rows ``before`` a number, at most so many, and the number of the first of these.

        Raises:
          StateError: if they cannot be read now.
        """
        if before is None:
            with trio.move_on_after(SETTLING):
                await self.settle()
        return await self._read(lambda database: database.rows(query, before, most, DEADLINE))

    async def gaps(self, query: HistoryQuery) -> Sequence[Gap]:
        """Return what is missing, also what is not written yet.

        Raises:
          StateError: if that cannot be read now.
        """
        found = await self._read(lambda database: database.gaps(query))
        return found if self._gap is None else [*found, self._gap]

    async def usage(self, by: str, query: HistoryQuery, most: int) -> Sequence[Usage]:
        """Return how long devices were held, at most so many sums.

        Raises:
          StateError: if that cannot be read now.
        """
        with trio.move_on_after(SETTLING):
            await self.settle()
        now = self._wall()
        return await self._read(lambda database: database.usage(by, query, now, most, DEADLINE))

    async def _read(self, read: Callable[[HistoryDatabase], T]) -> T:
        with trio.move_on_after(DEADLINE):
            async with self._reading:
                return await self._store.call(read)
        raise StateError(f"the history was not read within {DEADLINE:g} s: ask for less of it, with --since")

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()


def _joined(first: Gap | None, then: Gap | None) -> Gap | None:
    if first is None or then is None:
        return first or then
    return Gap(first.since, then.until, (first.leases or 0) + (then.leases or 0), _LOST)
