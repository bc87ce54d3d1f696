"""Who may open a device node: POSIX ACLs as values, and what they must be while leases are held.

A node whose access goes by leases has an entry for each user who holds one, and permits nothing to anybody else but
its owner and root. The entries of users are plugind's: one of a user without a lease is left over, and goes. All other
entries stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Final

from ..values import value

#: The attribute with the ACL of a file.
ATTRIBUTE: Final = "system.posix_acl_access"

#: The kinds of entries, in their order in an ACL. USER and GROUP have an id.
USER_OBJ: Final = 0x01
USER: Final = 0x02
GROUP_OBJ: Final = 0x04
GROUP: Final = 0x08
MASK: Final = 0x10
OTHER: Final = 0x20

READ: Final = 4
WRITE: Final = 2

_VERSION: Final = 2
_HEAD: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
_NO_ID: Final = 2**32 - 1

#: What to do with a node that others may open; ``deploy/udev/72-plugind.rules`` has the rule.
ADVICE: Final = 'set OWNER="root", GROUP="root", MODE="0660", TAG-="uaccess" by udev'


@value
class AclEntry:
    """An entry of an ACL."""

    #: Which kind it is.
    tag: int
    #: What it permits: the sum of :data:`READ`, :data:`WRITE` and 1.
    permissions: int
    #: The user or group, for the kinds that have one.
    id: int = _NO_ID


Acl = tuple[AclEntry, ...]


def acl_of_mode(mode: int) -> Acl:
    """Return the ACL of a file that has only a mode."""
    parts = ((USER_OBJ, mode >> 6), (GROUP_OBJ, mode >> 3), (OTHER, mode))
    return tuple(AclEntry(tag, bits & 7) for tag, bits in parts)


def decoded(raw: bytes) -> Acl:
    """Return the ACL in the value of :data:`ATTRIBUTE`.

    Raises:
      ValueError: if it is of another form.
    """
    if len(raw) % _ENTRY.size != _HEAD.size or _HEAD.unpack_from(raw) != (_VERSION,):
        raise ValueError("an ACL of an unknown form")
    return tuple(AclEntry(*fields) for fields in _ENTRY.iter_unpack(raw[_HEAD.size :]))


def encoded(acl: Acl) -> bytes:
    """Return the value of :data:`ATTRIBUTE` for an ACL."""
    return _HEAD.pack(_VERSION) + b"".join(_ENTRY.pack(entry.tag, entry.permissions, entry.id) for entry in acl)


def bits_of(permissions: str) -> int:
    """Return what an entry permits for ``r`` and ``w`` in the permissions of a resource."""
    return ("r" in permissions) * READ + ("w" in permissions) * WRITE


def users_of(acl: Acl) -> Mapping[int, int]:
    """Return the users that have entries, each with what it permits."""
    return {entry.id: entry.permissions for entry in acl if entry.tag == USER}


def with_users(acl: Acl, users: Mapping[int, int]) -> Acl:
    """Return an ACL in which just these users have entries, each with what it permits; the mask lets all through."""
    kept = [entry for entry in acl if entry.tag not in (USER, MASK)]
    given = [AclEntry(USER, bits, uid) for uid, bits in users.items()]
    if given or any(entry.tag == GROUP for entry in kept):
        limited = [*given, *(entry for entry in kept if entry.tag in (GROUP_OBJ, GROUP))]
        given.append(AclEntry(MASK, reduce(or_, (entry.permissions for entry in limited))))
    return tuple(sorted((*kept, *given), key=lambda entry: (entry.tag, entry.id)))


def why_open(acl: Acl, owner: int, group: int, own: int) -> str | None:
    """Return who may open a node without a lease, besides root and plugind's own user; None if nobody may.

    The mask does not count, because it changes with each entry that is added.
    """
    if owner not in (0, own):
        return f"the user {owner} owns it"
    for entry in acl:
        if not entry.permissions:
            continue
        if entry.tag == OTHER:
            return "everybody may open it"
        if entry.tag == GROUP or (entry.tag == GROUP_OBJ and group != 0):
            return f"the group {group if entry.tag == GROUP_OBJ else entry.id} may open it"
    return None
