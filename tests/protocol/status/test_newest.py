"""The table that keeps the newest value of each key: readers at any pace end with the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.status.newest import ChangeTable, Due


def read(table: ChangeTable, revision: int | None) -> tuple[Due, dict[str, str | None]]:
    due = table.after(revision)
    return due, {key: table.get(key) for key in due.keys}


def test_a_reader_gets_the_newest_value_of_each_key_in_the_order_of_the_changes() -> None:
    table = ChangeTable()
    for key, text in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "2"), ("b", "3")):
        table.put(key, text)
    due, values = read(table, None)
    assert (due.anew, list(values.items())) == (True, [("a", "2"), ("c", "1"), ("b", "3")])
    assert read(table, due.revision) == (Due(anew=False, keys=(), revision=due.revision), {})
    table.put("a", "3")
    assert read(table, due.revision)[1] == {"a": "3"}


def test_what_has_gone_is_read_once_and_never_by_a_reader_that_begins() -> None:
    table = ChangeTable()
    table.put("a", "1")
    table.put("b", "1")
    before, _ = read(table, None)
    table.remove("a")
    table.remove("a")
    table.remove("unknown")
    due, values = read(table, before.revision)
    assert (due.anew, values) == (False, {"a": None})
    assert read(table, due.revision)[1] == {}
    assert read(table, None)[1] == {"b": "1"}
    assert len(table) == 1


def test_so_many_keys_that_are_gone_are_remembered_and_who_has_missed_more_reads_all_anew() -> None:
    table = ChangeTable(most_gone=2)
    for key in "abcd":
        table.put(key, "1")
    late, on_time = table.after(None), None
    table.remove("a")
    on_time = table.after(None)
    table.remove("b")
    table.remove("c")
    assert read(table, late.revision) == (Due(anew=True, keys=("d",), revision=table.revision), {"d": "1"})
    assert read(table, on_time.revision)[1] == {"b": None, "c": None}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("remove"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("keep"), st.sampled_from(["", "ab", "efgh"])),
        st.tuples(st.just("read"), st.sampled_from("012")),
    )
)


@given(OPERATIONS)
def test_readers_at_any_pace_know_the_table(operations: list[tuple[str, str]]) -> None:
    table, truth = ChangeTable(most_gone=2), dict[str, str | None]()
    positions: dict[str, int | None] = dict.fromkeys("012")
    copies: dict[str, dict[str, str | None]] = {reader: {} for reader in "012"}

    def catch_up(reader: str) -> None:
        due, values = read(table, positions[reader])
        kept = {} if due.anew else copies[reader]
        copies[reader] = {key: held for key, held in (kept | values).items() if held is not None}
        positions[reader] = due.revision
        assert copies[reader] == truth

    for number, (what, which) in enumerate(operations):
        match what:
            case "put":
                table.put(which, str(number))
                truth[which] = str(number)
            case "remove":
                table.remove(which)
                truth.pop(which, None)
            case "keep":
                table.keep_only(which)
                truth = {key: held for key, held in truth.items() if key in which}
            case _:
                catch_up(which)
        assert len(table) == len(truth)
    for reader in "012":
        catch_up(reader)
