"""The CDI files of leases: the lease actor asks for them, goes on, and gets a message when one is there.

Several accesses are made at once, but one for each file and one for leases of the same resources: a look at device
nodes that hangs delays the leases of that plugin alone. A write is answered within :data:`DEADLINE` seconds; a file
that is written later is removed, because whoever asked for it was told that there is none. That of a lease which was
held before the daemon started is written however late, also after a crash amid its writing, and again until that
succeeds, since its container may be about to start. A removal that fails is tried again, too. Until it succeeds, a
container engine finds the device, and the hook keeps the container from starting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Collection
from operator import itemgetter
from typing import Protocol

import attrs
import trio

from ...protocol.errors import IllegalStepError
from ...protocol.leases.cdi import CdiError
from ...protocol.leases.messages import FileWritten
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.logs.lines import Logger
from ...protocol.messages.addresses import Address
from ...protocol.values import record
from ..io.store_report import PAUSES, StoreReport
from ..messaging.timed_queue import TimedQueue

#: Seconds within which a write is answered.
DEADLINE = 5.0
#: How many accesses are made at once.
MOST_AT_ONCE = 8


class CdiStore(Protocol):
    """Where container engines look for CDI devices; :class:`.cdi_files.CdiFiles` is the real one."""

    async def clean(self, keep: Collection[str]) -> None:
        """Remove all files of this daemon but those of the CDI devices ``keep``.

        Raises:
          CdiError: if that is not possible now.
        """

    async def write(self, lease: Lease) -> None:
        """Write the file of ``lease``, in the place of what was written of it before.

        Raises:
          CdiError: if that is not possible now, or a device node of the lease is not there.
        """

    async def remove(self, name: str) -> None:
        """Remove the file of a CDI device, if there is one. It never overtakes a write.

        Raises:
          CdiError: if that is not possible now.
        """


@record
class MemoryCdiStore:
    """A store that no engine reads: for tests and the simulator."""

    #: By the name of the CDI device.
    files: dict[str, Lease] = attrs.field(factory=dict)

    async def clean(self, keep: Collection[str]) -> None:
        """See :class:`CdiStore`."""
        for name in self.files.keys() - set(keep):
            del self.files[name]

    async def write(self, lease: Lease) -> None:
        """See :class:`CdiStore`."""
        self.files[_name_of(lease)] = lease

    async def remove(self, name: str) -> None:
        """See :class:`CdiStore`."""
        self.files.pop(name, None)


class CdiWriter:
    """Writes and removes CDI files, for each device in the order in which it is asked to."""

    def __init__(self, store: Callable[[], Awaitable[CdiStore]], reply: Address[FileWritten], log: Logger) -> None:
        """Send to ``reply`` what becomes of the files; ``store`` raises CdiError if there is nowhere to write yet."""
        self._store = store
        self._reply = reply
        #: By the name of the CDI device: the lease to write, or None for a file to remove.
        self._waiting: dict[str, Lease | None] = {}
        #: What is written or removed now, likewise.
        self._under_way: dict[str, Lease | None] = {}
        #: What has failed and is tried again if there is nothing else to do, likewise.
        self._failed: dict[str, Lease | None] = {}
        #: What to leave of the files of an earlier daemon; None if that was done, or is not known yet.
        self._keep: Collection[str] | None = None
        self._retry_at = 0.0
        self._failed_rounds = 0
        #: The writes that are not answered, by name, and when each is to be answered.
        self._unanswered: dict[str, tuple[int, Lease]] = {}
        self._due: TimedQueue[tuple[str, int]] = TimedQueue()
        self._numbers = itertools.count()
        #: Set when there is something to do.
        self._wake = trio.Event()
        self._report = StoreReport(log, "a CDI file cannot be written or removed", "CDI files are written again")

    @property
    def problem(self) -> str | None:
        """What is wrong with the directory; None if that is not known."""
        return self._report.problem

    def write(self, lease: Lease) -> None:
        """Write the file of ``lease``; :class:`FileWritten` follows, unless it is removed before."""
        name, number = _name_of(lease), next(self._numbers)
        self._ask(name, lease)
        self._unanswered[name] = (number, lease)
        self._due.put(trio.current_time() + DEADLINE, (name, number))

    def remove(self, name: str) -> None:
        """Remove the file of a CDI device, if there is one."""
        self._unanswered.pop(name, None)
        self._ask(name, None)

    def _ask(self, name: str, lease: Lease | None) -> None:
        self._failed.pop(name, None)
        self._waiting.pop(name, None)
        self._waiting[name] = lease
        self._wake.set()

    async def clean(self, keep: Collection[str]) -> None:
        """Remove what an earlier daemon of this instance has left, before :meth:`run`.

        What cannot be removed is left to the next start: it costs the engines time, and no container starts with it.
        """
        try:
            with trio.fail_after(DEADLINE):
                await (await self._store()).clean(keep)
        except CdiError as error:
            self._report.fail(str(error))
        except trio.TooSlowError:
            self._report.fail(self._late)

    def clean_later(self, keep: Collection[str]) -> None:
        """Do so before anything else that is to be done."""
        self._keep = keep
        self._wake.set()

    async def run(self) -> None:
        """Write and remove until cancelled."""
        self._settle_cancelled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_in_time)
            while True:
                await self._wait_for_work()
                if (keep := self._keep) is not None:
                    await self.clean({*keep, *self._waiting, *self._under_way})
                    self._keep = None
                elif (name := self._next()) is not None:
                    lease = self._under_way[name] = self._waiting.pop(name)
                    nursery.start_soon(self._access, name, lease)

    async def _wait_for_work(self) -> None:
        while self._next() is None and self._keep is None:
            self._wake = trio.Event()
            with trio.move_on_at(self._retry_at if self._failed else math.inf) as scope:
                await self._wake.wait()
            if scope.cancelled_caught:
                self._failed_rounds += 1
                for name, lease in sorted(self._failed.items(), key=itemgetter(0)):
                    self._ask(name, lease)

    def _next(self) -> str | None:
        """Return what was asked for first of that which may begin now."""
        if len(self._under_way) >= MOST_AT_ONCE:
            return None
        busy = {_resources_of(lease) for lease in self._under_way.values()}
        free = (name for name, lease in self._waiting.items() if _resources_of(lease) not in busy)
        return next((name for name in free if name not in self._under_way), None)

    async def _access(self, name: str, lease: Lease | None) -> None:
        failure = None
        try:
            store = await self._store()
            await (store.remove(name) if lease is None else store.write(lease))
        except CdiError as error:
            failure = str(error)
        del self._under_way[name]
        self._wake.set()
        if failure is None:
            self._report.recover()
            if not self._failed:
                self._failed_rounds = 0
        if lease is None:
            self._settle_removal(name, failure)
        else:
            self._settle_write(name, lease, failure)

    def _settle_cancelled(self) -> None:
        """Whether the accesses amid which an earlier run was cancelled are still made is not known."""
        while self._under_way:
            self._settle_one_cancelled(*self._under_way.popitem())

    def _settle_one_cancelled(self, name: str, lease: Lease | None) -> None:
        is_held = lease is not None and lease.state is LeaseState.HELD
        if name not in self._waiting:
            self._ask(name, lease if is_held else None)
        if lease is not None and not is_held and self._awaits(name, lease):
            self._answer(name, "plugind has stopped amid the writing of its CDI file")

    def _settle_write(self, name: str, lease: Lease, failure: str | None) -> None:
        is_held, is_newest = lease.state is LeaseState.HELD, name not in self._waiting
        if self._awaits(name, lease):
            self._answer(name, failure)
        elif is_newest and not is_held:
            self._ask(name, None)
        elif is_newest and failure is None:
            self._reply.send_nowait(FileWritten(lease.id, None))
        if is_newest and is_held and failure is not None:
            self._try_later(name, lease)

    def _awaits(self, name: str, lease: Lease) -> bool:
        return name in self._unanswered and self._unanswered[name][1] is lease

    def _settle_removal(self, name: str, failure: str | None) -> None:
        if failure is None:
            return
        self._report.fail(failure)
        if name not in self._waiting:
            self._try_later(name, None)

    def _try_later(self, name: str, lease: Lease | None) -> None:
        self._failed[name] = lease
        self._retry_at = trio.current_time() + PAUSES.delay(self._failed_rounds + 1)

    def _answer(self, name: str, error: str | None = None) -> None:
        _, lease = self._unanswered.pop(name)
        self._reply.send_nowait(FileWritten(lease.id, error))

    # --- deadlines ----------------------------------------------------------------------------------------------------

    async def _answer_in_time(self) -> None:
        while True:
            for name, number in await self._due.due():
                self._give_up(name, number)

    def _give_up(self, name: str, number: int) -> None:
        """Answer one that has waited for too long; what has not begun is not written."""
        asked = self._unanswered.get(name)
        if asked is None or asked[0] != number:
            return
        if self._waiting.get(name) is asked[1] and asked[1].state is not LeaseState.HELD:
            del self._waiting[name]
        self._report.fail(self._late)
        self._answer(name, self._late)

    @property
    def _late(self) -> str:
        return f"the directory of CDI files has not answered within {DEADLINE:g} s"


def _resources_of(lease: Lease | None) -> tuple[str, ...]:
    """Return the resources of a lease to write, and none for a removal, so that removals are made one by one."""
    return () if lease is None else tuple(sorted(lease.devices))


def _name_of(lease: Lease) -> str:
    if lease.cdi_name is None:
        raise IllegalStepError(f"lease {lease.id} has no CDI name")
    return lease.cdi_name
