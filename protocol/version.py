"""The versions of plugind and of the status socket's protocol.

The package's metadata and its public names both read ``__version__`` here.
"""

from typing import Final

__version__ = "0.1.0"

#: The version of the status socket's protocol. It grows when clients of the version before cannot do something with a
#: daemon of this one, or the reverse; not with new paths and fields, which clients ignore.
STATUS_VERSION: Final = 2
#: The header with the version: in each answer, except of daemons before version 1; in each request, except of clients
#: before version 2.
STATUS_HEADER: Final = "Plugind-Status-Version"
#: In the form of a received header.
STATUS_FIELD: Final = STATUS_HEADER.lower().encode("ascii")


def spoken(asked: bytes | None) -> int:
    """Return the version in which to answer a client that ``asked`` for this one; 1 for an unknown one."""
    version = _number(None if asked is None else asked.decode("latin-1").strip()) or 1
    return min(version, STATUS_VERSION)


def difference(said: str | None) -> str | None:
    """Return in words how a daemon that has ``said`` this version differs from this one; None if it does not."""
    version = _number(said)
    if version == STATUS_VERSION:
        return None
    if version is None:
        return "the daemon is another plugind: the version that it says is no number"
    age = "an older" if version < STATUS_VERSION else "a newer"
    return (
        f"the daemon is {age} plugind: it speaks version {version} of the status socket, and this one version"
        f" {STATUS_VERSION}"
    )


def incompatibility(said: str | None) -> str | None:
    """Return why a daemon that has ``said`` this version cannot be used; None if it is at most one version away."""
    version = _number(said)
    if version is not None and abs(version - STATUS_VERSION) <= 1:
        return None
    return f"{difference(said)}; ask it with a plugind of its own version"


def _number(said: str | None) -> int | None:
    if said is None:
        return 0
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else None
