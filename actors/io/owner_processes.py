"""The processes that own leases: their identities, and their ends.

A process has ended if no process has its pid, if its pidfd says so, or if the process with its pid started at another
time. A process that cannot be read still exists: ``hidepid`` and namespaces of other users hide processes.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ...protocol.leases.values import ProcessIdentity
from ...protocol.process_stat import start_ticks
from .descriptors import EXHAUSTED
from .pidfds import Pidfds, has_ended
from .process_identity import known_boot_id, read_small


class OwnerProcesses:
    """The real :class:`~plugind.actors.leases.owners.OwnerPort`."""

    def __init__(self, most: int) -> None:
        """Watch at most ``most`` processes by pidfds at once."""
        self._boot = known_boot_id()
        self._pidfds = Pidfds(most)
        #: Closed for a short look when no descriptors are left.
        self._spare: int | None = None
        self._take_spare()

    def identity(self, pid: int) -> ProcessIdentity:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        with self._descriptor():
            return ProcessIdentity(pid, _start(pid), self._boot)

    def watch(self, process: ProcessIdentity) -> int | None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        if process.boot_id != self._boot:
            raise ProcessLookupError(errno.ESRCH, "it was a process of another boot")
        try:
            pidfd = os.pidfd_open(process.pid)
        except (ProcessLookupError, OverflowError):
            raise ProcessLookupError(errno.ESRCH, "there is none with its pid") from None
        except OSError:  # No descriptors are left.
            if not self.runs(process):
                raise _ended() from None
            return None
        began = self._began(process.pid)
        # If the process has not ended now, the start time that was read was its own.
        if began not in (None, process.start_ticks) or has_ended(pidfd):
            os.close(pidfd)
            raise _ended()
        return self._pidfds.add(pidfd)

    def _began(self, pid: int) -> int | None:
        """Return the start time of the process, even without descriptors left; None if it cannot be read."""
        try:
            return _start(pid)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                return None
        with self._descriptor():
            return _start_of(pid)

    def is_there(self, pid: int) -> bool:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        with self._descriptor():
            return _is_alive(pid)

    def runs(self, process: ProcessIdentity) -> bool:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        if process.boot_id != self._boot:
            return False
        with self._descriptor():
            return _is_alive(process.pid) and _start_of(process.pid) in (None, process.start_ticks)

    def forget(self, number: int) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        self._pidfds.forget(number)

    def stop(self, number: int, process: ProcessIdentity, uid: int) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        with suppress(ProcessLookupError, FileNotFoundError):
            # A program with a setuid bit belongs to the owner of the file, or to root.
            owner = os.stat(f"/proc/{process.pid}").st_uid
            if uid not in (0, owner) and self._pidfds.runs(number):
                raise PermissionError(errno.EPERM, f"it is a process of user {owner}")
            self._pidfds.send(number, signal.SIGTERM)

    async def ended(self) -> Sequence[int]:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        return await self._pidfds.ended()

    def close(self) -> None:
        """See :class:`~plugind.actors.leases.owners.OwnerPort`."""
        self._pidfds.close()
        self._drop_spare()

    @contextmanager
    def _descriptor(self) -> Iterator[None]:
        """Make sure that one descriptor can be opened for a moment."""
        try:
            os.close(os.open("/", os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._drop_spare()
        try:
            yield
        finally:
            self._take_spare()

    def _take_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open("/", os.O_PATH | os.O_CLOEXEC)

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)


def may_run(process: ProcessIdentity) -> bool:
    """Return whether a process that a client names runs here; True if that cannot be found out.

    A process of another pid namespace does not: here its pid is another process's, or nobody's.
    """
    boot = known_boot_id()
    if boot and process.boot_id != boot:
        return False
    return _is_alive(process.pid) and _start_of(process.pid) in (None, process.start_ticks)


def runs_since(pid: int, start_ticks: int) -> bool:
    """Return whether process ``pid`` runs and began at ``start_ticks``, in whatever boot; False if it cannot be read.

    After a reboot another process has the pid, and ``hidepid`` must not let it pass for the one of before.
    """
    return _is_alive(pid) and _start_of(pid) == start_ticks


def _is_alive(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # It cannot be examined.
    try:
        return not has_ended(pidfd)
    finally:
        os.close(pidfd)


def _start_of(pid: int) -> int | None:
    """Return the start time of the process; None if it cannot be read."""
    try:
        return _start(pid)
    except OSError:
        return None


def _start(pid: int) -> int:
    return start_ticks(read_small(f"/proc/{pid}/stat"))


def _ended() -> ProcessLookupError:
    return ProcessLookupError(errno.ESRCH, "it has ended")
