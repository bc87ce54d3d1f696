"""ACLs of device nodes: what is read is written again, and who has an entry while leases are held."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.devices.access import (
    GROUP,
    GROUP_OBJ,
    MASK,
    USER,
    Acl,
    AclEntry,
    acl_of_mode,
    decoded,
    encoded,
    users_of,
    why_open,
    with_users,
)
from plugind.tests.protocol.hypothesis_settings import examples

_bits = st.integers(0, 7)
_ids = st.integers(0, 2**32 - 2)
_named = st.dictionaries(_ids, _bits, max_size=4)


def acl(users: dict[int, int], groups: dict[int, int], mode: int, mask: int) -> Acl:
    """Return an ACL as Linux has them: in order, and with a mask if there is a named entry."""
    named = [AclEntry(USER, bits, uid) for uid, bits in users.items()]
    named += [AclEntry(GROUP, bits, gid) for gid, bits in groups.items()]
    masks = [AclEntry(MASK, mask)] if named else []
    return tuple(sorted((*acl_of_mode(mode), *named, *masks), key=lambda entry: (entry.tag, entry.id)))


_acls = st.builds(acl, _named, _named, st.integers(0, 0o777), _bits)


@examples(200)
@given(_acls, _named)
def test_just_the_given_users_have_entries_that_count_and_all_other_entries_stay(
    before: Acl, users: dict[int, int]
) -> None:
    after = with_users(before, users)
    assert decoded(encoded(after)) == after
    assert users_of(after) == users
    others = [entry for entry in before if entry.tag not in (USER, MASK)]
    assert [entry for entry in after if entry.tag not in (USER, MASK)] == others
    assert [*after] == sorted(after, key=lambda entry: (entry.tag, entry.id))
    masks = [entry.permissions for entry in after if entry.tag == MASK]
    limited = [entry.permissions for entry in after if entry.tag in (USER, GROUP, GROUP_OBJ)]
    assert len(masks) == any(entry.tag in (USER, GROUP) for entry in after)
    assert all(not bits & ~mask for bits in limited for mask in masks), "the mask lets all through"
    assert with_users(after, users) == after, "nothing is left to change"


def test_an_acl_has_the_form_that_the_kernel_gives_it() -> None:
    raw = bytes.fromhex("02000000 01000600ffffffff 02000600e8030000 04000600ffffffff 10000600ffffffff 20000000ffffffff")
    assert encoded(with_users(acl_of_mode(0o660), {1000: 6})) == raw


@pytest.mark.parametrize("raw", [b"", b"\2\0\0", struct.pack("<I", 1), struct.pack("<IH", 2, 1)])
def test_an_acl_of_another_form_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="an ACL of an unknown form"):
        decoded(raw)


@pytest.mark.parametrize(
    ("found", "owner", "group", "why"),
    [
        (acl_of_mode(0o660), 0, 0, None),
        (acl_of_mode(0o600), 0, 20, None),
        (acl_of_mode(0o600), 500, 500, None),
        (with_users(acl_of_mode(0o660), {1000: 6}), 0, 0, None),
        (acl_of_mode(0o600), 1000, 0, "the user 1000 owns it"),
        (acl_of_mode(0o660), 0, 20, "the group 20 may open it"),
        (acl_of_mode(0o664), 0, 0, "everybody may open it"),
        (acl({}, {44: 6}, 0o600, 0), 0, 0, "the group 44 may open it"),
        (acl({}, {44: 0}, 0o600, 6), 0, 0, None),
    ],
)
def test_a_node_that_others_may_open_is_told_from_one_that_goes_by_leases(
    found: Acl, owner: int, group: int, why: str | None
) -> None:
    assert why_open(found, owner, group, own=500) == why
