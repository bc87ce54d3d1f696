"""The processes that listen on plugin sockets: whether they have ended, and whether anybody listens.

Processes are watched by pidfds. If the kernel can, the pidfd comes from a connection (SO_PEERPIDFD), which also works
for other pid namespaces; otherwise from a process id (pidfd_open).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Final

from ...protocol.health.liveness import ConnectAnswer, answer_of
from ...protocol.identity import Identity
from ...protocol.process_stat import start_ticks
from .connecting import connect, stream_socket
from .exact_connect import connect_to
from .pidfds import Pidfds
from .process_identity import read_small

#: The option of SOL_SOCKET that returns a pidfd of the peer, since Linux 6.5. The socket module does not have it.
SO_PEERPIDFD: Final = 77
#: Times in /proc/PID/stat are in ticks. An age may be wrong by a tick, and by the time of the look.
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_UNCERTAINTY: Final = 2 / _TICKS_PER_SECOND


class Processes:
    """The real :class:`~plugind.actors.health.liveness.ProcessPort`."""

    def __init__(self, most: int, *, follow_symlinks: bool = False) -> None:
        """Watch at most ``most`` processes at once; for ``follow_symlinks`` see :func:`.connect_to`."""
        self._follow_symlinks = follow_symlinks
        self._pidfds = Pidfds(most)
        #: A refused socket, to be used again, which halves the cost of a look.
        self._unconnected: socket.socket | None = None

    def look(
        self, path: str, identity: Identity | None, *, root: str | None = None, take_process: bool
    ) -> tuple[ConnectAnswer, int | None]:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        try:
            connection = self._unconnected or stream_socket()
        except OSError as error:
            return answer_of(error), None
        self._unconnected = None
        try:
            self._connect(connection, path, identity, root)
        except ConnectionRefusedError:
            self._unconnected = connection
            return ConnectAnswer.REFUSED, None
        except OSError as error:
            connection.close()
            return answer_of(error), None
        with connection:
            return ConnectAnswer.ACCEPTED, self._peer_of(connection) if take_process else None

    def _connect(self, connection: socket.socket, path: str, identity: Identity | None, root: str | None) -> None:
        if identity is None:
            connect(connection, path)
        else:
            roots = () if root is None else (root,)
            connect_to(connection, path, identity, roots=roots, follow_symlinks=self._follow_symlinks)

    def _peer_of(self, connection: socket.socket) -> int | None:
        try:
            pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return None  # An older kernel, a reaped process, or no descriptors.
        return self._pidfds.add(pidfd)

    def watch(self, pid: int, age: float) -> int | None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None  # An older kernel, a process that has ended, or no descriptors.
        running = _age_of(pid)
        if running is None or running < age - _UNCERTAINTY:
            os.close(pidfd)
            return None  # The process id was used again.
        return self._pidfds.add(pidfd)

    def forget(self, process: int) -> None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        self._pidfds.forget(process)

    async def ended(self) -> Sequence[int]:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        return await self._pidfds.ended()

    def close(self) -> None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        self._pidfds.close()
        if self._unconnected is not None:
            self._unconnected.close()


def _age_of(pid: int) -> float | None:
    """Return the age of the process in seconds; None if there is none."""
    try:
        started = start_ticks(read_small(f"/proc/{pid}/stat"))
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS_PER_SECOND
