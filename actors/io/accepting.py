"""Accepts connections on a listening socket, whatever goes wrong with one of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, Protocol

import trio

#: No descriptor or memory was left. The connection stays pending, so accept() would fail again at once.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE: Final = 0.1
#: The listener itself cannot be used. Any other error concerns one connection.
_UNUSABLE: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
#: One connection was lost.
_LOST: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPERM})

#: Called when there are no descriptors left. Returns True if it has made room.
OnExhausted = Callable[[OSError], bool | None]


class Acceptor(Protocol):
    """Accepts connections."""

    async def accept(self, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
        """Wait for the next connection; see :func:`accept`."""


async def accept(listening: trio.socket.SocketType, on_exhausted: OnExhausted | None = None) -> trio.socket.SocketType:
    """Wait for the next connection.

    While descriptors or memory are exhausted, ``on_exhausted`` is called with each error. If it returns True, it has
    made room, and the pending connection is accepted at once, otherwise after a pause (fault 46). Any other error
    concerns one connection; the next one is accepted, after the same pause if the error is unusual (fault 85).

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
                # The next accept() runs before any other task, and gets the room that was made.
                if on_exhausted is None or not on_exhausted(error):
                    await trio.sleep(_PAUSE)
            elif error.errno not in _LOST:
                await trio.sleep(_PAUSE)
        else:
            return connection
