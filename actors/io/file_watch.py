"""One file, and whether it is still at its path."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

import trio
from inotify_simple import INotify, flags

#: An unlink changes the number of links, and that is all that is heard of it while the file is open somewhere.
_MASK = flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF | flags.DONT_FOLLOW


#: A name in a directory appears or goes, or the directory itself does.
_NAMES = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF


class FileWatch:
    """Wakes up when something happens to the file at ``path``, or to the ``names`` in a directory; a context manager.

    The move of a directory above it causes no event, and there may be no inotify. So the caller also looks from time to
    time.
    """

    def __init__(self, path: str, *, names: bool = False) -> None:
        self._inotify: INotify | None = None
        with suppress(OSError):
            self._inotify = INotify(nonblocking=True)
            self._inotify.add_watch(path, _NAMES | flags.DONT_FOLLOW if names else _MASK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            self._inotify.close()

    async def wait(self) -> None:
        """Return when something has happened; never without inotify."""
        if self._inotify is None:
            await trio.sleep_forever()
        else:
            await trio.lowlevel.wait_readable(self._inotify.fd)
            self._inotify.read(timeout=0)
