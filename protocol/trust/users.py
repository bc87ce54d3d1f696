"""Which users may register plugins, and take over a name.

A socket is judged by the user of the listening process (SO_PEERCRED), not by the owner of its file, which a plugin may
change. :class:`Users` has the system's answers, so the rules need no system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from ..checks import refusing_text
from ..errors import ConfigError
from ..values import value

#: The largest uid: the next number means "no user" in the kernel's calls.
MAX_UID = 2**32 - 2
#: The number of uids. A user namespace that maps this many maps all.
ALL_UIDS = MAX_UID + 1
ROOT = 0

#: A uid, the first and last uid of a range, or the name of a user.
TrustedUser = int | tuple[int, int] | str

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_ADVICE = "give a uid such as 1000, a range such as 1000-1999, or the name of a user"


@value
class Users:
    """The system's answers about users: the uid of this process, and the uids of the names in a policy."""

    own: int = ROOT
    #: The uid that stands for all users whom the user namespace of this process does not map; None if it maps all.
    overflow: int | None = None
    by_name: Mapping[str, int] = attrs.field(factory=dict)

    def is_privileged(self, uid: int | None) -> bool:
        """Whether plugins of this user are always trusted and may take over any name: root's, and this user's."""
        return uid is not None and uid in (ROOT, self.own) and uid != self.overflow


#: For a process of root whose user namespace maps all users.
AS_ROOT = Users()


def _checked(uids: tuple[TrustedUser, ...]) -> tuple[TrustedUser, ...]:
    return tuple(map(_check, uids))


def _check(user: TrustedUser) -> TrustedUser:
    match user:
        case str():
            if not user:
                raise ConfigError(f"the name of a trusted user is empty: {_ADVICE}")
        case (first, last):
            if not 0 <= first <= last <= MAX_UID:
                raise ConfigError(f"{first}-{last} is no range of uids from 0 to {MAX_UID}: {_ADVICE}")
        case _:
            if not 0 <= user <= MAX_UID:
                raise ConfigError(f"{user} is no uid from 0 to {MAX_UID}: {_ADVICE}")
    return user


def parse_trusted_user(text: str) -> TrustedUser:
    """Return the user in ``text``: a uid, a range ``FIRST-LAST``, or else a user name.

    Raises:
      ConfigError: if ``text`` is empty, or a uid is out of range.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        return _check(text)
    return _check(int(match[1]) if match[2] is None else (int(match[1]), int(match[2])))


@attrs.frozen(field_transformer=refusing_text)
class Trust:
    """The policy of who may register plugins: root, the user that runs plugind, and additional ``uids``.

    ::

        Config(trust=Trust(uids=(1000, (2000, 2999), "csi")))

    The user is that of the process that listens on the socket. The overflow uid (``/proc/sys/kernel/overflowuid``,
    usually 65534) is never trusted in a user namespace that does not map all uids, since it stands for many users
    there, including root of the host.

    Raises:
      ConfigError: if a uid or a range is invalid. The node finds out whether a user name exists.
    """

    #: Who is trusted besides root and the user that runs plugind: uids, ranges ``(first, last)`` and user names.
    uids: tuple[TrustedUser, ...] = attrs.field(default=(), converter=_checked)

    def refusal(self, uid: int, pid: int, users: Users) -> str | None:
        """Return why process ``pid`` of user ``uid`` is not trusted, and what to do; None if it is (fault 40)."""
        if uid == users.overflow:
            return (
                f"{listener(uid, pid)}; this is the overflow uid, which is never trusted, because it stands for every"
                " user that plugind's user namespace does not map: map all uids there, or run the plugin as a user that"
                " is mapped"
            )
        if self.includes(uid, users):
            return None
        own = "root" if users.own == ROOT else f"root or as user {users.own}"
        return f"{listener(uid, pid)}, which is not trusted: run the plugin as {own}, or plugind with --trust-uid {uid}"

    def includes(self, uid: int, users: Users) -> bool:
        """Whether plugins of this user may register."""
        if uid == users.overflow:
            return False
        return users.is_privileged(uid) or any(_covers(entry, uid, users) for entry in self.uids)

    @property
    def names(self) -> tuple[str, ...]:
        """The user names, whose uids :class:`Users` must have."""
        return tuple(entry for entry in self.uids if isinstance(entry, str))


def _covers(entry: TrustedUser, uid: int, users: Users) -> bool:
    match entry:
        case str():
            return users.by_name.get(entry) == uid
        case (first, last):
            return first <= uid <= last
        case _:
            return entry == uid


def user_words(uid: int | None) -> str:
    """Return words for the user of a plugin; None is an unknown one."""
    return "an unknown user" if uid is None else f"user {uid}"


def listener(uid: int, pid: int) -> str:
    """Return words for a listening process, whose ``pid`` is 0 in another pid namespace."""
    process = f"process {pid}" if pid else "a process of another pid namespace"
    return f"{process} of user {uid} listens there"


def another_user(uid: int, pid: int, before: int) -> str:
    """Return why a plugin is not notified on this connection: user ``before`` answered GetInfo."""
    return (
        f"{listener(uid, pid)} now, and user {before} answered GetInfo: a plugin must not change its user; restart it,"
        " or ask for a retry to register the one that listens now"
    )
