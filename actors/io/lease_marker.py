"""Files outside of the state directory which say that leases are held.

An empty state does not prove that no device is in use: the directory may have been emptied, its disk may be missing, or
another directory may be used. So each state with leases has a marker, named by its instance, in a place that a reboot
empties, as it ends all leases. The state's daemon locks the marker; a locked marker is ignored, since that daemon runs
and knows its leases. The files for container engines have the instance in their names, and count in the same way.

A marker names the directories in which plugins of leased devices may have sockets. Two daemons cannot serve one
directory at a time, so a marker that names only other directories does not concern the devices here.

A state may also be replaced by an earlier copy of itself, which lacks leases. So the state counts the saves of leases,
and its marker has the same number: a state with a smaller number is older than its marker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import attrs

from ...protocol.errors import ConfigError, StateError

_MARKER: Final = re.compile("leases-([0-9a-f]{32})")
#: A marker of an earlier version, named by device and inode of the state directory, and not locked.
_OLD_MARKER: Final = re.compile("leases-[0-9]+-[0-9]+")
_CDI_FILE: Final = re.compile(r"plugind-([0-9a-f]{32})-[A-Za-z0-9]+\.json")
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The number in a marker, which stays at one place of the file.
_SERIAL: Final = re.compile("[0-9]{16}")
#: The most bytes of a marker that are read. A longer one counts as half written.
_MOST: Final = 1 << 20
#: The place of a daemon whose directories are not known: all directories lie in this one.
_ANYWHERE: Final = "/"
#: A lock of a whole file for fcntl(2): it belongs to the descriptor, and can be tested without being taken.
_LOCK: Final = struct.Struct("hhqqi4x")


def place_of_markers() -> str | None:
    """Return the directory of this user's markers; None if there is no directory that a reboot empties.

    ``PLUGIND_MARKERS`` names another one, for example in a test.
    """
    if named := os.environ.get("PLUGIND_MARKERS"):
        return os.path.abspath(named)
    if os.geteuid() == 0:
        return "/run/plugind"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/plugind" if runtime else None


@attrs.frozen
class _Found:
    """The content of a marker."""

    is_locked: bool
    #: The boot of its leases; shorter than an id if the marker is half written, or of an earlier version.
    boot: str
    #: How often the state had saved leases; 0 if the marker does not say it.
    serial: int
    #: See :func:`_places_of`.
    places: Sequence[str]


@attrs.define
class _Own:
    """A marker of this state."""

    descriptor: int
    serial: int
    places: Sequence[str]
    #: The directories that were served when the content was written; None before that.
    directories: Sequence[str] | None = None


class LeaseMarker:
    """The markers of one state: one for each of its instances since it was opened, if that has leases."""

    def __init__(self, place: str | None, cdi: str | None, boot: str, directories: Sequence[str]) -> None:
        """``place`` has the markers, and ``cdi`` the files for container engines; with None there are none.

        Plugins have sockets in ``directories``.
        """
        self._place = place
        self._cdi = cdi
        self._boot = boot
        self._directories = directories
        self._own: dict[str, _Own] = {}
        #: The files that stood for other states' leases when the state was read.
        self._others: Sequence[str] = ()

    def look(self, instance: str | None, directory: str) -> Sequence[str]:
        """Lock the marker of this state, if any, and return the files of other states' leases without a daemon.

        A marker that an earlier version has made for the state in ``directory`` is replaced.

        Raises:
          StateError: if they cannot be read.
        """
        try:
            if instance is not None and self._place is not None:
                self._take(instance, directory)
            here = _places_of(self._directories)
            self._others = [*self._other_markers(instance, here), *self._other_files(instance, here)]
        except OSError as error:
            raise StateError(f"it cannot be found out which leases are held: {error}") from error
        return self._others

    def serve(self, directories: Sequence[str]) -> None:
        """Note that plugins have sockets in ``directories`` from now on, and perhaps no longer in the earlier ones.

        Raises:
          ConfigError: if another state may hold leases of devices in a new directory, or if that cannot be found out.
            Nothing has changed then.
        """
        added = _places_of([directory for directory in directories if directory not in self._directories])
        try:
            for instance, path in self._markers():
                if instance not in self._own and self._tells(path, added, dated=instance is not None, may_live=True):
                    raise ConfigError(
                        f"leases of another state may be held of devices in the directories that are new, as {path}"
                        " shows: start plugind with this configuration once no other one serves them"
                    )
        except OSError as error:
            raise ConfigError(f"it cannot be found out which leases are held in new directories: {error}") from error
        self._directories = directories

    def _take(self, instance: str, directory: str) -> None:
        found = os.stat(directory)
        old = f"{self._place}/leases-{found.st_dev}-{found.st_ino}"
        if os.path.lexists(old):
            self.put(instance, places=(_ANYWHERE,))
            os.unlink(old)
        elif os.path.lexists(self._path(instance)):
            self.put(instance)

    def put(self, instance: str, places: Sequence[str] = ()) -> None:
        """Make and lock the marker of this state before leases are written, with the directories that are served now.

        It also keeps the earlier directories, and ``places``, since leases there may still be held.

        Raises:
          StateError: if it cannot be made.
        """
        if self._place is None:
            return
        own, directories = self._own.get(instance), self._directories
        if own is not None and own.directories is directories:
            return
        try:
            if own is None:
                own = self._own[instance] = self._made(self._path(instance))
            own.places = tuple(dict.fromkeys((*own.places, *places, *_places_of(directories))))
            _write(own.descriptor, "".join(f"{field}\0" for field in (self._boot, f"{own.serial:016}", *own.places)))
            own.directories = directories
        except OSError as error:
            raise StateError(
                f"{self._path(instance)} cannot be made, which would show that leases are held: {error.strerror};"
                f" make {self._place} writable for uid {os.geteuid()}"
            ) from error

    def serial(self, instance: str | None) -> int:
        """Return the number of saves in the marker of this state; 0 if there is none."""
        own = None if instance is None else self._own.get(instance)
        return 0 if own is None else own.serial

    def note(self, instance: str, serial: int) -> None:
        """Write the number of saves to the marker, after the last one is committed."""
        if (own := self._own.get(instance)) is not None:
            # The commit stays valid: a marker with a smaller number only notices less.
            with suppress(OSError):
                os.pwrite(own.descriptor, b"%016d" % serial, len(self._boot) + 1)
                own.serial = serial

    def remove(self, instance: str) -> None:
        """Remove the marker of this state, when no lease is left."""
        if (own := self._own.pop(instance, None)) is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path(instance))
            os.close(own.descriptor)

    def remove_others(self, instance: str) -> None:
        """Remove what :meth:`look` has found, and the markers of earlier instances of this state."""
        for path in self._others:
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._others = ()
        for other in self._own.keys() - {instance}:
            self.remove(other)

    def close(self) -> None:
        """Unlock the markers: from now on they mean that leases may be held that no daemon knows."""
        while self._own:
            os.close(self._own.popitem()[1].descriptor)

    def _path(self, instance: str) -> str:
        return f"{self._place}/leases-{instance}"

    def _made(self, path: str) -> _Own:
        """Lock the file, which may be there from an earlier daemon. The first lease also makes the directory."""
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            content = os.pread(descriptor, _MOST, 0)
            boot, serial, places = _parsed(content)
            if content and boot == self._boot:
                return _Own(descriptor, serial, places)
            os.ftruncate(descriptor, 0)
            return _Own(descriptor, 0, ())
        except BaseException:
            os.close(descriptor)
            raise

    # --- others -------------------------------------------------------------------------------------------------------

    def _markers(self) -> Iterator[tuple[str | None, str]]:
        """Yield the path of each marker with its instance, or with None for a marker of an earlier version."""
        for name in _names(self._place):
            found = _MARKER.fullmatch(name)
            if found is not None or _OLD_MARKER.fullmatch(name) is not None:
                yield None if found is None else found[1], f"{self._place}/{name}"

    def _other_markers(self, instance: str | None, here: Collection[str]) -> Iterator[str]:
        for other, path in self._markers():
            if (other is None or other != instance) and self._tells(path, here, dated=other is not None):
                yield path

    def _other_files(self, instance: str | None, here: Collection[str]) -> Iterator[str]:
        """Yield the files of other states for container engines. They count as long as they survive."""
        for name in _names(self._cdi):
            found, path = _CDI_FILE.fullmatch(name), f"{self._cdi}/{name}"
            if found is not None and found[1] != instance and _is_ours(path) and not self._is_known(found[1], here):
                yield path

    def _is_known(self, instance: str, here: Collection[str]) -> bool:
        """Whether the daemon of another state runs, or has served none of the directories ``here``."""
        if self._place is None or not os.path.lexists(path := self._path(instance)):
            return False
        found = _read(path)
        return found.is_locked or not _overlap(found.places, here)

    def _tells(self, path: str, here: Collection[str], *, dated: bool, may_live: bool = False) -> bool:
        """Whether another state may hold leases of this boot in the directories ``here``, according to the marker.

        A marker without a whole boot may be half written. A locked one counts only if its daemon ``may_live``
        and its directories are known.
        """
        if not _is_ours(path):
            return False
        found = _read(path)
        if found.is_locked and not (may_live and _ANYWHERE not in found.places):
            return False
        return (not dated or self._boot.startswith(found.boot)) and _overlap(found.places, here)


def _names(directory: str | None) -> Sequence[str]:
    with suppress(FileNotFoundError):
        return sorted(os.listdir(directory)) if directory is not None else ()
    return ()


def _is_ours(path: str) -> bool:
    status = os.lstat(path)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _read(path: str) -> _Found:
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return _Found(_LOCK.unpack(found)[0] != fcntl.F_UNLCK, *_parsed(os.read(descriptor, _MOST)))
    finally:
        os.close(descriptor)


def _parsed(content: bytes) -> tuple[str, int, Sequence[str]]:
    """Return boot, number and places of a marker. Each ends with a NUL, which no path contains."""
    boot, *others = map(os.fsdecode, content.split(b"\0"))
    if len(others) < 2 or _SERIAL.fullmatch(others[0]) is None:
        return boot, 0, (_ANYWHERE,)
    serial, *places, rest = others
    return boot, int(serial), tuple(places) if places and not rest else (_ANYWHERE,)


def _write(descriptor: int, content: str) -> None:
    """Overwrite a file from its beginning, which is the same as before, so that it never has less than before."""
    encoded = os.fsencode(content)
    if os.pwrite(descriptor, encoded, 0) < len(encoded):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- places -----------------------------------------------------------------------------------------------------------


def _places_of(directories: Iterable[str]) -> Sequence[str]:
    """Return what identifies directories: given and real paths, and device with inode.

    A link may change, and a directory that is mounted twice has two paths.
    """
    places: dict[str, None] = {}
    for directory in directories:
        places |= dict.fromkeys((os.path.abspath(directory), os.path.realpath(directory)))
        with suppress(OSError):
            found = os.stat(directory)
            places[f"{found.st_dev}:{found.st_ino}"] = None
    return tuple(places)


def _overlap(some: Iterable[str], others: Collection[str]) -> bool:
    """Whether a place of either side is, or lies in, a place of the other."""
    return any(_is_in(one, other) or _is_in(other, one) for one in some for other in others)


def _is_in(place: str, other: str) -> bool:
    return place == other or place.startswith(os.path.join(other, ""))
