"""Processes that are watched by pidfds, all of them in one epoll, which is a descriptor that Trio can wait on."""

from __future__ import annotations

import itertools
import os
import select
import signal
from collections.abc import Sequence

import trio


class Pidfds:
    """The pidfds of processes. One that is watched has a number, which is never used again."""

    def __init__(self, most: int) -> None:
        """Watch ``most`` processes at once."""
        self._most = most
        self._epoll = select.epoll()
        self._anonymous = os.fstat(self._epoll.fileno()).st_dev
        self._numbers = itertools.count(1)
        #: The pidfd of each process, and the process of each pidfd.
        self._pidfds: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        #: The process of each inode of a pidfd, which tells processes apart since Linux 6.9.
        self._of_inode: dict[int, int] = {}

    def add(self, pidfd: int) -> int | None:
        """Watch a process, and return its number; None if it has ended, or as many are watched as may be.

        The descriptor is the set's from now on.
        """
        inode = self._inode_of(pidfd)
        earlier = None if inode is None else self._of_inode.get(inode)
        if earlier is not None or len(self._pidfds) >= self._most or has_ended(pidfd):
            os.close(pidfd)
            return earlier
        try:
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            os.close(pidfd)
            return None  # fs.epoll.max_user_watches is reached.
        process = next(self._numbers)
        self._pidfds[process], self._processes[pidfd] = pidfd, process
        if inode is not None:
            self._of_inode[inode] = process
        return process

    def _inode_of(self, pidfd: int) -> int | None:
        found = os.fstat(pidfd)
        return None if found.st_dev == self._anonymous else found.st_ino

    def forget(self, process: int) -> None:
        """Watch the process no more. One that has ended is forgotten already."""
        pidfd = self._pidfds.pop(process, None)
        if pidfd is None:
            return
        del self._processes[pidfd]
        inode = self._inode_of(pidfd)
        if inode is not None:
            del self._of_inode[inode]
        # Closing alone is not enough: a child between fork and exec would still have it.
        self._epoll.unregister(pidfd)
        os.close(pidfd)

    def runs(self, process: int) -> bool:
        """Return whether a process is watched and has not ended."""
        pidfd = self._pidfds.get(process)
        return pidfd is not None and not has_ended(pidfd)

    def send(self, process: int, number: int) -> None:
        """Send a signal to a process that is watched.

        Raises:
          OSError: if it has ended, or may not be sent one.
        """
        pidfd = self._pidfds.get(process)
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)

    async def ended(self) -> Sequence[int]:
        """Wait until processes have ended; return them."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        ended = [self._processes[pidfd] for pidfd, _ in self._epoll.poll(0)]
        for process in ended:
            self.forget(process)
        return ended

    def close(self) -> None:
        """Forget all processes."""
        for process in tuple(self._pidfds):
            self.forget(process)
        self._epoll.close()


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended, whether or not anybody has waited for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
