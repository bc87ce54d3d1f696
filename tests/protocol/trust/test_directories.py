"""Who may write to a directory, and what follows."""

from __future__ import annotations

import pytest

from plugind.protocol.trust.directories import (
    MAX_REPORTED,
    Access,
    DirectoryCondition,
    DirectoryReport,
    between,
    count,
    insecurity,
    insecurity_above,
    judge,
    root_insecurity,
    root_insecurity_above,
    trusted_owner,
    worst,
)

ROOT, BELOW = "/run/plugins", "/run/plugins/vendor"


def access(mode: int, owner: int = 0, *, user: int = 0) -> Access:
    return Access(mode, owner, owner == user)


@pytest.mark.parametrize("is_root", [True, False])
@pytest.mark.parametrize(
    ("mode", "owner", "user", "condition"),
    [
        (0o755, 0, 0, None),
        (0o700, 1000, 1000, None),
        (0o755, 0, 1000, None),
        (0o755, 1000, 0, DirectoryCondition.INSECURE),
        (0o755, 65534, 1000, DirectoryCondition.INSECURE),
        (0o777, 0, 0, DirectoryCondition.INSECURE),
        (0o702, 0, 0, DirectoryCondition.INSECURE),
        (0o1777, 0, 0, DirectoryCondition.INSECURE),
        (0o775, 0, 0, DirectoryCondition.GROUP_WRITABLE),
        (0o770, 1000, 1000, DirectoryCondition.GROUP_WRITABLE),
        (0o775, 1000, 0, DirectoryCondition.INSECURE),
    ],
)
def test_a_directory_is_judged_by_its_owner_and_its_mode(
    is_root: bool, mode: int, owner: int, user: int, condition: DirectoryCondition | None
) -> None:
    """Fault 3: others may write to it, or it belongs to another user; its group is only warned of."""
    report = judge(ROOT, access(mode, owner, user=user), is_root=is_root)
    assert (None if report is None else report.condition) is condition
    assert condition is None or condition.degrades == (condition is DirectoryCondition.INSECURE)


def test_the_advice_for_a_root_that_is_shared_on_purpose_is_a_directory_in_it() -> None:
    """Fault 3: with another mode, programs that use ``/tmp`` fail."""
    advice = root_insecurity("/tmp", access(0o1777))
    assert advice is not None
    assert "'mkdir -m 0755 /tmp/plugins'" in advice
    assert "chmod" not in advice


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_the_advice_for_a_directory_below_a_root_names_the_command_that_mends_it(mode: int) -> None:
    """Fault 3."""
    said = insecurity(BELOW, access(mode))
    assert said == (
        f"everybody may write to {BELOW}, and nothing new below it is taken: run 'chmod o-w {BELOW}', or allow all of"
        " the root with --insecure-root"
    )
    foreign = insecurity(BELOW, access(0o755, 1000))
    assert foreign is not None
    assert foreign == (
        f"{BELOW} belongs to user 1000, and nothing new below it is taken: run plugind with --trust-uid 1000 if that"
        f" user's plugins belong there, 'chown 0 {BELOW}' if they do not and you trust what is in it, or allow all of"
        " the root with --insecure-root"
    )


@pytest.mark.parametrize(
    ("mode", "owner", "above", "condition"),
    [
        (0o755, 1000, None, None),
        (0o700, 1000, 1000, None),
        (0o755, 0, 1000, None),
        (0o775, 1000, None, DirectoryCondition.GROUP_WRITABLE),
        (0o777, 1000, None, DirectoryCondition.INSECURE),
        (0o755, 1001, None, None),
        (0o755, 1001, 1000, DirectoryCondition.INSECURE),
        (0o755, 6666, None, DirectoryCondition.INSECURE),
        (0o755, 6666, 6666, DirectoryCondition.INSECURE),
    ],
)
def test_a_trusted_user_may_own_directories_below_a_root_but_none_below_those_of_another_one(
    mode: int, owner: int, above: int | None, condition: DirectoryCondition | None
) -> None:
    """Fault 3: a plugin that makes its own directory was refused, with advice that broke it."""
    report = judge(BELOW, access(mode, owner), is_root=False, trusts={1000, 1001}.__contains__, above=above)
    assert (None if report is None else report.condition) is condition
    if above is not None and owner == 1001:
        assert report is not None
        assert (
            "belongs to user 1001 and lies in a directory of user 1000, who could replace it, and noth" in report.reason
        )


