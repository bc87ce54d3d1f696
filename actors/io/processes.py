"""The processes that listen on plugin sockets: whether they have ended, and whether anybody listens.

A process is watched by a pidfd. It comes from a connection (SO_PEERPIDFD) where the kernel can give it, because that
also works for processes of other pid namespaces, or else from a process id (pidfd_open). All pidfds are in one epoll,
which is a descriptor that Trio can wait on.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

import trio

from ...protocol.identity import Identity
from ...protocol.liveness import Answer, answer_of
from .exact_connect import connect_to
from .unix_socket import connect, stream_socket

#: The option of SOL_SOCKET that returns a pidfd of the peer, since Linux 6.5. The socket module does not name it.
SO_PEERPIDFD: Final = 77
#: Times of /proc/PID/stat are in ticks; an age may be wrong by one of them, and by the time that it takes to look.
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_UNCERTAINTY: Final = 2 / _TICKS_PER_SECOND


class Processes:
    """The real :class:`~plugind.actors.liveness.ProcessPort`."""

    def __init__(self, most: int, *, roots: Sequence[str] = (), follow_symlinks: bool = False) -> None:
        """Watch ``most`` processes at once; for ``roots`` and ``follow_symlinks`` see :func:`.connect_to`."""
        self._most = most
        self._roots = roots
        self._follow_symlinks = follow_symlinks
        self._epoll = select.epoll()
        self._anonymous = os.fstat(self._epoll.fileno()).st_dev
        self._numbers = itertools.count(1)
        #: The pidfd of each process, and the process of each pidfd.
        self._pidfds: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        #: The process of each inode of a pidfd, which tells processes apart since Linux 6.9.
        self._of_inode: dict[int, int] = {}
        #: A socket that was refused can be used again, which halves the cost of a look.
        self._unconnected: socket.socket | None = None

    def look(self, path: str, identity: Identity | None, *, take_process: bool) -> tuple[Answer, int | None]:
        """See :class:`~plugind.actors.liveness.ProcessPort`."""
        try:
            connection = self._unconnected or stream_socket()
        except OSError as error:
            return answer_of(error), None
        self._unconnected = None
        try:
            self._connect(connection, path, identity)
        except ConnectionRefusedError:
            self._unconnected = connection
            return Answer.REFUSED, None
        except OSError as error:
            connection.close()
            return answer_of(error), None
        with connection:
            return Answer.ACCEPTED, self._peer_of(connection) if take_process else None

    def _connect(self, connection: socket.socket, path: str, identity: Identity | None) -> None:
        if identity is None:
            connect(connection, path)
        else:
            connect_to(connection, path, identity, roots=self._roots, follow_symlinks=self._follow_symlinks)

    def _peer_of(self, connection: socket.socket) -> int | None:
        try:
            pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return None  # An older kernel, or the process was reaped, or no descriptors are left.
        return self._add(pidfd)

    def watch(self, pid: int, age: float) -> int | None:
        """See :class:`~plugind.actors.liveness.ProcessPort`."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None  # An older kernel, or it has ended, or no descriptors are left.
        running = _age_of(pid)
        if running is None or running < age - _UNCERTAINTY:
            os.close(pidfd)
            return None  # Another process has got the process id since.
        return self._add(pidfd)

    def _add(self, pidfd: int) -> int | None:
        """Watch a process, and return its number; None if it has ended, or as many are watched as may be."""
        inode = self._inode_of(pidfd)
        earlier = None if inode is None else self._of_inode.get(inode)
        if earlier is not None or len(self._pidfds) >= self._most or _has_ended(pidfd):
            os.close(pidfd)
            return earlier
        try:
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            os.close(pidfd)
            return None  # fs.epoll.max_user_watches is reached: the socket is looked at by its timer alone.
        process = next(self._numbers)
        self._pidfds[process], self._processes[pidfd] = pidfd, process
        if inode is not None:
            self._of_inode[inode] = process
        return process

    def _inode_of(self, pidfd: int) -> int | None:
        found = os.fstat(pidfd)
        return None if found.st_dev == self._anonymous else found.st_ino

    def forget(self, process: int) -> None:
        """See :class:`~plugind.actors.liveness.ProcessPort`."""
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

    async def ended(self) -> Sequence[int]:
        """See :class:`~plugind.actors.liveness.ProcessPort`."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        ended = [self._processes[pidfd] for pidfd, _ in self._epoll.poll(0)]
        for process in ended:
            self.forget(process)
        return ended

    def close(self) -> None:
        """See :class:`~plugind.actors.liveness.ProcessPort`."""
        for process in tuple(self._pidfds):
            self.forget(process)
        self._epoll.close()
        if self._unconnected is not None:
            self._unconnected.close()


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _age_of(pid: int) -> float | None:
    """Return for how many seconds the process has run; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            started = int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS_PER_SECOND
