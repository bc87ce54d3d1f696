"""Watches processes by pidfds in one epoll, a descriptor that Trio can wait on."""

from __future__ import annotations

import itertools
import os
import select
import signal
from collections.abc import Sequence

import trio


class Pidfds:
    """The pidfds of processes. Each watched process has a number, which is never used again."""

    def __init__(self, most: int) -> None:
        """Watch at most ``most`` processes at once."""
        self._most = most
        self._epoll = select.epoll()
        self._anonymous = os.fstat(self._epoll.fileno()).st_dev
        self._numbers = itertools.count(1)
        self._pidfds: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        #: The process of each pidfd's inode. Since Linux 6.9 the inodes tell processes apart.
        self._of_inode: dict[int, int] = {}

    def add(self, pidfd: int) -> int | None:
        """Watch a process, and return its number; None if it has ended, or the limit is reached.

        Takes over the descriptor.
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
        """Stop watching the process. After its end this happens by itself."""
        pidfd = self._pidfds.pop(process, None)
        if pidfd is None:
            return
        del self._processes[pidfd]
        inode = self._inode_of(pidfd)
        if inode is not None:
            del self._of_inode[inode]
        # Closing is not enough: a child between fork and exec still has it.
        self._epoll.unregister(pidfd)
        os.close(pidfd)

    def runs(self, process: int) -> bool:
        """Return whether the process is watched and has not ended."""
        pidfd = self._pidfds.get(process)
        return pidfd is not None and not has_ended(pidfd)

    def send(self, process: int, number: int) -> None:
        """Send a signal to a watched process.

        Raises:
          OSError: if it has ended, or the signal is not permitted.
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
        """Stop watching all processes."""
        for process in tuple(self._pidfds):
            self.forget(process)
        self._epoll.close()


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended, whether or not its parent has waited for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
