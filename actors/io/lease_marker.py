"""The files that say that leases are held, outside of the state directory: they tell of leases that a state has not.

An empty state is no proof that no device is in use: the directory may have been emptied, its disk may be missing, or
another one may be used. So there is a marker for each state with leases, named by its instance, where a reboot removes
it, as it ends all leases. The daemon of the state locks it: what is locked tells nothing, since that daemon lives and
knows its leases. The files for container engines have the instance in their names, and tell the same.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from ...protocol.errors import StateError

_MARKER: Final = re.compile("leases-([0-9a-f]{32})")
#: One of an earlier version, which named it by the device and inode of the state directory, and did not lock it.
_OLD_MARKER: Final = re.compile("leases-[0-9]+-[0-9]+")
_CDI_FILE: Final = re.compile(r"plugind-([0-9a-f]{32})-[A-Za-z0-9]+\.json")
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: More bytes than a boot id has.
_MOST: Final = 256
#: A lock of a whole file as fcntl(2) has it: it belongs to the descriptor, and can be looked at without being taken.
_LOCK: Final = struct.Struct("hhqqi4x")


def place_of_markers() -> str | None:
    """Return the directory of this user's markers; None if there is none that a reboot empties.

    ``PLUGIND_MARKERS`` names another one, such as that of a test.
    """
    if named := os.environ.get("PLUGIND_MARKERS"):
        return os.path.abspath(named)
    if os.geteuid() == 0:
        return "/run/plugind"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/plugind" if runtime else None


class LeaseMarker:
    """The markers of one state: one for each instance that it has had since it was opened, and has leases."""

    def __init__(self, place: str | None, cdi: str | None, boot: str) -> None:
        """Use no marker if ``place`` is None, and look for no files for container engines if ``cdi`` is None."""
        self._place = place
        self._cdi = cdi
        self._boot = boot
        #: The descriptors that lock our own, by instance.
        self._locked: dict[str, int] = {}
        #: What tells of leases that the state had not when it was read.
        self._others: Sequence[str] = ()

    def look(self, instance: str | None, directory: str) -> Sequence[str]:
        """Lock the marker of this state if it is there, and return what tells of leases of states without a daemon.

        A marker that an earlier version has made for the state in ``directory`` is replaced.

        Raises:
          StateError: if that cannot be found out.
        """
        try:
            if instance is not None and self._place is not None:
                self._take(instance, directory)
            self._others = [*self._other_markers(instance), *self._other_files(instance)]
        except OSError as error:
            raise StateError(f"it cannot be found out which leases are held: {error}") from error
        return self._others

    def _take(self, instance: str, directory: str) -> None:
        found = os.stat(directory)
        old = f"{self._place}/leases-{found.st_dev}-{found.st_ino}"
        if os.path.lexists(old) or os.path.lexists(self._path(instance)):
            self.put(instance)
            with suppress(FileNotFoundError):
                os.unlink(old)

    def put(self, instance: str) -> None:
        """Make and lock the marker of this state, before leases are written.

        Raises:
          StateError: if it cannot be made.
        """
        if self._place is None or instance in self._locked:
            return
        try:
            self._locked[instance] = self._made(self._path(instance))
        except OSError as error:
            raise StateError(
                f"{self._path(instance)} cannot be made, which would show that leases are held: {error.strerror};"
                f" make {self._place} writable for uid {os.geteuid()}"
            ) from error

    def remove(self, instance: str) -> None:
        """Remove the marker of this state, when no lease is written any more."""
        if (descriptor := self._locked.pop(instance, None)) is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path(instance))
            os.close(descriptor)

    def remove_others(self, instance: str) -> None:
        """Remove what :meth:`look` has found, and the markers of what this state was before it was set aside."""
        for path in self._others:
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._others = ()
        for other in self._locked.keys() - {instance}:
            self.remove(other)

    def close(self) -> None:
        """Unlock the markers: from now on they tell that leases may be held of which nobody knows."""
        while self._locked:
            os.close(self._locked.popitem()[1])

    def _path(self, instance: str) -> str:
        return f"{self._place}/leases-{instance}"

    def _made(self, path: str) -> int:
        """Return the descriptor that locks the file; the first lease makes the directory, too."""
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            os.ftruncate(descriptor, 0)
            os.write(descriptor, self._boot.encode("ascii"))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # --- others -------------------------------------------------------------------------------------------------------

    def _other_markers(self, instance: str | None) -> Iterator[str]:
        for name in _names(self._place):
            found, path = _MARKER.fullmatch(name), f"{self._place}/{name}"
            is_other = found[1] != instance if found is not None else _OLD_MARKER.fullmatch(name) is not None
            if is_other and self._tells(path, dated=found is not None):
                yield path

    def _other_files(self, instance: str | None) -> Iterator[str]:
        """Yield the files for container engines; a boot that leaves them in their directory leaves what they tell."""
        for name in _names(self._cdi):
            found, path = _CDI_FILE.fullmatch(name), f"{self._cdi}/{name}"
            if found is not None and found[1] != instance and _is_ours(os.lstat(path)) and not self._lives(found[1]):
                yield path

    def _lives(self, instance: str) -> bool:
        """Whether the daemon of another state runs."""
        if self._place is None or not os.path.lexists(path := self._path(instance)):
            return False
        return _read(path)[0]

    def _tells(self, path: str, *, dated: bool) -> bool:
        """Whether leases of this boot may be held of which no daemon knows; one without a boot may be half written."""
        if not _is_ours(os.lstat(path)):
            return False
        is_locked, boot = _read(path)
        return not is_locked and (not dated or boot in ("", self._boot))


def _names(directory: str | None) -> Sequence[str]:
    with suppress(FileNotFoundError):
        return sorted(os.listdir(directory)) if directory is not None else ()
    return ()


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _read(path: str) -> tuple[bool, str]:
    """Return whether the file is locked, and what is in it."""
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return _LOCK.unpack(found)[0] != fcntl.F_UNLCK, os.read(descriptor, _MOST).decode("ascii", "replace")
    finally:
        os.close(descriptor)
