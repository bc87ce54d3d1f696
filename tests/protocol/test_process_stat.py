"""What is read of ``/proc/PID/stat``: the start of a process, whatever its name is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.process_stat import has_ended, start_ticks
from plugind.tests.protocol.hypothesis_settings import examples

_REST = b"S 1 991 991 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 12345 67 18446744073709551615"


@examples(100)
@given(st.binary(max_size=15))
def test_the_start_is_found_whatever_the_name_is(name: bytes) -> None:
    """``prctl(PR_SET_NAME)`` takes any bytes: a name may look like the fields after it."""
    assert start_ticks(b"991 (" + name + b") " + _REST + b"\n") == 4711


@pytest.mark.parametrize("content", [b"", b"991 (sh) S 1", b"nothing of the kind"])
def test_what_is_no_stat_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is not the stat of a process"):
        start_ticks(content)


@pytest.mark.parametrize(("state", "ended"), [("S", False), ("R", False), ("T", False), ("Z", True), ("X", True)])
def test_a_process_that_is_not_reaped_has_ended(state: str, ended: bool) -> None:
    """Whatever the name of the program is."""
    for name in ("a", ") Z 1 (", ") S 1 ("):
        assert has_ended(f"7 ({name}) {state} 1 7 7".encode()) is ended
    assert not has_ended(b"")
