"""The system's answers about users: the uid of this process, the overflow uid, and the uids of user names."""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Iterable
from typing import Final

from ...protocol.errors import ConfigError
from ...protocol.trust.users import ALL_UIDS, Trust, Users

_OVERFLOW: Final = "/proc/sys/kernel/overflowuid"
_MAP: Final = "/proc/self/uid_map"
#: The kernel's default, which is assumed where ``/proc`` cannot be read.
_USUAL_OVERFLOW: Final = 65534


def users_of(trust: Trust) -> Users:
    """Return the system's answers about the users that ``trust`` needs.

    Raises:
      ConfigError: if a user name does not exist.
    """
    return Users(os.geteuid(), overflow_uid(), {name: _uid_of(name) for name in trust.names})


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise ConfigError(f"no user is called {name!r}: trust another one, or give the uid") from None


def overflow_uid(number: str = _OVERFLOW, uid_map: str = _MAP) -> int | None:
    """Return the uid that stands for all users whom our user namespace does not map; None if it maps all.

    If that cannot be found out, return the usual one.
    """
    try:
        with open(uid_map) as lines:
            if _maps_all(lines):
                return None
        with open(number) as line:
            return int(line.read())
    except (OSError, ValueError):
        return _USUAL_OVERFLOW


@functools.cache
def unmapped_uid(number: str = _OVERFLOW, uid_map: str = _MAP) -> int | None:
    """Return the uid that files of users outside our user namespace have here; None if it may be a user inside.

    That is the overflow uid, if the namespace maps no user to that number. The map of a process never changes, so it is
    read once.
    """
    try:
        with open(uid_map) as lines:
            inside = [(int(line.split()[0]), int(line.split()[2])) for line in lines]
        with open(number) as line:
            overflow = int(line.read())
    except (OSError, ValueError):
        return None
    return None if any(first <= overflow < first + count for first, count in inside) else overflow


def _maps_all(lines: Iterable[str]) -> bool:
    # A namespace can map only users that its parent maps, so the lengths are enough.
    return sum(int(line.split()[2]) for line in lines) >= ALL_UIDS
