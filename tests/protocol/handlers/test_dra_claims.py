"""What the answers of DRA drivers mean; the texts are the kubelet's (consumers C.1, C.4)."""

from __future__ import annotations

import pytest

from plugind.protocol.handlers.dra_claims import (
    DRAAnswerError,
    DRAClaim,
    DRAClaimError,
    DRADriverUnknownError,
    DRAError,
    check_answer,
    check_claims,
    check_known,
)

ONE, TWO = DRAClaim("default", "uid-1", "train"), DRAClaim("default", "uid-2", "infer")


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
@pytest.mark.parametrize(
    ("errors", "kind", "text"),
    [
        ({"uid-1": "", "uid-2": ""}, None, ""),
        ({"uid-1": "", "uid-3": ""}, DRAAnswerError, "{} returned result for unknown claim UID uid-3"),
        ({"uid-1": "", "uid-2": "no such device"}, DRAClaimError, "{} failed for ResourceClaim infer: no such device"),
        ({"uid-2": ""}, DRAAnswerError, "{} skipped 1 ResourceClaims"),
        ({}, DRAAnswerError, "{} skipped 2 ResourceClaims"),
        ({"uid-2": "bad\x1b[2J"}, DRAClaimError, r"{} failed for ResourceClaim infer: bad\x1b[2J"),
    ],
    ids=["both", "another claim", "refused", "one skipped", "empty", "control characters"],
)
def test_an_answer_is_for_the_claims_that_were_asked_about(
    method: str, errors: dict[str, str], kind: type[DRAError] | None, text: str
) -> None:
    """Manager TestPrepareResources and TestUnprepareResources: wrong claim UID, empty result, an error of a claim."""
    claims = check_claims([ONE, TWO])
    if kind is None:
        check_answer(method, claims, errors)
        return
    with pytest.raises(kind) as caught:
        check_answer(method, claims, errors)
    assert str(caught.value) == text.format(method)


def test_the_error_of_a_claim_names_the_claim_and_is_cut() -> None:
    """Fault 94."""
    with pytest.raises(DRAClaimError) as caught:
        check_answer("NodePrepareResources", check_claims([ONE]), {"uid-1": "x" * 5000})
    assert caught.value.claim == ONE
    assert len(str(caught.value)) < 1200


def test_two_claims_with_one_uid_are_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="two claims have the same uid"):
        check_claims([ONE, ONE])


@pytest.mark.parametrize(
    ("name", "is_there", "text"),
    [
        ("", True, "DRA driver name is empty"),
        ("x.io", False, "DRA driver x.io is not registered"),
        ("x.io", True, None),
    ],
)
def test_a_driver_is_called_by_its_name(name: str, is_there: bool, text: str | None) -> None:
    """TestGetDRAPlugin."""
    if text is None:
        check_known(name, is_known=is_there)
        return
    with pytest.raises(DRADriverUnknownError) as caught:
        check_known(name, is_known=is_there)
    assert str(caught.value) == text
