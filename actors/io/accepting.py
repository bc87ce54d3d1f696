"""Accepting connections on a socket that listens, whatever goes wrong with one of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, Protocol

import trio

#: accept() found no descriptor or no memory. The connection stays pending, so that accept() would fail again at once.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE: Final = 0.1
#: The listener itself cannot be used. Any other error of accept() is that of one connection.
_UNUSABLE: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
#: accept() failed for one connection, which is gone.
_LOST: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPERM})

#: What is done when there are no descriptors left; True if there is one again.
OnExhausted = Callable[[OSError], bool | None]


class Acceptor(Protocol):
    """What accepts connections."""

    async def accept(self, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
        """Wait for the next connection; see :func:`accept`."""


async def accept(listening: trio.socket.SocketType, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
    """Wait for the next connection.

    While descriptors or memory are exhausted, ``on_exhausted`` is called with each error, and after a pause the
    connection that is pending is accepted; without a pause if the function has made room for it and returns True
    (fault 46). Any other error ends at most one connection, and after the same pause the next one is accepted
    (fault 85).

    Raises:
      trio.ClosedResourceError: if the listener is closed.
      OSError: if the listener cannot be used.
    """
    while True:
        try:
            connection, _ = await listening.accept()
        except OSError as error:
            if listening.fileno() < 0:
                # It was closed between the kernel's notice of a connection and the call.
                raise trio.ClosedResourceError("the listener was closed") from error
            if error.errno in _UNUSABLE:
                raise
            if error.errno in _EXHAUSTED:
                # The next accept() comes before any other task runs, and gets the room that was made.
                if on_exhausted is None or not on_exhausted(error):
                    await trio.sleep(_PAUSE)
            elif error.errno not in _LOST:
                await trio.sleep(_PAUSE)
        else:
            return connection
