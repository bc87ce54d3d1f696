"""The port to the file system, and the real file system: inotify, and a few system calls that examine names.

Everything below the root is opened beneath it, without following symbolic links on the way (:mod:`.beneath`); only
:meth:`Directory.follow` and :meth:`Directory.leads_to_socket` follow a link at the end. Nothing here reads a file or
judges a look. A look is an lstat in the open directory and, for a socket or a directory, the call that tells its file
from a later one with the same inode number (:mod:`.file_identity`). ``os.fsdecode`` decodes names that are not UTF-8
(fault 21).
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Protocol

import attrs
import trio
from inotify_simple import INotify, flags, parse_events

from ...protocol.discovery.sockets import EntryKind, Found, looks_like_socket
from ...protocol.discovery.watches import Notice
from ...protocol.identity import Identity
from ...protocol.trust.directories import Access, between
from ...protocol.values import record
from ..io.beneath import DIRECTORY_FLAGS, open_beneath, resolve
from ..io.descriptors import EXHAUSTED, DescriptorReserve
from ..io.exact_connect import can_connect_to_descriptors
from ..io.file_identity import AT_FDCWD, identity_at
from ..trust.directories import access_of, check_above_root, first_owner
from . import roots

#: The number of names that are read before other tasks run (fault 27).
CHUNK = 256
#: Descriptors of a scan: that of the directory, and the copy that ``scandir`` makes of it.
_FOR_A_SCAN = 2
#: Descriptors of a look during a scan: that of the root, and that of the directory.
_FOR_A_LOOK = 2
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Bytes of events that one system call reads, and calls of one :meth:`Events.read`.
_READ_BYTES = 65_536
_READS = 16
_EVENT = struct.Struct("iIII")


@record
class Chunk:
    """Some of the names in a directory."""

    found: list[tuple[str, Found]] = attrs.Factory(list)
    #: Who may write to the opened directory; only in the first chunk.
    access: Access | None = None
    #: Names that were not looked at, because they have the known inode number.
    unchanged: list[str] = attrs.Factory(list)
    #: Names that could not be examined.
    unreadable: list[str] = attrs.Factory(list)
    #: Regular files with names of sockets. They are not examined, since there may be any number of them.
    ignored: list[str] = attrs.Factory(list)


#: Whether a scan skips the directory or link of this name.
LeaveOut = Callable[[str, EntryKind], bool]


def take_all(_name: str, _kind: EntryKind) -> bool:
    """Leave nothing out."""
    return False


class Events(Protocol):
    """One instance of inotify."""

    def watch(self, path: str) -> int:
        """Watch a directory and return the descriptor. Raises OSError (ENOSPC: no watches left, fault 17)."""

    def watch_parent(self, path: str) -> int:
        """Watch ``path``, outside the root, for names that come and go. Symbolic links are followed."""

    def unwatch(self, descriptor: int) -> None:
        """End a watch, which may have ended already."""

    def read(self) -> list[Notice]:
        """Return the pending events, perhaps none and without duplicates; never wait."""

    async def wait(self) -> None:
        """Return when there are events to read."""

    def close(self) -> None:
        """End all watches."""


class Directory(Protocol):
    """The port to a file system. All methods raise OSError unless they say otherwise."""

    def make(self, path: str) -> None:
        """Make the directory ``path`` if it is missing, but none above it (behaviour 1)."""

    def check_above(self, path: str) -> None:
        """Check who may write to the directories above the root ``path``, which may be missing itself.

        Raises:
          InsecureRootError: if others could replace the root (fault 3).
        """

    def hold(self, path: str) -> None:
        """Lock the root ``path`` for this node, and check who may write to it. Called before each scan.

        Raises:
          ConfigError: if it is no directory (fault 2).
          InsecureRootError: if others may write to it (fault 3).
          RootBusyError: if another node has locked it (fault 96).
        """

    def release(self) -> None:
        """Release the lock of the root, at the end of the node."""

    def look(self, path: str) -> Found | None:
        """Return what is at ``path`` itself; None if there is nothing (fault 25)."""

    def look_at_all(self, paths: Iterable[str]) -> Iterator[tuple[str, Found | OSError | None]]:
        """Look at ``paths``, which lie below the root, and yield for each what :meth:`look` returns or raises."""

    def follow(self, path: str, root: str) -> Found | None:
        """Return what the symbolic link ``path`` leads to; None if that is outside ``root``. Never raises OSError."""

    def leads_to_socket(self, path: str) -> bool:
        """Return whether the symbolic link ``path`` leads to a socket anywhere. Never raises OSError."""

    def owner_above(self, path: str, root: str) -> int | None:
        """Return the first owner of a directory between ``root`` and ``path`` except root and the daemon's user."""

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        """List the directory ``path`` in chunks, between which other tasks may run.

        Regular files and dot names are left out, so a chunk may be empty. ``known_sockets`` has names with the identity
        of the socket there, or None. A name is not looked at if the listing has its known inode number. In a ``deep``
        scan the number comes from the file itself, and device and change time must be the known ones too. A directory
        or link for which ``leave_out`` returns True is not looked at.
        """

    def events(self) -> Events:
        """Open an instance of inotify (EMFILE: no instances left, fault 18)."""


