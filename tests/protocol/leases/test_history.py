"""What the history of leases has of a lease, and the JSON of its rows."""

from __future__ import annotations

import json

import attrs
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.history import (
    COLUMNS,
    MAX_LABELS,
    MAX_REASON,
    Granted,
    HistoryQuery,
    HistoryRow,
    columns_of,
    history_from_json,
    parameters_of,
    query_of,
    row_to_json,
)
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, ProcessIdentity, ProcessOwner, Request

LEASE = Lease(
    "job 7",
    1000,
    Request((), pool="night", labels=(("p", "x"), ("q", "y"))),
    ProcessOwner(ProcessIdentity(991, 1, "boot")),
    LeaseState.HELD,
    1.5,
    {"v.com/gpu": ("gpu-0", "gpu-1")},
    reason="one of its devices is missing",
)


def columns(entry: Granted) -> list[dict[str, object]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in columns_of(entry)]


def test_a_lease_has_a_row_for_each_device() -> None:
    first, second = columns(Granted(LEASE, 2.0))
    assert second == {**first, "device": "gpu-1"}
    assert first == {
        "lease": "job 7",
        "created": 1.5,
        "resource": "v.com/gpu",
        "device": "gpu-0",
        "uid": 1000,
        "pool": "night",
        "labels": '{"p": "x", "q": "y"}',
        "owner": "process",
        "pid": 991,
        "granted": 2.0,
        "ended": None,
        "seen": None,
        "reason": None,
    }
    ended = attrs.evolve(LEASE, state=LeaseState.GONE, reason="it was released")
    assert columns(Granted(ended, 2.0, 3.0))[0] == {**first, "ended": 3.0, "reason": "it was released"}


def test_a_row_is_for_the_user_of_a_job_for_which_root_has_asked() -> None:
    job = attrs.evolve(LEASE, id="slurm:cluster:node:42:0:1234:gpu", uid=0)
    assert {row["uid"] for row in columns(Granted(job, 2.0))} == {1234}


def test_nobody_fills_the_history_with_labels_and_reasons_and_no_text_is_refused() -> None:
    labels = tuple((f"label {number}", "x" * 300) for number in range(9))
    owned = attrs.evolve(
        LEASE, request=Request((), labels=labels), owner=NoOwner(), reason="\udcff" + "y" * 10_000, id="\udcff"
    )
    row = columns(Granted(owned, 2.0, 3.0))[0]
    kept = json.loads(str(row["labels"]))
    assert kept == dict(labels[:3])
    assert len(str(row["labels"])) <= MAX_LABELS
    assert len(str(row["reason"])) <= MAX_REASON + 20  # With what was cut, and an escape.
    str(row).encode()


ROW = HistoryRow("a", 0.0, "r", "d", 0, None, {}, "none", None, 10.0)
TIMES = st.none() | st.floats(0.0, 1e9)
TEXTS = st.none() | st.text(max_size=5)
ROWS = st.builds(
    HistoryRow,
    st.text(max_size=5),
    st.floats(0.0, 1e9),
    st.text(max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**32 - 2),
    TEXTS,
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.sampled_from(["process", "none"]),
    st.none() | st.integers(1, 99),
    st.floats(0.0, 1e9),
    TIMES,
    TIMES,
    TEXTS,
)


@given(st.lists(ROWS, max_size=3))
def test_rows_come_out_of_json_as_they_went_in(rows: list[HistoryRow]) -> None:
    content = {"uid": None, "gaps": [], "rows": [row_to_json(row, 5.0) for row in rows], "more": False}
    assert history_from_json(json.loads(json.dumps(content))).rows == tuple(rows)


@given(st.builds(HistoryQuery, TEXTS, TEXTS, st.none() | st.integers(0, 2**32 - 2), TIMES, TIMES))
def test_a_query_comes_out_of_parameters_as_it_went_in(query: HistoryQuery) -> None:
    assert query_of(parameters_of(query)) == query


def test_a_device_is_held_until_now_its_end_or_the_last_sign_of_its_lease() -> None:
    assert ROW.seconds(25.0) == 15.0
    assert ROW.seconds(5.0) == 0.0  # The clock was set back.
    assert attrs.evolve(ROW, ended=18.0).seconds(25.0) == 8.0
    assert attrs.evolve(ROW, ended=18.0, seen=12.0).seconds(25.0) == 2.0
