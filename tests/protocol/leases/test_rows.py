"""Leases as rows: what is written is read again, and what cannot be understood is a clear error."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.rows import RowError, device_rows_of, lease_of, row_of
from plugind.protocol.leases.values import (
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.strategies import leases

GPU = "vendor.com/gpu"
BOOT = "4c9d5bcf-4b6f-4f0e-8a41-8d1d5c2a3a0b"
LEASE = Lease(
    "train-1",
    1000,
    Request((Wanted(GPU, 2),), labels=(("job", "7"),)),
    ProcessOwner(ProcessIdentity(991, 4_711, BOOT)),
    LeaseState.HELD,
    1_700_000_000.25,
    {GPU: ("GPU-1", "GPU-0")},
)


@examples(200)
@given(leases)
def test_a_lease_that_is_written_is_read_again(lease: Lease) -> None:
    """All of it: owner, request, answer, warnings, and the devices in their order."""
    assert lease_of(row_of(lease, BOOT), device_rows_of(lease)) == lease


@pytest.mark.parametrize("owner", [NoOwner(), TimeOwner(60.0, 10**18), ContainerOwner()])
def test_a_lease_without_a_process_has_the_boot_in_which_it_was_written(
    owner: NoOwner | TimeOwner | ContainerOwner,
) -> None:
    assert row_of(attrs.evolve(LEASE, owner=owner), BOOT).boot_id == BOOT


def test_a_row_of_an_earlier_version_has_a_container_with_the_usual_time() -> None:
    row = row_of(attrs.evolve(LEASE, owner=ContainerOwner()), BOOT)
    asked = json.loads(row.request)
    del asked["start_within"]
    earlier = attrs.evolve(row, request=json.dumps(asked))
    assert lease_of(earlier, device_rows_of(LEASE)).owner == ContainerOwner()


@pytest.mark.parametrize("state", [LeaseState.QUEUED, LeaseState.CHOOSING, LeaseState.GONE])
def test_a_lease_that_is_in_memory_alone_is_not_written(state: LeaseState) -> None:
    with pytest.raises(ValueError, match=f"a lease that is {state.value} is not written"):
        row_of(attrs.evolve(LEASE, state=state), BOOT)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"request": "{"}, "Expecting property name"),
        ({"request": '{"resources":{}}'}, "there is no 'ids'"),
        ({"request": "[]"}, "list indices"),
        ({"label": '{"a":1}'}, "1 is no str"),
        ({"state": "gone"}, "its state is gone"),
        ({"state": "sold"}, "'sold' is not a valid LeaseState"),
        ({"owner_kind": "nobody"}, "its owner is 'nobody'"),
        ({"start_ticks": None}, "None is no int"),
        ({"answer": '{"answer":{"env":{}},"warnings":[]}'}, "there is no 'mounts'"),
    ],
)
def test_a_row_that_cannot_be_understood_is_a_clear_error(change: dict[str, Any], why: str) -> None:
    row = attrs.evolve(row_of(LEASE, BOOT), **change)
    with pytest.raises(RowError, match=f"the row of the lease train-1 cannot be understood: .*{why}"):
        lease_of(row, device_rows_of(LEASE))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["resources", "ids", "env"]), inner),
    max_leaves=6,
)


@examples(100)
@given(leases, st.sampled_from(["label", "request", "answer"]), _json.map(json.dumps))
def test_whatever_stands_in_a_column_no_other_error_is_raised(lease: Lease, column: str, content: str) -> None:
    other: dict[str, Any] = {column: content}
    with suppress(RowError):
        assert lease_of(attrs.evolve(row_of(lease, BOOT), **other), device_rows_of(lease)).id == lease.id
