"""The account of what all connections of a node hold unparsed (fault 65)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.wire.budgets import LITTLE, UnparsedBytes
from plugind.protocol.wire.errors import ErrorCode, WireProblem
from plugind.protocol.wire.limits import WireLimits

LIMIT = WireLimits().unparsed_bytes


def test_a_connection_that_asks_for_too_much_is_refused_and_the_others_keep_what_they_hold() -> None:
    account = UnparsedBytes(LIMIT)
    share = 64 * 1024
    refused = [account.change(0, share) for _ in range(200)]
    assert refused[:32] == [None] * 32
    assert account.kept == 32 * share == LIMIT // 2
    error = refused[32]
    assert error is not None
    assert (error.problem, error.code) == (WireProblem.UNPARSED_BYTES, ErrorCode.ENHANCE_YOUR_CALM)
    assert error.message == (
        "unparsed bytes of all conversations together over the limit of 4194304 (limit unparsed_bytes)"
    )


def test_those_that_hold_much_do_not_shut_out_those_that_hold_little() -> None:
    account = UnparsedBytes(LIMIT)
    while account.change(0, 64 * 1024) is None:
        pass
    assert [account.change(0, LITTLE) for _ in range(4096)] == [None] * 4096
    assert account.kept <= LIMIT
    assert account.change(0, LITTLE) is not None


def test_a_connection_over_the_limit_may_still_give_something_back() -> None:
    """Otherwise one that holds more than is allowed now could never shrink."""
    account = UnparsedBytes(1000)
    account.kept = 2000
    assert account.change(2000, 1500) is None
    assert account.kept == 1500


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=60))
def test_the_account_is_the_sum_of_what_is_held_and_never_over_the_limit(changes: list[tuple[int, int]]) -> None:
    account, kept = UnparsedBytes(1000), [0] * 10
    for connection, after in changes:
        if account.change(kept[connection], after) is None:
            kept[connection] = after
        assert account.kept == sum(kept) <= 1000
