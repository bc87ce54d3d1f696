"""The entries of the journal, and that no text of a plugin can be more than the value of its field."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plugind.protocol.logs.journal import journal_entry
from plugind.protocol.logs.lines import Field, Level


def parsed(entry: bytes) -> list[tuple[str, bytes]]:
    """Read an entry as the journal does: each field is one line, or a name, a length and as many bytes."""
    fields = []
    while entry:
        line, _, entry = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(entry[:8], "little")
            value, end, entry = entry[8 : 8 + size], entry[8 + size : 9 + size], entry[9 + size :]
            assert (len(value), end) == (size, b"\n")
        fields.append((name.decode("ascii"), value))
    return fields


def test_an_entry_has_the_line_of_the_log_and_a_field_for_each_of_its_own() -> None:
    entry = journal_entry(Level.INFO, "plugin registered", {"name": "red", "attempt": 1, "cause": None, "ready": True})
    assert entry == (
        b"MESSAGE=plugin registered name=red attempt=1 ready=true\n"
        b"PRIORITY=6\n"
        b"SYSLOG_IDENTIFIER=plugind\n"
        b"PLUGIND_EVENT=plugin registered\n"
        b"PLUGIND_NAME=red\n"
        b"PLUGIND_ATTEMPT=1\n"
        b"PLUGIND_READY=true\n"
    )


@pytest.mark.parametrize(
    ("level", "priority"), [(Level.DEBUG, 7), (Level.INFO, 6), (Level.WARNING, 4), (Level.ERROR, 3)]
)
def test_levels_are_those_of_syslog(level: Level, priority: int) -> None:
    assert dict(parsed(journal_entry(level, "m", {})))["PRIORITY"] == str(priority).encode()


def test_a_text_with_lines_forges_no_field_and_no_entry() -> None:
    """Fault 91."""
    hostile = "red\nPRIORITY=0\nMESSAGE=all is well\n\n_UID=0\n"
    fields = parsed(journal_entry(Level.INFO, "plugin refused", {"name": hostile, "reason": "a=b"}))
    assert [name for name, _ in fields] == [
        "MESSAGE",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
        "PLUGIND_EVENT",
        "PLUGIND_NAME",
        "PLUGIND_REASON",
    ]
    assert dict(fields)["PLUGIND_NAME"] == hostile.encode()
    assert dict(fields)["PLUGIND_REASON"] == b"a=b"
    assert b"\n" not in dict(fields)["MESSAGE"]


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=50) | st.sampled_from(["\n", "=", "A=b\nC=d", "\udcff"])
NAMES = st.text("abc_\n= ÄZ0", min_size=1, max_size=70)
VALUES: st.SearchStrategy[Field] = TEXTS | st.integers() | st.booleans() | st.floats() | st.none()


@given(st.sampled_from(Level), st.dictionaries(NAMES, VALUES, max_size=5))
def test_whatever_the_fields_hold_each_is_one_field_that_the_journal_takes(
    level: Level, fields: dict[str, Field]
) -> None:
    found = parsed(journal_entry(level, "m", fields))
    given_ones = found[4:]
    assert [name for name, _ in found[:4]] == ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "PLUGIND_EVENT"]
    assert len(given_ones) <= sum(value is not None for value in fields.values())
    for name, _ in given_ones:
        assert name.startswith("PLUGIND_")
        assert len(name) <= 64
        assert name.replace("_", "A").isalnum()
        assert name.isascii()
        assert name == name.upper()


def test_a_value_is_cut_as_in_a_line() -> None:
    """Fault 94."""
    fields = dict(parsed(journal_entry(Level.INFO, "m", {"name": "x" * 2000})))
    assert fields["PLUGIND_NAME"].decode() == "x" * 1024 + "…(+976)"


def test_bytes_of_a_file_name_that_is_not_utf_8_are_escaped() -> None:
    """Fault 21."""
    fields = dict(parsed(journal_entry(Level.INFO, "m", {"socket": "/r/\udcff.sock"})))
    assert fields["PLUGIND_SOCKET"] == b"/r/\\xff.sock"
