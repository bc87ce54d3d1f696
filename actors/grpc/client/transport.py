"""The base of a ``Channel``: a connected unix socket, or its counterpart in a simulated node.

The interface is small because one task at a time drives a channel: it sends as much as possible without waiting, then
waits until there is something to read or room to send.
"""

import fcntl
import select
import socket
import struct
import termios
from typing import Final, Protocol

import trio

#: How many bytes are read at once.
READ_BYTES: Final = 16 * 1024
#: The same for a connection with large messages.
LARGE_READ_BYTES: Final = 128 * 1024
#: The kernel's answer to SIOCOUTQ, the unread output of a socket; its number is that of TIOCOUTQ.
_QUEUED: Final = struct.Struct("i")


class Transport(Protocol):
    """Bytes to a peer and back. Errors of the operating system are passed on."""

    @property
    def read_bytes(self) -> int:
        """How many bytes are read at once."""

    def send(self, data: bytes | bytearray) -> int:
        """Send as much of ``data`` as possible without waiting. Return the number of bytes."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """Wait for bytes, or with ``unsent`` also for room to send.

        Return ``b""`` at the end, and None when there is only room to send or ``wake`` was called.
        """

    def receive_now(self) -> bytes | None:
        """Return what can be read without waiting: None if nothing, ``b""`` at the end."""

    def expect_nothing(self) -> None:
        """Note that the peer will probably be silent for some time, so ``receive`` must not try to read first."""

    def is_unread(self) -> bool:
        """Whether the peer has not read all that was sent; False if that is not known."""

    def wake(self) -> None:
        """Make a waiting ``receive`` return None."""

    def close(self) -> None:
        """Close at once; a waiting ``receive`` raises ``trio.ClosedResourceError``."""


class SocketTransport:
    """A connected, non-blocking stream socket, owned by this object."""

    __slots__ = ("_closed", "_reads_first", "_socket", "_waits_on", "_woken", "read_bytes")

    def __init__(self, connected: socket.socket, read_bytes: int = READ_BYTES) -> None:
        self._socket = connected
        self.read_bytes = read_bytes
        #: The descriptor that ``receive`` waits for, of the socket or an epoll; -1 while it does not wait.
        self._waits_on = -1
        #: True once ``close`` was called.
        self._closed = False
        #: True if ``wake`` was called since ``receive`` began.
        self._woken = False
        #: True while ``receive`` tries to read before it waits, since a wait costs more system calls than a read. If
        #: other tasks are busy, the answer to a short call is there after their turns. After one failed attempt, as on
        #: an idle stream, ``receive`` waits first from then on.
        self._reads_first = True

    def send(self, data: bytes | bytearray) -> int:
        """See ``Transport``."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def receive(self, *, unsent: bool) -> bytes | None:
        """See ``Transport``."""
        if unsent:
            return await self._receive_or_room()
        if self._reads_first:
            self._woken = False
            await trio.lowlevel.checkpoint()
            if self._closed:
                raise trio.ClosedResourceError
            if self._woken:
                return None
            try:
                return self._socket.recv(self.read_bytes)
            except BlockingIOError:
                self._reads_first = False
        descriptor = self._waits_on = self._socket.fileno()
        try:
            await trio.lowlevel.wait_readable(descriptor)
            return self._socket.recv(self.read_bytes)
        except BlockingIOError:
            return None
        except trio.ClosedResourceError:
            # A wake-up arrives like this; the socket is still open then.
            if self._closed:
                raise
            return None
        finally:
            self._waits_on = -1

    async def _receive_or_room(self) -> bytes | None:
        """Wait for bytes or for room: an epoll descriptor is readable when a watched descriptor is ready."""
        with select.epoll(1) as either:
            either.register(self._socket, select.EPOLLIN | select.EPOLLOUT)
            self._waits_on = either.fileno()
            try:
                await trio.lowlevel.wait_readable(either.fileno())
            except trio.ClosedResourceError:
                if self._closed:
                    raise
            finally:
                self._waits_on = -1
        return self.receive_now()

    def receive_now(self) -> bytes | None:
        """See ``Transport``."""
        try:
            return self._socket.recv(self.read_bytes)
        except BlockingIOError:
            self._reads_first = False
            return None

    def expect_nothing(self) -> None:
        """See ``Transport``."""
        self._reads_first = False

    def is_unread(self) -> bool:
        """See ``Transport``. The kernel keeps the bytes of one send until all of them are read."""
        try:
            (unread,) = _QUEUED.unpack(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(_QUEUED.size)))
        except (OSError, ValueError):  # Other kernels may not support this; a closed socket has no descriptor.
            return False
        return bool(unread)

    def wake(self) -> None:
        """See ``Transport``."""
        self._woken = True
        if self._waits_on >= 0:
            trio.lowlevel.notify_closing(self._waits_on)

    def close(self) -> None:
        """See ``Transport``."""
        if not self._closed:
            self._closed = True
            self.wake()
            self._socket.close()
