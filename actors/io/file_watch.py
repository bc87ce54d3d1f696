"""Waits for changes of files, such as the removal of one."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

import trio
from inotify_simple import INotify, flags

#: While the file is open somewhere, an unlink causes only ATTRIB, because the number of links changes.
_MASK = flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF | flags.DONT_FOLLOW


#: A name in a directory comes or goes, or the directory itself does.
_NAMES = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF


class FileWatch:
    """Waits for changes of the files at ``paths``, or of the ``names`` in directories; a context manager.

    With ``attributes``, a change of the permissions of a file in the directories counts, too.

    Moving a directory above it causes no event, and inotify may be missing. So the caller must also look periodically.
    """

    def __init__(self, *paths: str, names: bool = False, attributes: bool = False) -> None:
        self._inotify: INotify | None = None
        mask = _NAMES | flags.DONT_FOLLOW | (flags.ATTRIB if attributes else 0) if names else _MASK
        with suppress(OSError):
            self._inotify = INotify(nonblocking=True)
            for path in paths:
                with suppress(OSError):
                    self._inotify.add_watch(path, mask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            self._inotify.close()

    async def wait(self) -> None:
        """Wait until something has happened; without inotify, for ever."""
        if self._inotify is None:
            await trio.sleep_forever()
        else:
            await trio.lowlevel.wait_readable(self._inotify.fd)
            self._inotify.read(timeout=0)
