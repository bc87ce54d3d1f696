"""The writes of the lease actor: it asks for them, goes on, and gets a message when they are made.

What is asked for in one turn of the loop is one transaction, and so is all that comes while the transaction before it
is under way. A caller is answered within :data:`DEADLINE` seconds, however long the disk takes; there is no other
transaction until the outcome of a late one is known. Whatever comes after it is written after it, so a change that may
be written late is undone by a change that follows it.

Writes that nobody awaits are tried again until they succeed. Of each lease only the newest such change waits. If the
store turns out to be damaged, and an empty one takes its place, all leases are written again.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ...protocol.errors import ConfigError, StateError
from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveDrain, SaveLease, Write
from ...protocol.leases.messages import Kept, LeasesRead, Saved
from ...protocol.logs.lines import Logger
from ...protocol.messages.addresses import Address
from ..io.store_report import PAUSES, StoreReport
from ..messaging.timed_queue import TimedQueue
from .store import LeaseStore

#: Seconds within which whoever awaits a write is answered.
DEADLINE = 5.0


class Saving:
    """Writes leases to a store, in the order in which it is asked to."""

    def __init__(self, store: LeaseStore, reply: Address[Saved | LeasesRead], log: Logger) -> None:
        """Send to ``reply`` what becomes of the writes that are awaited."""
        self._store = store
        self._reply = reply
        #: Whether the leases of before the start are known.
        self.is_read = False
        self._has_begun = False
        #: What no transaction has begun with.
        self._queue: list[Write] = []
        #: What the transaction under way writes beside what is unwritten.
        self._under_way: tuple[Write, ...] = ()
        #: When that began.
        self._began: float | None = None
        #: What has failed and is tried again, by lease.
        self._unwritten: dict[str, Change] = {}
        #: What the store has, and how many times it was replaced by an empty one.
        self._written: dict[str, SaveLease] = {}
        self._replaced = store.replaced
        #: Why no device may be given to anybody, as the store says: leases were lost, and nobody has said that no
        #: device is in use.
        self._withheld: str | None = None
        #: What is drained, as the store has it, and what was wrong with that.
        self._drains: dict[DrainTarget, Drain] = {}
        self.drain_problem: str | None = None
        #: The numbers of the writes that are awaited, and when each is to be answered.
        self._unanswered: set[int] = set()
        self._due: TimedQueue[int] = TimedQueue()
        #: Set while there is something to do.
        self._wake = trio.Event()
        #: Where those wait that go on when all is written.
        self._settled = trio.lowlevel.ParkingLot()
        #: Set when somebody awaits a write.
        self._awaited = trio.Event()
        #: How many tries have failed since one succeeded.
        self._failed_tries = 0
        self._report = StoreReport(log, "the leases cannot be kept", "the leases are kept again")

    @property
    def failures(self) -> int:
        """How many reads and writes have failed or were late in all."""
        return self._report.failures

    @property
    def problem(self) -> str | None:
        """What is wrong with the store; None if it works."""
        if self._began is not None and trio.current_time() >= self._began + DEADLINE:
            return self._late
        return self._report.problem

    def write(self, write: Write) -> None:
        """Make these changes as soon as that is possible."""
        self._queue.append(write)
        if write.awaited:
            self._unanswered.add(write.number)
            self._due.put(trio.current_time() + DEADLINE, write.number)
            self._awaited.set()
        self._wake.set()

    async def open(self) -> Kept:
        """Return what is in the store. What cannot be done within the deadline is reported, and left to :meth:`run`.

        Raises:
          ConfigError: if the store is another daemon's.
        """
        kept = None
        try:
            with trio.fail_after(DEADLINE):
                kept = await self._read()
                await self._begin()
                await self._store.begin()  # Now that the start is written, this tells whether there is room for leases.
        except StateError as error:
            self._fail(str(error))
        except trio.TooSlowError:
            self._fail(self._late)
        return kept or Kept(withheld=self._unknown)

    @property
    def _unknown(self) -> str:
        return f"the leases of before the start are not known yet: {self._report.problem}"

    def start_again(self) -> Kept:
        """Return what the store will have once all is written that it was asked for, after a crash of whoever asked.

        Nobody awaits any of that any more; it is tried until it succeeds. Before the leases are known, nothing can wait
        but the end of withholding them. That is forgotten: nobody was told of it, and they are still not known.
        """
        self._unanswered.clear()
        if not self.is_read:
            self._queue.clear()
            return Kept(withheld=self._unknown)
        self._under_way = tuple(attrs.evolve(write, awaited=False) for write in self._under_way)
        self._queue = [attrs.evolve(write, awaited=False) for write in self._queue]
        leases = {name: change.lease for name, change in self._written.items()}
        withheld, drains = self._withheld, {**self._drains}
        groups = (self._unwritten.values(), *(write.changes for write in (*self._under_way, *self._queue)))
        for change in (change for group in groups for change in group):
            match change:
                case SaveLease():
                    leases[change.lease.id] = change.lease
                case DeleteLease():
                    leases.pop(change.id, None)
                case EndWithholding():
                    withheld = None
                case SaveDrain():
                    change.put_into(drains)
        return Kept(tuple(leases[name] for name in sorted(leases)), withheld, drains)

    async def settle(self) -> None:
        """Return once all is written that was asked for."""
        while self._queue or self._under_way or self._unwritten:
            await self._settled.park()

    async def run(self) -> None:
        """Write until cancelled. There is one access at a time, however long it takes.

        What was under way when an earlier run was cancelled is not known.
        """
        self._settle_cancelled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_in_time)
            while True:
                await self._wait_for_work()
                try:
                    await self._catch_up()
                except (StateError, ConfigError) as error:
                    self._settle_failed(str(error))

    async def _wait_for_work(self) -> None:
        await self._wake.wait()
        if self._failed_tries:
            # Or at once, when somebody awaits a write.
            with trio.move_on_after(PAUSES.delay(self._failed_tries)):
                await self._awaited.wait()

    async def _catch_up(self) -> None:
        """Do all that is to be done now."""
        if not self.is_read:
            kept = await self._read()
            self._reply.send_nowait(LeasesRead(kept))
        await self._begin()
        unwritten = tuple(self._unwritten.items())
        under_way = self._take_queue()
        groups: list[Sequence[Change]] = [
            *((change,) for _, change in unwritten),
            *(write.changes for write in under_way),
        ]
        conflicts: Sequence[str | None] = ()
        if groups:
            self._began = trio.current_time()
            conflicts = await self._store.write_leases(groups)
        self._settle(unwritten, conflicts)
        if not self._unwritten and not any(conflicts):
            if self._report.problem is not None:
                await self._store.begin()  # That nothing is left to write is no proof that anything can be written.
            self._settle_all()

    def _take_queue(self) -> tuple[Write, ...]:
        self._under_way, self._queue = tuple(self._queue), []
        self._awaited = trio.Event()
        return self._under_way

    async def _read(self) -> Kept:
        kept = await self._store.read_leases()
        self.is_read = True
        self._replaced = self._store.replaced
        self._written = {lease.id: SaveLease(lease) for lease in kept.leases}
        self._withheld = kept.withheld
        self._drains = {**kept.drains}
        self.drain_problem = kept.problem
        return kept

    async def _begin(self) -> None:
        if not self._has_begun:
            await self._store.begin()
            self._has_begun = True

    # --- what becomes of writes ---------------------------------------------------------------------------------------

    def _settle(self, unwritten: Sequence[tuple[str, Change]], conflicts: Sequence[str | None]) -> None:
        """The transaction was made, except for what contradicts what is written."""
        writes = self._end()
        written_again = self._store.replaced != self._replaced
        for (name, change), conflict in zip(unwritten, conflicts, strict=False):
            if conflict is None:
                self._unwritten.pop(name, None)
                self._note(change)
        for write, conflict in zip(writes, conflicts[len(unwritten) :], strict=True):
            if conflict is None:
                for change in write.changes:
                    self._unwritten.pop(change.id, None)
                    self._note(change)
                    if write.awaited and isinstance(change, SaveDrain):
                        self.drain_problem = None  # Somebody has looked at what is drained.
                if written_again:
                    self._queue.append(_made(write))
                else:
                    self._answer(write)
            else:
                self._fail_one(write, conflict)
        if written_again:
            self._write_again()
        self._settled.unpark_all()
        if any(conflicts):
            self._fail(next(filter(None, conflicts)))

    def _write_again(self) -> None:
        """Write all leases to the store that is empty now. It withholds nothing new, since none of them is lost.

        What was written last may have gone to this store or to the one before, so it is answered after that. As the
        disk takes writes now, nothing waits for the pause after earlier failures: somebody may await that answer.
        """
        self._failed_tries = 0
        self._replaced = self._store.replaced
        for name, change in self._written.items():
            self._unwritten.setdefault(name, change)
        if self._withheld is None:
            self._unwritten[EndWithholding().id] = EndWithholding()

    def _note(self, change: Change) -> None:
        match change:
            case SaveLease():
                self._written[change.lease.id] = change
            case DeleteLease():
                self._written.pop(change.id, None)
            case EndWithholding():
                self._withheld = None
            case SaveDrain():
                change.put_into(self._drains)

    def _settle_all(self) -> None:
        self._failed_tries = 0
        if not self._queue:
            self._wake = trio.Event()
        self._report.recover()

    def _settle_failed(self, error: str) -> None:
        """Nothing was written."""
        self._take_awaited()
        for write in self._end():
            self._fail_one(write, error)
        self._fail(error)

    def _take_awaited(self) -> None:
        """Have what is awaited fail with what was under way, if it came before that had begun."""
        if self._began is None:
            self._take_queue()

    def _settle_cancelled(self) -> None:
        """Whether it was written is not known."""
        for write in self._end():
            self._fail_one(write, "plugind has stopped amid a write", unknown=True)

    def _end(self) -> tuple[Write, ...]:
        writes, self._under_way, self._began = self._under_way, (), None
        return writes

    def _fail_one(self, write: Write, error: str, *, unknown: bool = False) -> None:
        if write.awaited:
            self._answer(write, error, unknown=unknown)
            return
        for change in write.changes:
            self._unwritten.pop(change.id, None)
            self._unwritten[change.id] = change
        self._wake.set()

    def _answer(self, write: Write, error: str | None = None, *, unknown: bool = False) -> None:
        """Answer whoever awaits ``write``, unless that was done when it was late."""
        if write.number in self._unanswered:
            self._unanswered.discard(write.number)
            unknown = unknown or (error is not None and _was_made(write))
            self._reply.send_nowait(Saved(write.number, error, unknown))

    # --- deadlines ----------------------------------------------------------------------------------------------------

    async def _answer_in_time(self) -> None:
        while True:
            self._give_up({*await self._due.due()})

    def _give_up(self, late: set[int]) -> None:
        """Answer those that have waited for too long; what has not begun is not written."""
        late &= self._unanswered
        if late:
            self._report.fail(self._late)
        for write in self._under_way:
            if write.number in late:
                self._answer(write, self._late, unknown=True)
        for write in [write for write in self._queue if write.number in late]:
            self._queue.remove(write)
            self._answer(write, self._late)

    @property
    def _late(self) -> str:
        return f"the leases were not {'written' if self.is_read else 'read'} within {DEADLINE:g} s"

    def _fail(self, problem: str) -> None:
        """Report that a try has failed, and have :meth:`run` try again."""
        self._failed_tries += 1
        self._wake.set()
        self._report.fail(problem)


def _made(write: Write) -> Write:
    """Return what is left of a write that was made to a store which was set aside meanwhile: its answer."""
    return attrs.evolve(write, changes=())


def _was_made(write: Write) -> bool:
    return not write.changes