def test_a_trusted_user_may_own_no_root() -> None:
    """Fault 3: the owner of a root can remove the plugins of all, and the lock."""
    report = judge(ROOT, access(0o755, 1000), is_root=True, trusts={1000}.__contains__)
    assert report is not None
    assert report.condition is DirectoryCondition.INSECURE


def test_the_trusted_owner_of_a_path_is_the_first_from_the_top() -> None:
    """Fault 80: that user can replace everything below."""
    assert trusted_owner(access(0o755, 0), None) is None
    assert trusted_owner(access(0o755, 1000), None) == 1000
    assert trusted_owner(access(0o755, 0), 1000) == 1000
    assert between("/r", "/r/a.sock") == []
    assert between("/r", "/r/a/b/c.sock") == ["/r/a", "/r/a/b"]
    assert between("/", "/a/c.sock") == ["/a"]


def test_the_worst_directories_are_reported_first_and_all_are_counted() -> None:
    """Fault 92: the report is bounded."""
    reports = [DirectoryReport(f"/r/{n:02}", DirectoryCondition.GROUP_WRITABLE, "") for n in range(20)]
    reports += [
        DirectoryReport("/r/x", DirectoryCondition.FULL, ""),
        DirectoryReport("/r/z", DirectoryCondition.INSECURE, ""),
    ]
    shown = worst(reports)
    assert [report.path for report in shown[:3]] == ["/r/z", "/r/x", "/r/00"]
    assert len(shown) == MAX_REPORTED
    assert count(reports) == (
        (DirectoryCondition.INSECURE, 1),
        (DirectoryCondition.FULL, 1),
        (DirectoryCondition.GROUP_WRITABLE, 20),
    )


@pytest.mark.parametrize(
    ("mode", "owner", "user", "problem"),
    [
        (0o755, 0, 1000, None),
        (0o700, 1000, 1000, None),
        (0o1777, 0, 1000, None),
        (0o775, 0, 0, None),
        (0o777, 0, 0, "everybody may write to /run"),
        (0o703, 1000, 1000, "everybody may write to /run"),
        (0o755, 1000, 0, "/run belongs to user 1000"),
        (0o1777, 1000, 0, "/run belongs to user 1000"),
    ],
)
def test_a_directory_above_a_root_lets_nobody_else_replace_what_is_in_it(
    mode: int, owner: int, user: int, problem: str | None
) -> None:
    """Fault 3: the sticky bit protects what is in a shared directory, and the rights of a group are not judged."""
    assert insecurity_above("/run", access(mode, owner, user=user)) == problem
    text = root_insecurity_above(ROOT, "/run", access(mode, owner, user=user))
    assert (text is None) is (problem is None)
    if text is not None:
        assert text.startswith(f"{problem}, and so others may replace the root {ROOT}: ")
        assert ("'chmod o-w /run'" in text) is (owner == user)
        assert "--root" in text
        assert "--insecure-root" in text


@pytest.mark.parametrize(("mode", "secure"), [(0o755, True), (0o1777, True), (0o775, False), (0o777, False)])
def test_above_a_root_an_owner_outside_of_the_user_namespace_is_judged_by_the_mode(mode: int, secure: bool) -> None:
    """Fault 3: there, ``/`` and ``/tmp`` of the host have no other owner."""
    problem = insecurity_above("/run", Access(mode, 65534, ours=False, unmapped=True))
    assert (problem is None) is secure
    if problem is not None:
        assert problem.startswith("others may write to /run, which belongs to user 65534, which stands for all users")


def test_a_root_and_what_is_below_it_need_an_owner_inside_of_the_user_namespace() -> None:
    """Fault 3."""
    access = Access(0o755, 65534, ours=False, unmapped=True)
    assert "which stands for all users whom this user namespace does not map" in str(root_insecurity("/r", access))
    assert insecurity("/r/d", access) is not None
