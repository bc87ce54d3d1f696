"""The socket of systemd's journal: a datagram for each entry, or a sealed file for a large one."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final

import trio

PATH: Final = "/run/systemd/journal/socket"
#: The datagram is too large, or the kernel has no memory for it in one piece.
_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
#: Another process listens at the path, or none.
_GONE: Final = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE})
#: The journal accepts only a file that can no longer be changed.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def is_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether ``descriptor`` is the journal's stream, which systemd names in ``JOURNAL_STREAM``.

    The variable alone is no proof, because it survives a redirection.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class JournalSocket:
    """A connection to the journal. It never blocks, except in :meth:`wait`."""

    def __init__(self, path: str = PATH) -> None:
        """Connect to the journal at ``path``.

        Raises:
          OSError: if nobody listens there.
        """
        self._path = path
        self._socket = _connected(path)

    def send(self, entry: bytes) -> None:
        """Send one entry.

        Raises:
          BlockingIOError: if the queue of the journal is full.
          OSError: if it cannot be sent.
        """
        try:
            self._send(entry)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            self._reconnect()
            self._send(entry)

    async def wait(self) -> None:
        """Wait until the queue of the journal has room."""
        await trio.lowlevel.wait_writable(self._socket)

    def block(self, seconds: float) -> None:
        """Let :meth:`send` wait up to ``seconds`` for each entry from now on, for a process that ends."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _reconnect(self) -> None:
        fresh = _connected(self._path)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._socket = fresh

    def _send(self, entry: bytes) -> None:
        try:
            self._socket.send(entry)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._send_file(entry)

    def _send_file(self, entry: bytes) -> None:
        file = os.memfd_create("plugind-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            rest = memoryview(entry)
            while rest:
                rest = rest[os.write(file, rest) :]
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))])
        finally:
            os.close(file)


def _connected(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.connect(path)
    except BaseException:
        made.close()
        raise
    return made