_KINDS = {stat.S_IFSOCK: EntryKind.SOCKET, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.SYMLINK}


def _found(status: os.stat_result, name: str, directory: int) -> Found:
    """Return what is at ``name``, whose lstat is ``status``. Raises OSError."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), EntryKind.OTHER)
    if kind is EntryKind.SOCKET:
        return Found(kind, identity_at(status, name, directory))
    if kind is EntryKind.DIRECTORY:
        return Found(kind, identity_at(status, name, directory), access_of(status))
    return Found(kind, Identity(status.st_dev, status.st_ino, status.st_ctime_ns))


def _found_at(name: str, directory: int = AT_FDCWD) -> Found:
    """Return what is at ``name``. Raises OSError."""
    status = os.stat(name, dir_fd=None if directory == AT_FDCWD else directory, follow_symlinks=False)
    return _found(status, name, directory)


def _look_in(directory: int, name: str) -> Found | None:
    try:
        return _found_at(name, directory)
    except FileNotFoundError:
        return None


def _try_to_look(directory: int, name: str) -> Found | OSError | None:
    try:
        return _look_in(directory, name)
    except OSError as error:
        return error


def _is_left_out(entry: os.DirEntry[str], leave_out: LeaveOut) -> bool:
    if entry.is_symlink():
        return leave_out(entry.name, EntryKind.SYMLINK)
    return entry.is_dir() and leave_out(entry.name, EntryKind.DIRECTORY)


def _look_at(entry: os.DirEntry[str], before: Identity | None, directory: int, chunk: Chunk) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
        if before is not None and _is_untouched(status, before):
            chunk.unchanged.append(entry.name)
        else:
            chunk.found.append((entry.name, _found(status, entry.name, directory)))
    except FileNotFoundError:
        return
    except OSError:
        chunk.unreadable.append(entry.name)


def _is_untouched(status: os.stat_result, before: Identity) -> bool:
    return (
        status.st_ino == before.inode
        and status.st_dev == before.device
        and status.st_ctime_ns == before.changed_ns
        and stat.S_ISSOCK(status.st_mode)
    )


def describe(error: OSError) -> str:
    """Return the error as text; without descriptors left, with advice (fault 46)."""
    if error.errno == errno.EMFILE:
        return "too many open files (raise the limit: ulimit -n)"
    return error.strerror or str(error)


def describe_inotify(error: OSError) -> str:
    """Return an error of inotify as text, with the limit that is reached (faults 17 and 18)."""
    if error.errno == errno.ENOSPC:
        return "no inotify watches are left (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        # The kernel uses one errno for both.
        return "too many open files or inotify instances (fs.inotify.max_user_instances)"
    return describe(error)


def _split(data: bytes) -> Iterator[bytes]:
    """Split bytes from inotify into events. The last of the four numbers before a name is its length."""
    start = 0
    while start < len(data):
        end = start + _EVENT.size + _EVENT.unpack_from(data, start)[3]
        yield data[start:end]
        start = end


class RealEvents:
    """Non-blocking inotify: Trio waits for it, and no read blocks the event loop.

    ``open_directory`` opens a directory beneath the root. The watch is put on the opened directory, through
    ``/proc/self/fd``; without that, on the path.
    """

    _MASK = (
        flags.CREATE
        | flags.MOVED_TO
        | flags.MOVED_FROM
        | flags.DELETE
        | flags.DELETE_SELF
        | flags.MOVE_SELF
        | flags.ATTRIB
        | flags.ONLYDIR
        | flags.EXCL_UNLINK
        | flags.MASK_ADD
    )
    _PARENT_MASK = (
        flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.ONLYDIR | flags.EXCL_UNLINK
    ) | flags.MASK_ADD

    def __init__(self, open_directory: Callable[[str], int]) -> None:
        self._open_directory = open_directory
        self._inotify = INotify(nonblocking=True)

    def watch(self, path: str) -> int:
        """See :class:`Events`. The watch does not keep the directory's descriptor open (fault 14)."""
        if not can_connect_to_descriptors():
            return int(self._inotify.add_watch(path, self._MASK | flags.DONT_FOLLOW))
        directory = self._open_directory(path)
        try:
            return int(self._inotify.add_watch(f"/proc/self/fd/{directory}", self._MASK))
        finally:
            os.close(directory)

    def watch_parent(self, path: str) -> int:
        """See :class:`Events`."""
        return int(self._inotify.add_watch(path, self._PARENT_MASK))

    def unwatch(self, descriptor: int) -> None:
        """See :class:`Events`. The kernel reports EINVAL for a watch that ended by itself."""
        try:
            self._inotify.rm_watch(descriptor)
        except OSError:
            return

    def read(self) -> list[Notice]:
        """See :class:`Events`."""
        distinct: dict[bytes, None] = {}
        for _ in range(_READS):
            try:
                data = os.read(self._inotify.fd, _READ_BYTES)
            except BlockingIOError:
                break
            distinct |= dict.fromkeys(_split(data))
            if len(data) < _READ_BYTES // 2:
                break
        return [(event.wd, event.mask, event.name) for event in parse_events(b"".join(distinct))]

    async def wait(self) -> None:
        """See :class:`Events`."""
        await trio.lowlevel.wait_readable(self._inotify.fd)

    def close(self) -> None:
        """See :class:`Events`."""
        self._inotify.close()


