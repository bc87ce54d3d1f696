"""The file that says that leases are held, outside of the state directory: it tells that their file was lost.

An empty state is no proof that no device is in use: the directory may have been emptied, or its disk may be missing.
The marker lies where a reboot removes it, as it ends all leases.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from contextlib import suppress

from ...protocol.errors import StateError
from .file_identity import identity_at


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


def _write(path: str, content: bytes) -> None:
    """Write a file as well as its directory; the first lease makes it, and the end of the last one removes it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        file = os.open(path, flags, 0o600)
    try:
        os.write(file, content)
    finally:
        os.close(file)


class LeaseMarker:
    """The marker of one state directory, which is there while leases are written."""

    def __init__(self, place: str | None, directory: str) -> None:
        """Use no marker if ``place`` is None."""
        self._place = place
        self._directory = directory
        #: Whether it is known to be there; None if it was not looked for.
        self._is_there: bool | None = None
        #: What is in the file, and which path that is for; it is looked up once.
        self._content: tuple[str, bytes] | None = None

    @property
    def path(self) -> str | None:
        """Its path, by device and inode of the state directory; None without a place."""
        if self._place is None:
            return None
        found = os.stat(self._directory)
        return f"{self._place}/leases-{found.st_dev}-{found.st_ino}"

    def is_there(self) -> bool:
        """Return whether it is there."""
        path = self.path
        self._is_there = path is not None and os.path.lexists(path) and self._is_ours(path)
        return self._is_there

    def _is_ours(self, path: str) -> bool:
        """Whether it is not of an earlier directory that had this inode number; yes if that is not known."""
        token = self._token()
        with suppress(OSError, UnicodeError), open(path, encoding="ascii") as file:
            return not token or file.read() in ("", token)
        return True

    def _token(self) -> str:
        """Return what tells the directory from those that had its inode number before; empty if nothing does."""
        real = os.path.realpath(self._directory)
        found = identity_at(os.stat(real), real)
        return "" if found.handle is None else found.handle.hex()

    def put(self) -> None:
        """Make it, before leases are written.

        Raises:
          StateError: if it cannot be made.
        """
        if self._is_there or (path := self.path) is None:
            return
        if self._content is None or self._content[0] != path:
            self._content = path, self._token().encode("ascii")
        try:
            _write(path, self._content[1])
        except OSError as error:
            raise StateError(
                f"{path} cannot be made, which would show that leases are held: {error.strerror}; make"
                f" {os.path.dirname(path)} writable for uid {os.geteuid()}"
            ) from error
        self._is_there = True

    def remove(self) -> None:
        """Remove it, when no lease is written any more."""
        if self._is_there is False or (path := self.path) is None:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._is_there = False
