"""The owners of leases: it tells the lease actor that a process has ended, or that a time is over.

Processes are watched by pidfds, one for each process, however many leases it has. A process for which there is no
descriptor is looked at every second.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import trio

from ...protocol.leases.effects import StopOwner, WatchOwner, WatchPlugin
from ...protocol.leases.ends import Ends
from ...protocol.leases.messages import OwnerEnded, PluginEnded
from ...protocol.leases.values import ProcessIdentity, TimeOwner, process_of
from ...protocol.messages.addresses import Address
from ...protocol.plugins.devices import Key

#: Seconds between looks at a process that cannot be watched.
LOOK_AGAIN = 1.0
#: How many processes are looked at before other actors have their turn.
BATCH = 64


#: What is watched: the owner of a lease, by its id, or the process of a plugin.
Subject = str | Key


class OwnerPort(Protocol):
    """The port to processes that own leases: ``plugind.actors.io.owner_processes``, or those in memory.

    A process that is watched has a number, which is never used again.
    """

    def identity(self, pid: int) -> ProcessIdentity:
        """Return which process has this pid now.

        Raises:
          OSError: if there is none, or its start time cannot be read.
        """

    def watch(self, process: ProcessIdentity) -> int | None:
        """Watch the process; None if it cannot be watched.

        Raises:
          ProcessLookupError: if it has ended.
        """

    def is_there(self, pid: int) -> bool:
        """Return whether there is a process with this pid that has not ended, or that cannot be found out."""

    def runs(self, process: ProcessIdentity) -> bool:
        """Return whether the process has not ended, or that cannot be found out."""

    def forget(self, number: int) -> None:
        """Watch the process no more. One that has ended is forgotten already."""

    def stop(self, number: int, process: ProcessIdentity, uid: int) -> None:
        """Send SIGTERM to a process that is watched, if it has not ended, and is one of this user or the user is root.

        Raises:
          OSError: if it is another user's, or may not be sent a signal.
        """

    async def ended(self) -> Sequence[int]:
        """Wait until processes have ended; return them."""

    def close(self) -> None:
        """Forget all processes."""


class BootClock(Protocol):
    """The time since the boot in nanoseconds, which passes during a suspend as well: ``CLOCK_BOOTTIME``."""

    def now(self) -> int:
        """Return the present time."""

    async def sleep_until(self, end: int) -> None:
        """Wait until that time, or until the machine wakes up after it; one task at a time."""

    def close(self) -> None:
        """End the clock."""


class Owners:
    """What is known of the owners of leases; each lease is reported once, and forgotten then."""

    def __init__(self, port: OwnerPort, clock: BootClock, reply: Address[OwnerEnded | PluginEnded]) -> None:
        self._port = port
        self._reply = reply
        #: What is to be sent when those that are watched have ended.
        self._watched: dict[Subject, OwnerEnded | PluginEnded] = {}
        self._processes = _Processes(port, self.end)
        self._times = _Times(clock, self.end)

    def watch(self, asked: WatchOwner) -> None:
        """Send :class:`~plugind.protocol.leases.messages.OwnerEnded` when this owner has ended."""
        self.forget(asked.id)
        self._watched[asked.id] = OwnerEnded(asked.id, asked.owner)
        if (process := process_of(asked.owner)) is not None:
            self._processes.watch(asked.id, process)
        if isinstance(asked.owner, TimeOwner) and asked.owner.expires is not None:
            self._times.watch(asked.id, asked.owner.expires)

    def watch_plugin(self, asked: WatchPlugin) -> None:
        """Send :class:`~plugind.protocol.leases.messages.PluginEnded` when the process of this plugin has ended.

        One that is not there has ended only if its connection has, too: another process may have taken over the
        listener, and serve on.
        """
        self.forget(asked.key)
        if not self._port.is_there(asked.pid):
            if asked.is_cut:
                self._reply.send_nowait(PluginEnded(asked.key))
            return
        with suppress(OSError):  # Nothing is known of it.
            process = self._port.identity(asked.pid)
            self._watched[asked.key] = PluginEnded(asked.key)
            self._processes.watch(asked.key, process)

    def forget(self, subject: Subject) -> None:
        """Send nothing about this lease or plugin any more."""
        self._watched.pop(subject, None)
        self._processes.forget(subject)
        if isinstance(subject, str):
            self._times.forget(subject)

    def stop(self, asked: StopOwner) -> None:
        """Send SIGTERM to the process of a lease that is watched.

        Raises:
          OSError: if that cannot be done.
        """
        self._processes.stop(asked.process, asked.uid)

    def forget_all(self) -> None:
        """Send nothing any more about those that are watched."""
        for subject in tuple(self._watched):
            self.forget(subject)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._processes.run)
            nursery.start_soon(self._processes.look_again)
            nursery.start_soon(self._times.run)

    def end(self, subject: Subject) -> None:
        """Report that the owner of a lease, or the process of a plugin, has ended."""
        self._reply.send_nowait(self._watched.pop(subject))


class _Processes:
    def __init__(self, port: OwnerPort, end: Callable[[Subject], None]) -> None:
        self._port = port
        self._end = end
        #: The process of each subject, and the subjects of each process.
        self._of_subject: dict[Subject, ProcessIdentity] = {}
        self._subjects: dict[ProcessIdentity, dict[Subject, None]] = {}
        #: Those that are watched, both ways, and those that are looked at.
        self._numbers: dict[ProcessIdentity, int] = {}
        self._processes: dict[int, ProcessIdentity] = {}
        self._looked_at: set[ProcessIdentity] = set()
        #: Set while some are looked at.
        self._some_to_look_at = trio.Event()

    def watch(self, subject: Subject, process: ProcessIdentity) -> None:
        self._of_subject[subject] = process
        subjects = self._subjects.setdefault(process, {})
        subjects[subject] = None
        if len(subjects) == 1:
            self._begin(process)

    def _begin(self, process: ProcessIdentity) -> None:
        try:
            number = self._port.watch(process)
        except ProcessLookupError:
            self._has_ended(process)
            return
        if number is None:
            self._looked_at.add(process)
            self._some_to_look_at.set()
        else:
            self._looked_at.discard(process)
            self._numbers[process], self._processes[number] = number, process

    def forget(self, subject: Subject) -> None:
        process = self._of_subject.pop(subject, None)
        if process is None:
            return
        self._subjects[process].pop(subject, None)
        if not self._subjects[process]:
            self._drop(process)

    def _drop(self, process: ProcessIdentity) -> None:
        del self._subjects[process]
        self._looked_at.discard(process)
        number = self._numbers.pop(process, None)
        if number is not None:
            del self._processes[number]
            self._port.forget(number)

    def stop(self, process: ProcessIdentity, uid: int) -> None:
        if process in self._looked_at:
            self._begin(process)
        number = self._numbers.get(process)
        if number is not None:
            self._port.stop(number, process, uid)
        elif process in self._subjects:
            raise OSError(errno.EMFILE, "it is not watched by a descriptor, since none are left")

    def _has_ended(self, process: ProcessIdentity) -> None:
        subjects = tuple(self._subjects[process])
        self._drop(process)
        for subject in subjects:
            del self._of_subject[subject]
            self._end(subject)

    async def run(self) -> None:
        # What ended amid a crash of an earlier run is not reported again.
        for watched in tuple(self._numbers):
            if not self._port.runs(watched):
                self._has_ended(watched)
        while True:
            for number in await self._port.ended():
                process = self._processes.get(number)
                if process is not None:
                    self._has_ended(process)

    async def look_again(self) -> None:
        while True:
            await self._some_to_look_at.wait()
            await trio.sleep(LOOK_AGAIN)
            for count, process in enumerate(tuple(self._looked_at)):
                if process in self._looked_at:
                    self._begin(process)
                if count % BATCH == BATCH - 1:
                    await trio.lowlevel.checkpoint()
            if not self._looked_at:
                self._some_to_look_at = trio.Event()


class _Times:
    def __init__(self, clock: BootClock, end: Callable[[str], None]) -> None:
        self._clock = clock
        self._end = end
        #: When each lease ends, in nanoseconds since the boot.
        self._ends = Ends()
        #: Set when the first end is another one.
        self._changed = trio.Event()

    def watch(self, lease: str, end: int) -> None:
        self._ends.set(lease, end)
        if self._ends.next == end:
            self._changed.set()

    def forget(self, lease: str) -> None:
        self._ends.forget(lease)

    async def run(self) -> None:
        while True:
            self._changed = trio.Event()
            for lease in self._ends.take(self._clock.now()):
                self._end(lease)
            async with trio.open_nursery() as nursery:
                if (first := self._ends.next) != math.inf:
                    nursery.start_soon(self._sleep, int(first), nursery.cancel_scope)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _sleep(self, end: int, scope: trio.CancelScope) -> None:
        await self._clock.sleep_until(end)
        scope.cancel()