class RealDirectory:
    """The file system of this machine below ``root``; with ``insecure``, others may write to the root (fault 3).

    With ``observe`` the root is not locked, because another node, or a kubelet, registers the plugins.
    """

    def __init__(self, root: str, *, insecure: bool = False, observe: bool = False) -> None:
        self._root = root
        self._insecure = insecure
        self._lock = roots.RootLock(insecure=insecure, check_only=observe)
        # Closed for a scan, and opened again before any other task can run (fault 46).
        self._reserve = DescriptorReserve(_FOR_A_SCAN + _FOR_A_LOOK)

    def make(self, path: str) -> None:
        """See :class:`Directory`."""
        roots.make(path)

    def check_above(self, path: str) -> None:
        """See :class:`Directory`."""
        if not self._insecure:
            check_above_root(path)

    def hold(self, path: str) -> None:
        """See :class:`Directory`."""
        self._reserve.close()
        try:
            self._lock.take(path)
        finally:
            self._reserve.refill()

    def release(self) -> None:
        """See :class:`Directory`."""
        self._lock.release()
        self._reserve.close()

    def look(self, path: str) -> Found | None:
        """See :class:`Directory`."""
        try:
            if path == self._root:
                return _found_at(path)
            directory = self._open(os.path.dirname(path), DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return _look_in(directory, os.path.basename(path))
        finally:
            os.close(directory)

    def look_at_all(self, paths: Iterable[str]) -> Iterator[tuple[str, Found | OSError | None]]:
        """See :class:`Directory`. A directory is opened once for consecutive paths in it."""
        for directory, group in itertools.groupby(paths, os.path.dirname):
            yield from self._look_at_some(directory, [*group])

    def _look_at_some(self, directory: str, paths: list[str]) -> list[tuple[str, Found | OSError | None]]:
        try:
            descriptor = self._open(directory, DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return [(path, None) for path in paths]
        except OSError as error:
            return [(path, error) for path in paths]
        try:
            return [(path, _try_to_look(descriptor, os.path.basename(path))) for path in paths]
        finally:
            os.close(descriptor)

    def follow(self, path: str, root: str) -> Found | None:
        """See :class:`Directory`. A circular or dangling link leads to nothing."""
        try:
            return self.look(resolve(root, path))
        except OSError:
            return None

    def leads_to_socket(self, path: str) -> bool:
        """See :class:`Directory`. A link that is circular, dangling or out of reach leads to none."""
        directory, name = os.path.split(path)
        try:
            descriptor = self._open(directory, DIRECTORY_FLAGS)
        except OSError:
            return False
        try:
            return stat.S_ISSOCK(os.stat(name, dir_fd=descriptor).st_mode)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def owner_above(self, path: str, root: str) -> int | None:
        """See :class:`Directory`."""
        looks = map(self.look, between(root, path))
        return first_owner(None if found is None else found.access for found in looks)

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        """See :class:`Directory`. A symbolic link in the place of the directory is not followed."""
        has_reserve = all(self._reserve.close_one() for _ in range(_FOR_A_SCAN))
        try:
            yield from self._scan(path, known_sockets, deep, leave_out)
        finally:
            if has_reserve:
                self._reserve.refill()

    def _scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], deep: bool, leave_out: LeaveOut
    ) -> Generator[Chunk, None, None]:
        descriptor = open_beneath(self._root, path, _LISTED)
        try:
            with os.scandir(descriptor) as entries:
                chunk = Chunk(access=access_of(os.fstat(descriptor)))
                for count, entry in enumerate(entries, 1):
                    name = entry.name
                    before = known_sockets.get(name)
                    if entry.is_file(follow_symlinks=False) or name.startswith("."):
                        if looks_like_socket(name) and not name.startswith("."):
                            chunk.ignored.append(name)
                    elif (
                        # Inlined: in the usual rescan ten thousand sockets are unchanged.
                        not deep
                        and before is not None
                        and before.inode == entry.inode()
                        and not (entry.is_symlink() or entry.is_dir())
                    ):
                        chunk.unchanged.append(name)
                    elif not _is_left_out(entry, leave_out):
                        _look_at(entry, before, descriptor, chunk)
                    if count % CHUNK == 0:
                        yield chunk
                        chunk = Chunk()
                yield chunk
        finally:
            os.close(descriptor)

    def events(self) -> Events:
        """See :class:`Directory`."""
        return RealEvents(lambda path: self._open(path, DIRECTORY_FLAGS))

    def _open(self, path: str, flags: int) -> int:
        """Open ``path`` beneath the root; without descriptors left, use the reserve (fault 46)."""
        try:
            return open_beneath(self._root, path, flags)
        except OSError as error:
            if error.errno not in EXHAUSTED or not self._reserve.close_one():
                raise
        self._reserve.close()
        try:
            return open_beneath(self._root, path, flags)
        finally:
            self._reserve.refill()
