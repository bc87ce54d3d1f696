"""What a ``Channel`` is built on: a connected unix socket, or its counterpart in a simulated node.

The interface is small because one task at a time drives a channel: it sends what goes without waiting, then waits until
there is something to read or room to send.
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
#: How many bytes of a connection on which large messages come.
LARGE_READ_BYTES: Final = 128 * 1024
#: How the kernel says what of a socket's output was not read: SIOCOUTQ, which has the number of TIOCOUTQ.
_QUEUED: Final = struct.Struct("i")


class Transport(Protocol):
    """Bytes to a peer and back. Errors of the operating system pass through."""

    @property
    def read_bytes(self) -> int:
        """How many bytes are read at once."""

    def send(self, data: bytes | bytearray) -> int:
        """Send from the start of ``data`` what goes without waiting. Return how many bytes that was."""

    async def receive(self, *, unsent: bool) -> bytes | None:
        """Wait for bytes, or with ``unsent`` also for room to send.

        Return ``b""`` at the end, and None when there is only room to send or ``wake`` was called.
        """

    def receive_now(self) -> bytes | None:
        """Return what can be read without waiting: None if nothing, ``b""`` at the end."""

    def expect_nothing(self) -> None:
        """Note that the peer will most likely say nothing soon: ``receive`` is to wait at once."""

    def is_unread(self) -> bool:
        """Whether the peer has not read all that was sent; False where that cannot be known."""

    def wake(self) -> None:
        """Make a waiting ``receive`` return None."""

    def close(self) -> None:
        """Close at once; a waiting ``receive`` raises ``trio.ClosedResourceError``."""


class SocketTransport:
    """A connected, non-blocking stream socket, which it owns."""

    __slots__ = ("_closed", "_reads_first", "_socket", "_waits_on", "_woken", "read_bytes")

    def __init__(self, connected: socket.socket, read_bytes: int = READ_BYTES) -> None:
        self._socket = connected
        #: How many bytes are read at once.
        self.read_bytes = read_bytes
        #: The descriptor that ``receive`` waits on, the socket's own or that of an epoll; -1 while it does not wait.
        self._waits_on = -1
        #: True once ``close`` was called.
        self._closed = False
        #: True if ``wake`` was called since ``receive`` began.
        self._woken = False
        #: True while ``receive`` tries to read before it waits. A wait costs more system calls than a read. Where other
        #: tasks are busy, the answer to a short call is there once they have had their turn. A connection on which it
        #: was not there once, such as an idle stream, waits first from then on.
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
            # This is how a wake-up arrives; the socket is still open then.
            if self._closed:
                raise
            return None
        finally:
            self._waits_on = -1

    async def _receive_or_room(self) -> bytes | None:
        """Wait for bytes or for room: an epoll descriptor is readable when what it watches is ready."""
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
        """See ``Transport``. The kernel keeps what was sent at once until all of that is read."""
        try:
            (unread,) = _QUEUED.unpack(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(_QUEUED.size)))
        except (OSError, ValueError):  # Other kernels may not tell; a socket that was closed has no descriptor.
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
