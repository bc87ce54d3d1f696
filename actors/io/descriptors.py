"""The limits of file descriptors, and a reserve for when there are none left (fault 46)."""

from __future__ import annotations

import errno
import os
import resource
from types import TracebackType
from typing import Self

#: Left for clients of the status socket, inotify, logs and what handlers open.
RESERVE = 256
#: How many of these are kept open, for clients of the status socket when the process has none left.
RESERVED = 16


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return it: each conversation with a plugin needs a descriptor."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def most_connections() -> int:
    """Return how many connections to plugins may be open at once under the present limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, soft - most_processes() - most_owners() - RESERVE)


def most_processes() -> int:
    """Return how many processes may be watched at once, with a descriptor each: a quarter of all (fault 39)."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 4


def most_owners() -> int:
    """Return how many owners of leases may be watched at once, with a descriptor each: an eighth of all."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 8


EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorReserve:
    """Open but unused descriptors. One is closed when one is needed and the process has none left.

    The context manager fills the reserve and closes it. A reserve of size zero stays empty.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: list[int] = []

    def __enter__(self) -> Self:
        self.refill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all of them."""
        while self.close_one():
            pass

    def close_one(self) -> bool:
        """Close one, so that the next open in this task succeeds; return False if none is left."""
        if not self._open:
            return False
        os.close(self._open.pop())
        return True

    def refill(self) -> bool:
        """Reopen closed ones as far as possible; return whether the reserve is full."""
        while len(self._open) < self._size:
            opened = _spare()
            if opened is None:
                return False
            self._open.append(opened)
        return True

    def count_left(self, most: int) -> int:
        """Return how many descriptors are left after the reserve is filled, counted up to ``most``."""
        opened: list[int] = []
        if self.refill():
            while len(opened) < most and (spare := _spare()) is not None:
                opened.append(spare)
        for descriptor in opened:
            os.close(descriptor)
        return len(opened)


def _spare() -> int | None:
    """Open something that takes only a descriptor; None if that fails."""
    try:
        return os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
