"""The names of users, for the holders of leases.

They are read from the file of the local users. The name service could ask a directory in the network, and would then
hold up everything else that the page shows.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from pathlib import Path

import attrs

from ....protocol.text import encodable


@attrs.define
class UserNames:
    """The names in a file of the form of ``/etc/passwd``, which is read again when it has changed."""

    _path: Path = attrs.field(default=Path("/etc/passwd"))
    #: What tells the file that was read from one that has changed since: its inode, time and size.
    _read: tuple[int, int, int] | None = attrs.field(init=False, default=None)
    _names: dict[int, str] = attrs.field(init=False, factory=dict)

    def of(self, uid: object) -> str | None:
        """Return the name of the user with this uid; None if the file has none, or cannot be read."""
        if not isinstance(uid, int):
            return None
        try:
            found = self._path.stat()
            if self._read != (now := (found.st_ino, found.st_mtime_ns, found.st_size)):
                self._names = _names_in(self._path.read_text("utf-8", "surrogateescape"))
                self._read = now
        except OSError:
            return None
        return self._names.get(uid)


def _names_in(text: str) -> dict[int, str]:
    """Return the names by uid; of several users with one uid the first counts, as for the name service."""
    names: dict[int, str] = {}
    for line in text.splitlines():
        match line.split(":"):
            case [name, _, uid, *_] if uid.isascii() and uid.isdigit() and len(uid) <= 10 and name:
                names.setdefault(int(uid), encodable(name))
    return names
