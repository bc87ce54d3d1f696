"""The ports to the owners of leases, in memory: processes that a script ends, and the boot's clock."""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Sequence

import attrs
import trio

from ...protocol.leases.values import ProcessIdentity
from .faults import InjectedError

#: The boot of the simulated node, until it reboots.
BOOT = "a simulated boot"
#: The number that stands for a crash in place of a process.
_CRASH = 0


@attrs.define(eq=False)
class MemoryOwnerProcesses:
    """An :class:`~plugind.actors.leases.owners.OwnerPort` to processes of a simulated node."""

    boot_id: str = BOOT
    #: How many processes can be watched.
    most: int = 1000
    _ticks: itertools.count[int] = attrs.field(factory=lambda: itertools.count(100))
    #: The start time of each process, by its pid.
    running: dict[int, int] = attrs.field(factory=dict)
    #: The processes that were told to stop, in order, each with the user who asked for it.
    stopped: list[tuple[ProcessIdentity, int]] = attrs.field(factory=list)
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _watched: dict[int, ProcessIdentity] = attrs.field(factory=dict)
    _ended: tuple[trio.MemorySendChannel[int], trio.MemoryReceiveChannel[int]] = attrs.field(
        factory=lambda: trio.open_memory_channel[int](math.inf)
    )

    def start(self, pid: int) -> ProcessIdentity:
        """Start a process with this pid; end an earlier one with the same pid."""
        self.end(pid)
        self.running[pid] = next(self._ticks)
        return self.identity(pid)

    def end(self, pid: int) -> None:
        """End the process with this pid, if there is one."""
        if self.running.pop(pid, None) is not None:
            for number in [number for number, process in self._watched.items() if process.pid == pid]:
                del self._watched[number]
                self._ended[0].send_nowait(number)

    def reboot(self, boot_id: str) -> None:
        """Begin another boot, without any process."""
        for pid in [*self.running]:
            self.end(pid)
        self.boot_id = boot_id

    def identity(self, pid: int) -> ProcessIdentity:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        if pid not in self.running:
            raise ProcessLookupError(errno.ESRCH, "there is none with its pid")
        return ProcessIdentity(pid, self.running[pid], self.boot_id)

    def find(self, pid: int) -> ProcessIdentity | None:
        """Return which process has this pid now; None if there is none."""
        return self.identity(pid) if pid in self.running else None

    def watch(self, process: ProcessIdentity) -> int | None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        if not self.runs(process):
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        if len(self._watched) >= self.most:
            return None
        number = next(self._numbers)
        self._watched[number] = process
        return number

    @property
    def watched(self) -> int:
        """How many processes are watched."""
        return len(self._watched)

    def is_there(self, pid: int) -> bool:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        return pid in self.running

    def runs(self, process: ProcessIdentity) -> bool:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        return process.boot_id == self.boot_id and self.running.get(process.pid) == process.start_ticks

    def forget(self, number: int) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        self._watched.pop(number, None)

    async def ended(self) -> Sequence[int]:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        number = await self._ended[1].receive()
        if number == _CRASH:
            raise InjectedError
        return [number]

    def crash(self) -> None:
        """Crash the task that waits for the end of processes, or waits for it next."""
        self._ended[0].send_nowait(_CRASH)

    def stop(self, number: int, process: ProcessIdentity, uid: int) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`; the process is only recorded."""
        if number in self._watched and self.runs(process):
            self.stopped.append((process, uid))

    def close(self) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        self._watched.clear()


@attrs.define(eq=False)
class MemoryBootClock:
    """A :class:`~plugind.actors.leases.owners.BootClock` that follows Trio's clock, and can be suspended."""

    _suspended: float = 0.0
    _woken: trio.Event = attrs.field(factory=trio.Event)

    def now(self) -> int:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
        return round((trio.current_time() + self._suspended) * 1e9)

    def suspend(self, seconds: float) -> None:
        """Suspend the machine for this time, in which Trio's clock stands still."""
        self._suspended += seconds
        self._woken.set()
        self._woken = trio.Event()

    async def sleep_until(self, end: int) -> None:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
        while self.now() < end:
            with trio.move_on_after((end - self.now()) / 1e9):
                await self._woken.wait()

    def close(self) -> None:
        """See :class:`~plugind.actors.leases.owners.BootClock`."""
