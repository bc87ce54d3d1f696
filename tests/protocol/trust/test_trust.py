"""Which users may register plugins: the policy, and the words for those who may not."""

from __future__ import annotations

import pytest

from plugind.protocol.errors import ConfigError
from plugind.protocol.trust.users import MAX_UID, Trust, TrustedUser, Users, parse_trusted_user

#: A daemon of user 500 that knows a user called csi.
USERS = Users(own=500, by_name={"csi": 77})


def trusted(trust: Trust, *uids: int, users: Users = USERS) -> list[int]:
    return [uid for uid in uids if trust.refusal(uid, 42, users) is None]


def test_root_and_the_user_of_the_daemon_are_trusted_and_nobody_else() -> None:
    """Fault 40."""
    assert trusted(Trust(), 0, 1, 499, 500, 501, 65534, MAX_UID) == [0, 500]


def test_uids_ranges_and_names_are_trusted_besides() -> None:
    """Fault 40."""
    trust = Trust((1000, (2000, 2002), "csi"))
    asked = (0, 76, 77, 78, 500, 999, 1000, 1001, 1999, 2000, 2001, 2002, 2003)
    assert trusted(trust, *asked) == [0, 77, 500, 1000, 2000, 2001, 2002]


def test_the_reason_names_process_and_user_and_says_what_to_do() -> None:
    """Fault 40."""
    assert Trust().refusal(1001, 42, USERS) == (
        "process 42 of user 1001 listens there, which is not trusted: run the plugin as root or as user 500, or plugind"
        " with --trust-uid 1001"
    )
    assert Trust().refusal(1001, 0, Users()) == (
        "a process of another pid namespace of user 1001 listens there, which is not trusted: run the plugin as root,"
        " or plugind with --trust-uid 1001"
    )


@pytest.mark.parametrize("own", [0, 65534])
def test_the_overflow_uid_is_never_trusted_where_not_all_users_are_mapped(own: int) -> None:
    """Fault 40: in a user namespace, root and nobody of the host both appear as 65534."""
    users = Users(own=own, overflow=65534, by_name={"nobody": 65534})
    trust = Trust((65534, (60000, 70000), "nobody"))
    assert trusted(trust, 65533, 65534, 65535, users=users) == [65533, 65535]
    assert not users.is_privileged(65534)
    reason = trust.refusal(65534, 42, users)
    assert reason is not None
    assert reason.startswith("process 42 of user 65534 listens there; this is the overflow uid, which is never trusted")
    assert reason.endswith("map all uids there, or run the plugin as a user that is mapped")


def test_only_root_and_the_user_of_the_daemon_are_privileged() -> None:
    """Fault 80."""
    assert [uid for uid in (None, 0, 1, 77, 500, 501) if USERS.is_privileged(uid)] == [0, 500]


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("0", 0),
        ("1000", 1000),
        (str(MAX_UID), MAX_UID),
        ("5-5", (5, 5)),
        ("1000-1999", (1000, 1999)),
        ("www-data", "www-data"),
        ("-1", "-1"),
        ("7-", "7-"),
    ],
)
def test_the_text_of_a_flag_is_a_uid_or_a_range_or_else_a_name(text: str, user: TrustedUser) -> None:
    assert parse_trusted_user(text) == user


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the name of a trusted user is empty"),
        (str(MAX_UID + 1), "4294967295 is no uid from 0 to 4294967294"),
        ("9-8", "9-8 is no range of uids from 0 to 4294967294"),
        ("0-4294967295", "0-4294967295 is no range of uids from 0 to 4294967294"),
    ],
)
def test_what_is_no_user_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trusted_user(text)
    assert str(caught.value) == f"{said}: give a uid such as 1000, a range such as 1000-1999, or the name of a user"


def test_a_policy_checks_its_uids() -> None:
    with pytest.raises(ConfigError, match="-1 is no uid"):
        Trust((-1,))
