"""The version of plugind, and that of what the status socket speaks.

The package's metadata and its public names both read the first one here.
"""

from typing import Final

__version__ = "0.1.0"

#: The version of what is said on the status socket. It grows by one when clients of the version before cannot do
#: something with a daemon of this one, or the other way round: not with new paths and fields, which clients ignore.
STATUS_VERSION: Final = 2
#: The header with the version in each answer. Daemons before version 1 send none. In a request, it is the version that
#: the client knows; those before version 2 send none.
STATUS_HEADER: Final = "Plugind-Status-Version"
#: As it is compared with a header that was read.
STATUS_FIELD: Final = STATUS_HEADER.lower().encode("ascii")


def spoken(asked: bytes | None) -> int:
    """Return in which version a client is answered that has ``asked`` for this one: 1 if for none that is known."""
    version = _number(None if asked is None else asked.decode("latin-1").strip()) or 1
    return min(version, STATUS_VERSION)


def difference(said: str | None) -> str | None:
    """Return in words how a daemon is another version than this, which has ``said`` this version; None if it is not."""
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
    """Return why a daemon that has ``said`` this version cannot be asked; None if it is at most one version away."""
    version = _number(said)
    if version is not None and abs(version - STATUS_VERSION) <= 1:
        return None
    return f"{difference(said)}; ask it with a plugind of its own version"


def _number(said: str | None) -> int | None:
    if said is None:
        return 0
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else None
