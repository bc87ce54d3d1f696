"""Who may write to a directory, and what follows."""

from __future__ import annotations

import pytest

from plugind.protocol.directories import (
    MAX_REPORTED,
    Access,
    Condition,
    DirectoryReport,
    count,
    insecurity,
    insecurity_above,
    judge,
    root_insecurity,
    root_insecurity_above,
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
        (0o755, 1000, 0, Condition.INSECURE),
        (0o755, 65534, 1000, Condition.INSECURE),
        (0o777, 0, 0, Condition.INSECURE),
        (0o702, 0, 0, Condition.INSECURE),
        (0o1777, 0, 0, Condition.INSECURE),
        (0o775, 0, 0, Condition.GROUP_WRITABLE),
        (0o770, 1000, 1000, Condition.GROUP_WRITABLE),
        (0o775, 1000, 0, Condition.INSECURE),
    ],
)
def test_a_directory_is_judged_by_its_owner_and_its_mode(
    is_root: bool, mode: int, owner: int, user: int, condition: Condition | None
) -> None:
    """Fault 3: others may write to it, or it belongs to another user; its group is only warned of."""
    report = judge(ROOT, access(mode, owner, user=user), is_root=is_root)
    assert (None if report is None else report.condition) is condition
    assert condition is None or condition.degrades == (condition is Condition.INSECURE)


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
    assert f"belongs to user 1000, and nothing new below it is taken: run 'chown 0 {BELOW}'" in foreign


def test_the_worst_directories_are_reported_first_and_all_are_counted() -> None:
    """Fault 92: the report is bounded."""
    reports = [DirectoryReport(f"/r/{n:02}", Condition.GROUP_WRITABLE, "") for n in range(20)]
    reports += [DirectoryReport("/r/x", Condition.FULL, ""), DirectoryReport("/r/z", Condition.INSECURE, "")]
    shown = worst(reports)
    assert [report.path for report in shown[:3]] == ["/r/z", "/r/x", "/r/00"]
    assert len(shown) == MAX_REPORTED
    assert count(reports) == ((Condition.INSECURE, 1), (Condition.FULL, 1), (Condition.GROUP_WRITABLE, 20))


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
