"""The database with the history of leases: which rows a query finds, the sums, and its bounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.actors.io import history_database
from plugind.actors.io.history_database import BEGINS, NO_ROOM, HistoryDatabase
from plugind.protocol.errors import StateError
from plugind.protocol.leases.config import LeaseHistoryConfig
from plugind.protocol.leases.history import Gap, Granted, HistoryQuery, Usage
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request

GPU, PORT = "vendor.com/gpu", "lab/serial"
DAY = 86_400.0


def granted(
    name: str,
    devices: dict[str, tuple[str, ...]],
    start: float,
    end: float | None = None,
    *,
    uid: int = 1,
    labels: dict[str, str] | None = None,
) -> Granted:
    request = Request((), labels=tuple(sorted((labels or {}).items())))
    state = LeaseState.HELD if end is None else LeaseState.GONE
    return Granted(Lease(name, uid, request, NoOwner(), state, start, devices), start, end)


def opened(path: str = ":memory:", config: LeaseHistoryConfig | None = None) -> HistoryDatabase:
    database = HistoryDatabase(path, config or LeaseHistoryConfig(), "a boot")
    database.begin([], [], None, 0.0)
    return database


@pytest.fixture
def database() -> Iterator[HistoryDatabase]:
    made = opened()
    yield made
    made.close()


def names(database: HistoryDatabase, query: HistoryQuery) -> list[str]:
    rows, _ = database.rows(query, None, 1000, 5.0)
    return [f"{row.lease}:{row.device}" for row in reversed(rows)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (HistoryQuery(), ["a:gpu-0", "a:tty0", "b:gpu-1::0", "c:gpu-0"]),
        (HistoryQuery(device="gpu-0"), ["a:gpu-0", "c:gpu-0"]),
        (HistoryQuery(device="gpu-1"), ["b:gpu-1::0"]),
        (HistoryQuery(device="gpu"), []),
        (HistoryQuery(resource=PORT), ["a:tty0"]),
        (HistoryQuery(uid=2), ["b:gpu-1::0"]),
        (HistoryQuery(since=20.0), ["b:gpu-1::0", "c:gpu-0"]),
        (HistoryQuery(until=15.0), ["a:gpu-0", "a:tty0", "b:gpu-1::0"]),
        # Who had it at this moment: a device changes hands at 20 s.
        (HistoryQuery(device="gpu-0", since=19.9, until=19.9), ["a:gpu-0"]),
        (HistoryQuery(device="gpu-0", since=20.0, until=20.0), ["c:gpu-0"]),
        (HistoryQuery(device="gpu-0", since=9.9, until=9.9), []),
    ],
)
def test_a_query_finds_the_rows_of_its_devices_users_and_times(
    database: HistoryDatabase, query: HistoryQuery, found: list[str]
) -> None:
    database.write(
        [
            granted("a", {GPU: ("gpu-0",), PORT: ("tty0",)}, 10.0, 20.0),
            granted("b", {GPU: ("gpu-1::0",)}, 15.0, 30.0, uid=2),
            granted("c", {GPU: ("gpu-0",)}, 20.0),
        ],
        40.0,
    )
    assert names(database, query) == found


def test_rows_are_read_in_pages_of_which_each_follows_the_last_row_of_the_one_before(database: HistoryDatabase) -> None:
    database.write([granted(f"{number}", {GPU: ("gpu-0",)}, float(number), number + 1.0) for number in range(7)], 9.0)
    pages, before = [], None
    while True:
        rows, before = database.rows(HistoryQuery(), before, 3, 5.0)
        if not rows:
            break
        pages.append([row.lease for row in rows])
    assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]


@attrs.frozen
class Held:
    start: int
    length: int | None
    uid: int
    devices: int
    labels: dict[str, str]


HELD = st.builds(
    Held,
    st.integers(0, 50),
    st.none() | st.integers(0, 50),
    st.integers(1, 3),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from("pq"), st.sampled_from("xy")),
)


@given(st.lists(HELD, max_size=8), st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_usage_is_the_time_of_each_device_within_the_window(
    leases: list[Held], since: int | None, until: int | None
) -> None:
    """The sums are those of a loop over the seconds, in which each device of a lease counts once."""
    now, database = 70, opened()
    expected: dict[str, dict[object, int]] = {"user": {}, "resource": {}, "label": {}, "label:p": {}}
    for number, one in enumerate(leases):
        end = None if one.length is None else float(one.start + one.length)
        ids = tuple(f"gpu-{each}" for each in range(one.devices))
        database.write([granted(f"{number}", {GPU: ids}, float(one.start), end, uid=one.uid, labels=one.labels)], 1.0)
        for second in range(now):
            inside = (since or 0) <= second < (now if until is None else until)
            if inside and one.start <= second < (now if end is None else end):
                keys: list[tuple[str, object]] = [("user", one.uid), ("resource", GPU)]
                keys += [("label", f"{key}={text}") for key, text in one.labels.items()]
                keys.append(("label:p", one.labels.get("p")))
                for by, key in keys:
                    expected[by][key] = expected[by].get(key, 0) + one.devices
    query = HistoryQuery(since=since, until=until)
    for by, sums in expected.items():
        found = database.usage(by, query, float(now), 100, 5.0)
        assert {usage.key: usage.seconds for usage in found if usage.seconds} == sums
        assert [usage.seconds for usage in found] == sorted((usage.seconds for usage in found), reverse=True)
    database.close()


def test_usage_counts_each_lease_once_and_an_end_that_nobody_saw_at_the_last_sign_of_the_lease(
    database: HistoryDatabase,
) -> None:
    database.write([granted("a", {GPU: ("gpu-0", "gpu-1")}, 0.0)], 100.0)
    database.begin([], [], None, 1000.0)
    assert database.usage("resource", HistoryQuery(), 2000.0, 10, 5.0) == [Usage(GPU, 200.0, 1)]
    # It may have been held until then.
    assert names(database, HistoryQuery(since=999.0, until=999.0)) == ["a:gpu-0", "a:gpu-1"]
    assert names(database, HistoryQuery(since=1000.0, until=1000.0)) == []


def test_leases_of_one_id_have_rows_of_their_own(database: HistoryDatabase) -> None:
    database.write([granted("slurm:7", {GPU: ("gpu-0",)}, 0.0, 5.0), granted("slurm:7", {GPU: ("gpu-0",)}, 10.0)], 11.0)
    assert names(database, HistoryQuery()) == ["slurm:7:gpu-0"] * 2


def test_an_end_that_is_written_again_or_a_grant_that_comes_late_changes_nothing(database: HistoryDatabase) -> None:
    held, over = granted("a", {GPU: ("gpu-0",)}, 0.0), granted("a", {GPU: ("gpu-0",)}, 0.0, 5.0)
    for entry in (held, held, over, over, held):
        database.write([entry], 6.0)
    (row,), _ = database.rows(HistoryQuery(), None, 10, 5.0)
    assert (row.granted, row.ended) == (0.0, 5.0)


def test_what_is_too_old_is_deleted_and_what_is_held_is_not(database: HistoryDatabase) -> None:
    old, held = granted("old", {GPU: ("gpu-0",)}, 0.0, 5.0), granted("held", {GPU: ("gpu-1",)}, 0.0)
    database.write([old, held], 10.0)
    database.write([], 90 * DAY)
    assert names(database, HistoryQuery()) == ["old:gpu-0", "held:gpu-1"]
    database.write([], 91 * DAY)
    assert names(database, HistoryQuery()) == ["held:gpu-1"]
    assert database.gaps(HistoryQuery()) == []


def test_the_file_stays_below_its_limit_and_one_user_does_not_displace_the_rows_of_another(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.touch()
    limit = 512 * 1024
    database = opened(str(path), LeaseHistoryConfig(max_bytes=limit))
    database.write([granted("first", {GPU: ("gpu-0",)}, 0.0, 1.0, uid=2)], 1.0)
    sizes = []
    for batch in range(60):
        numbers = range(batch * 100, batch * 100 + 100)
        database.write([granted(f"{each:030}", {GPU: ("gpu-1",)}, each, each + 1.0) for each in numbers], numbers[-1])
        sizes.append(path.stat().st_size)
    assert max(sizes) <= limit
    assert (tmp_path / "history.db-wal").stat().st_size < 2 * history_database._JOURNAL_PAGES * 4096
    rows, _ = database.rows(HistoryQuery(), None, 10_000, 5.0)
    assert 1000 < len(rows) < 5000
    assert (rows[0].lease, rows[-1].lease) == (f"{5999:030}", "first")
    last = max(gap.until for gap in database.gaps(HistoryQuery()))
    assert database.gaps(HistoryQuery())[0] == Gap(None, last, None, NO_ROOM)
    assert last == pytest.approx(rows[-2].granted, abs=1.0)
    database.close()
    smaller = HistoryDatabase(str(path), LeaseHistoryConfig(max_bytes=limit // 4), "a boot")
    smaller.begin([], [], None, 1.0)
    smaller.write([], 6000.0)
    smaller.close()
    assert path.stat().st_size <= limit // 4


def test_a_read_that_takes_too_long_is_given_up(database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_database, "_INSTRUCTIONS", 10)
    database.write([granted(f"{number}", {GPU: ("gpu-0",)}, 0.0, 1.0) for number in range(100)], 1.0)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        database.usage("user", HistoryQuery(), 1.0, 10, -1.0)
    assert database.usage("user", HistoryQuery(), 1.0, 10, 5.0) == [Usage(1, 100.0, 100)]


def test_the_last_room_of_the_disk_is_left_to_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.db"
    path.touch()
    database = opened(str(path))
    monkeypatch.setattr(history_database, "_LEFT_FREE", 1 << 62)
    with pytest.raises(StateError, match="are left to the state"):
        database.write([granted("a", {GPU: ("gpu-0",)}, 0.0)], 1.0)
    assert names(database, HistoryQuery()) == []
    database.close()
    other = tmp_path / "other.db"
    other.touch()
    with pytest.raises(StateError, match="are left to the state"):
        HistoryDatabase(str(other), LeaseHistoryConfig(), "a boot")


def test_before_it_is_told_what_is_held_nothing_is_written(database: HistoryDatabase) -> None:
    new = HistoryDatabase(":memory:", LeaseHistoryConfig(), "a boot")
    assert not new.write([granted("a", {GPU: ("gpu-0",)}, 0.0)], 1.0)
    assert names(new, HistoryQuery()) == []
    new.close()
    assert database.write([], 1.0)


def test_a_new_history_says_when_it_begins(database: HistoryDatabase) -> None:
    database.begin([], [], Gap(5.0, 6.0, 2, "why"), 7.0)
    begins = Gap(None, 0.0, None, BEGINS)
    assert database.gaps(HistoryQuery()) == [begins, Gap(5.0, 6.0, 2, "why")]
    assert database.gaps(HistoryQuery(until=4.0)) == [begins]
    assert database.gaps(HistoryQuery(since=6.5)) == []


def test_there_is_a_most_of_gaps(database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_database, "_MOST_GAPS", 3)
    for number in range(5):
        database.begin([], [], Gap(float(number), number + 0.5, 1, "why"), 9.0)
    assert [gap.since for gap in database.gaps(HistoryQuery())] == [2.0, 3.0, 4.0]
