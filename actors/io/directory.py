"""The directory as a port, and the real one: inotify and the few system calls that look at names.

Nothing here follows a symbolic link, opens a file or decides anything. Names that are not UTF-8 travel as
``os.fsdecode`` makes them (fault 21).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Mapping
from typing import Protocol

import attrs
import trio
from inotify_simple import INotify, flags, parse_events

from ...protocol.discovery import Found, Kind
from ...protocol.messages import Identity
from ...protocol.watches import Notice

#: So many names are read before others get their turn (fault 27).
CHUNK = 256
#: Bytes of events read at once, and how often in a row: what comes faster than that waits in the kernel.
_READ_BYTES = 65_536
_READS = 16


@attrs.define
class Chunk:
    """Some of the names in a directory."""

    found: list[tuple[str, Found]] = attrs.Factory(list)
    #: Names whose inode is the one that was known, so that they were not looked at.
    unchanged: list[str] = attrs.Factory(list)
    #: Names that are there and could not be looked at.
    unreadable: list[str] = attrs.Factory(list)


class Events(Protocol):
    """One instance of inotify."""

    def watch(self, path: str) -> int:
        """Watch the directory ``path``; the descriptor. Raises OSError (ENOSPC: no watches left, fault 17)."""

    def watch_parent(self, path: str) -> int:
        """Watch ``path`` for names that come and go only, links followed, since it lies outside the root."""

    def unwatch(self, descriptor: int) -> None:
        """End a watch, which may have ended already."""

    def read(self) -> list[Notice]:
        """The events that wait now, perhaps none; never waits."""

    async def wait(self) -> None:
        """Return when there are events to read."""

    def close(self) -> None:
        """End all watches."""


class Directory(Protocol):
    """What the watcher needs of a file system. All methods raise OSError, but for what they say."""

    def make(self, path: str) -> None:
        """Make the directory ``path`` and those above it, where they are missing (behaviour 1)."""

    def look(self, path: str) -> Found | None:
        """What lies at ``path`` itself; None when there is nothing (fault 25)."""

    def follow(self, path: str, root: str) -> Found | None:
        """What the symbolic link ``path`` leads to, if that is inside ``root``, else None."""

    def scan(self, path: str, known: Mapping[str, int]) -> Generator[Chunk, None, None]:
        """The names in the directory ``path``, in chunks between which others may run.

        Plain files and dot names are left out by the listing, so a chunk may be empty. ``known`` are names with the
        inode of the socket there: one that the listing still has with this inode is not looked at.
        """

    def events(self) -> Events:
        """A new instance of inotify (EMFILE: no instances left, fault 18)."""


_KINDS = {stat.S_IFSOCK: Kind.SOCKET, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.SYMLINK}


def _found(status: os.stat_result) -> Found:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), Kind.OTHER)
    return Found(kind, Identity(status.st_dev, status.st_ino, status.st_ctime_ns))


def _look_at(entry: os.DirEntry[str], chunk: Chunk) -> None:
    try:
        chunk.found.append((entry.name, _found(entry.stat(follow_symlinks=False))))
    except FileNotFoundError:
        return
    except OSError:
        chunk.unreadable.append(entry.name)


def describe(error: OSError) -> str:
    """The error in words; for those of inotify with the limit that is reached (faults 17 and 18)."""
    if error.errno == errno.ENOSPC:
        return "no inotify watches are left (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        return "too many open files or inotify instances (fs.inotify.max_user_instances)"
    return error.strerror or str(error)


class RealEvents:
    """inotify, waited on by Trio: non-blocking, so that no read ever holds up the loop."""

    _MASK = (
        flags.CREATE
        | flags.MOVED_TO
        | flags.MOVED_FROM
        | flags.DELETE
        | flags.DELETE_SELF
        | flags.MOVE_SELF
        | flags.ATTRIB
        | flags.ONLYDIR
        | flags.DONT_FOLLOW
        | flags.EXCL_UNLINK
        | flags.MASK_ADD
    )
    _PARENT_MASK = (
        flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.ONLYDIR | flags.EXCL_UNLINK
    ) | flags.MASK_ADD

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)

    def watch(self, path: str) -> int:
        """See :class:`Events`."""
        return int(self._inotify.add_watch(path, self._MASK))

    def watch_parent(self, path: str) -> int:
        """See :class:`Events`."""
        return int(self._inotify.add_watch(path, self._PARENT_MASK))

    def unwatch(self, descriptor: int) -> None:
        """See :class:`Events`. The kernel says EINVAL for a watch that ended by itself."""
        try:
            self._inotify.rm_watch(descriptor)
        except OSError:
            return

    def read(self) -> list[Notice]:
        """See :class:`Events`."""
        notices: list[Notice] = []
        for _ in range(_READS):
            try:
                data = os.read(self._inotify.fd, _READ_BYTES)
            except BlockingIOError:
                break
            notices.extend((event.wd, event.mask, event.name) for event in parse_events(data))
            if len(data) < _READ_BYTES // 2:
                break
        return notices

    async def wait(self) -> None:
        """See :class:`Events`."""
        await trio.lowlevel.wait_readable(self._inotify.fd)

    def close(self) -> None:
        """See :class:`Events`."""
        self._inotify.close()


class RealDirectory:
    """The file system of this machine."""

    def make(self, path: str) -> None:
        """See :class:`Directory`."""
        os.makedirs(path, mode=0o755, exist_ok=True)

    def look(self, path: str) -> Found | None:
        """See :class:`Directory`."""
        try:
            return _found(os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def follow(self, path: str, root: str) -> Found | None:
        """See :class:`Directory`. A link that leads in a circle, or nowhere, leads to nothing."""
        try:
            target = os.path.realpath(path, strict=True)
            inside = target.startswith(os.path.realpath(root) + "/")
            return _found(os.lstat(target)) if inside else None
        except OSError:
            return None

    def scan(self, path: str, known: Mapping[str, int]) -> Generator[Chunk, None, None]:
        """See :class:`Directory`. The directory is opened without following a link that took its place."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as entries:
                chunk = Chunk()
                for count, entry in enumerate(entries, 1):
                    if entry.is_file(follow_symlinks=False) or entry.name.startswith("."):
                        pass
                    elif known.get(entry.name) == entry.inode() and not (entry.is_symlink() or entry.is_dir()):
                        chunk.unchanged.append(entry.name)
                    else:
                        _look_at(entry, chunk)
                    if count % CHUNK == 0:
                        yield chunk
                        chunk = Chunk()
                yield chunk
        finally:
            os.close(descriptor)

    def events(self) -> Events:
        """See :class:`Directory`."""
        return RealEvents()
